"""What is captured, how often, on which stream, and for which shapes: with stand-ins for CUDA."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch

from support.engine import CPU, Again
from vla_ros.engine.layers.devices import on_device, synchronize
from vla_ros.engine.layers.graphs import WARM_UP, CudaCapture, GraphCache, GraphedVision
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.pack import PackLayout, Plan, Planner, chain, prefill_layout


class Cuda:
    """One GPU that writes down what is asked of it, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[Any, ...]] = []
        names = "device", "stream", "graph", "current_stream", "Stream", "CUDAGraph"
        for name in (*names, "graph_pool_handle", "synchronize"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def _within(self, *what: Any) -> AbstractContextManager[None]:
        @contextmanager
        def block():  # type: ignore[no-untyped-def]
            self.log.append(("begin", *what))
            yield
            self.log.append(("end", *what))

        return block()

    def device(self, device: torch.device) -> AbstractContextManager[None]:
        assert device == torch.device("cuda:1")
        return nullcontext()

    def stream(self, stream: Stream) -> AbstractContextManager[None]:
        return self._within("stream", stream.name)

    def graph(self, graph: Graph, *, pool: str, stream: Stream) -> AbstractContextManager[None]:
        return self._within("graph", pool, stream.name)

    def current_stream(self) -> Stream:
        return Stream(self, "current")

    def Stream(self) -> Stream:
        return Stream(self, "own")

    def CUDAGraph(self) -> Graph:
        return Graph(self)

    def graph_pool_handle(self) -> str:
        return "pool"

    def synchronize(self, device: torch.device) -> None:
        self.log.append(("synchronize", str(device)))


class Stream:
    def __init__(self, cuda: Cuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_stream(self, other: Stream) -> None:
        self.cuda.log.append((self.name, "waits for", other.name))


class Graph:
    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda

    def replay(self) -> None:
        self.cuda.log.append(("replay",))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


GPU = torch.device("cuda:1")


def test_a_function_is_warmed_up_beside_what_runs_and_then_captured(cuda: Cuda) -> None:
    """Its own stream waits for what was begun before, and the current one for the warm-up."""
    capture, results = CudaCapture(GPU), []

    def function() -> tuple[torch.Tensor, ...]:
        cuda.log.append(("runs",))
        results.append((torch.zeros(1),))
        return results[-1]

    replay = capture(function)
    assert cuda.log == [
        ("own", "waits for", "current"),
        ("begin", "stream", "own"),
        *[("runs",)] * WARM_UP,
        ("end", "stream", "own"),
        ("current", "waits for", "own"),
        ("begin", "graph", "pool", "own"),
        ("runs",),
        ("end", "graph", "pool", "own"),
    ]
    cuda.log.clear()
    assert replay() is replay() is results[-1]  # the memory that the graph writes
    assert cuda.log == [("replay",)] * 2


def test_a_gpu_is_waited_for_and_made_the_current_one_a_cpu_is_not(cuda: Cuda) -> None:
    synchronize(CPU)
    with on_device(CPU):
        pass
    assert not cuda.log
    synchronize(GPU)
    assert cuda.log == [("synchronize", "cuda:1")]
    with on_device(GPU):
        pass
    with pytest.raises(AssertionError):
        on_device(torch.device("cuda:0"))  # the stand-in has but one


def plans(*layouts: PackLayout) -> tuple[Plan, ...]:
    planner = Planner(KVCache(1, 2, 64, 1, 2, torch.float32, CPU))
    return tuple(planner.plan(layout) for layout in layouts)


def fed(
    own: tuple[Plan, ...], prompt: torch.Tensor | None, tokens: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    """All that a pass is given, as numbers."""
    out = [plan.flat + 0 for plan in own]
    return (*out, *(part + 0 for part in (prompt, tokens) if part is not None))


def test_a_graph_belongs_to_the_shapes_of_all_that_is_fed() -> None:
    capture = Again()
    cache = GraphCache(fed, capture)
    prompt, tokens = torch.ones(3, 2), torch.tensor([5, 6])
    tail = plans(PackLayout((0,), tail=chain(0, 9, 2)))
    both = plans(PackLayout((0,), 3, 1, chain(0, 9, 2)))
    asked = [
        (tail, None, tokens),
        (both, prompt, tokens),
        (both, prompt, torch.tensor([1, 2, 3])),  # a draft behind the prompt
        (both, prompt, None),
        (both, prompt, torch.tensor([1])),
        (both, None, tokens),
        ((*tail, *tail), None, tokens),
        (plans(PackLayout((0, 1), tail=chain(0, 9, 2))), None, tokens),
    ]
    for number, each in enumerate(asked, 1):
        for got, wanted in zip(cache(*each), fed(*each), strict=True):
            assert got.tolist() == wanted.tolist()
        assert len(cache) == capture.captured == number
    elsewhere = plans(PackLayout((0,), tail=chain(1, 30, 2)))  # of the first one's shape
    other = torch.tensor([7, 8])
    assert [t.tolist() for t in cache(elsewhere, None, other)] == [
        elsewhere[0].flat.tolist(), [7, 8],
    ]  # fmt: skip
    assert len(cache) == len(asked)


def test_what_a_graph_was_fed_before_is_not_there_any_more() -> None:
    """Plans, prompts that are shorter or longer than the last, tokens; and answers stay."""
    cache = GraphCache(fed, Again())
    kept = []
    for number, length in enumerate((5, 8, 3, 4, 8, 1), 1):
        layout = PackLayout((0,), 8, number % 2, chain(0, 20 + number, 2))
        prompt, tokens = torch.full((length, 2), float(number)), torch.tensor([number, -number])
        mine = plans(layout)
        kept.append((cache(mine, prompt, tokens), mine[0].flat.tolist(), length, number))
    assert len(cache) == 1
    for (plan, prompt, tokens), flat, length, number in kept:
        assert plan.tolist() == flat
        assert prompt.tolist() == [[number] * 2] * length + [[0] * 2] * (8 - length)
        assert tokens.tolist() == [number, -number]


def test_the_plan_that_was_fed_last_may_come_again() -> None:
    cache = GraphCache(fed, Again())
    first, second = plans(prefill_layout(4, (1,)), prefill_layout(4, (3,)))
    prompt = torch.ones(4, 2)
    for plan in (first, first, second, second, first):
        assert cache((plan,), prompt, None)[0].tolist() == plan.flat.tolist()


def test_a_plan_of_several_changes_alone() -> None:
    cache = GraphCache(fed, Again())
    one, two, three = plans(*(prefill_layout(4, (row,)) for row in range(3)))
    prompt = torch.ones(4, 2)
    for pair in ((one, two), (one, three), (two, three), (two, three), (three, one)):
        got = cache(pair, prompt, None)
        assert [t.tolist() for t in got[:2]] == [plan.flat.tolist() for plan in pair]


def test_captured_vision_sees_every_towers_pixels_and_its_answers_stay() -> None:
    capture = Again()
    vision = GraphedVision(lambda pixels: pixels[0] + 10 * pixels[1], capture)
    answers = []
    for number in range(1, 4):
        pixels = tuple(torch.full((2,), float(number * factor)) for factor in (1, 2))
        answers.append(vision(pixels))
        pixels[0].zero_()
    assert [answer.tolist() for answer in answers] == [[21.0] * 2, [42.0] * 2, [63.0] * 2]
    assert capture.captured == 1
    with pytest.raises(ValueError):
        vision((torch.zeros(2),))
