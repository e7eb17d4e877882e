"""Captured passes: made on their GPU (a stand-in for torch.cuda knows which), fed through buffers
that never move, one for each shape."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from support.engine import CPU, Again, tiny, tiny_config
from vla_ros.core.clock import MS, SystemClock
from vla_ros.core.types import Timeline
from vla_ros.engine.layers.devices import on_device, synchronize
from vla_ros.engine.layers.graphs import (
    WARM_UP,
    CountedCapture,
    CudaCapture,
    GraphCache,
    GraphedVision,
)
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.pack import PackLayout, Plan, Planner, chain, prefill_layout
from vla_ros.engine.layers.request import StageTimer
from vla_ros.engine.layers.runner import DecoderRunner
from vla_ros.engine.models.openvla import VLAModel


class Made:
    """A stream, an event, a graph: on the device that was the current one."""

    def __init__(self, cuda: Cuda, kind: str) -> None:
        self.device, self.kind = cuda.current, kind
        self._cuda = cuda
        cuda.made.append((kind, cuda.current))

    def wait_stream(self, other: Made) -> None:
        assert self.device == other.device == self._cuda.current
        self._cuda.log.append((self.kind, "waits for", other.kind))

    def record(self) -> None:
        assert self.device == self._cuda.current

    def synchronize(self) -> None: ...

    def elapsed_time(self, other: Made) -> float:
        return 1.0

    def replay(self) -> None:
        assert self.device == self._cuda.current
        self._cuda.log.append(("replay",))


class Cuda:
    """Two GPUs, of which 0 is the current one; ``log``: what is asked of them, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = 0
        self.made: list[tuple[str, int]] = []
        self.streams: list[weakref.ref[Made]] = []  # of captures
        self.log: list[tuple[str, ...]] = []
        names = "device", "stream", "graph", "current_stream", "Stream", "CUDAGraph", "Event"
        for name in (*names, "graph_pool_handle", "synchronize"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index or 0
        yield
        self.current = before

    @contextmanager
    def stream(self, stream: Made) -> Iterator[None]:
        assert stream.device == self.current
        self.log.append(("begin", stream.kind))
        yield
        self.log.append(("end", stream.kind))

    @contextmanager
    def graph(self, graph: Made, pool: object, stream: Made | None = None) -> Iterator[None]:
        assert stream is not None, "torch's default capture stream is everybody's"
        assert graph.device == stream.device == self.current == pool
        self.streams.append(weakref.ref(stream))
        self.log.append(("begin", "graph"))
        yield
        self.log.append(("end", "graph"))

    def current_stream(self) -> Made:
        return Made(self, "current stream")

    def Stream(self) -> Made:
        return Made(self, "stream")

    def CUDAGraph(self) -> Made:
        return Made(self, "graph")

    def Event(self, **options: Any) -> Made:
        return Made(self, "event")

    def graph_pool_handle(self) -> int:
        return self.current

    def synchronize(self, device: torch.device) -> None:
        self.log.append(("synchronize", str(device)))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


GPU = torch.device("cuda:1")


def one() -> tuple[torch.Tensor, ...]:
    return (torch.ones(1),)


@pytest.mark.parametrize("device", ["cuda:1", "cuda:0", "cuda"])
def test_graphs_are_captured_and_replayed_on_their_gpu(cuda: Cuda, device: str) -> None:
    replay = CudaCapture(torch.device(device))(one)
    replay()
    assert {where for _, where in cuda.made} == {torch.device(device).index or 0}
    assert cuda.current == 0


def test_every_engine_captures_on_a_stream_of_its_own_that_outlives_it(cuda: Cuda) -> None:
    captures = [CudaCapture(torch.device("cuda:0")) for _ in range(2)]
    replays = [capture(one) for capture in captures for _ in range(2)]
    first, second, third, fourth = (ref() for ref in cuda.streams)
    assert first is second is not third is fourth
    del captures, first, second, third, fourth
    gc.collect()
    assert all(ref() is not None for ref in cuda.streams)  # the graphs are still there
    del replays[:2]
    gc.collect()
    assert [ref() is not None for ref in cuda.streams] == [False, False, True, True]


def test_a_function_is_warmed_up_beside_what_runs_and_then_captured(cuda: Cuda) -> None:
    """Its own stream waits for what was begun before, and the current one for the warm-up."""
    capture, results = CudaCapture(GPU), []

    def function() -> tuple[torch.Tensor, ...]:
        cuda.log.append(("runs",))
        results.append((torch.zeros(1),))
        return results[-1]

    replay = capture(function)
    assert cuda.log == [
        ("stream", "waits for", "current stream"),
        ("begin", "stream"),
        *[("runs",)] * WARM_UP,
        ("end", "stream"),
        ("current stream", "waits for", "stream"),
        ("begin", "graph"),
        ("runs",),
        ("end", "graph"),
    ]
    cuda.log.clear()
    assert replay() is replay() is results[-1]  # the memory that the graph writes
    assert cuda.log == [("replay",)] * 2


def test_a_gpu_is_waited_for_and_made_the_current_one_a_cpu_is_not(cuda: Cuda) -> None:
    synchronize(CPU)
    with on_device(CPU):
        assert cuda.current == 0 and not cuda.log
    synchronize(GPU)
    assert cuda.log == [("synchronize", "cuda:1")]
    with on_device(GPU):
        assert cuda.current == 1


def test_stage_marks_are_events_of_the_requests_gpu(cuda: Cuda) -> None:
    clock = SystemClock()
    stages = StageTimer(Timeline(clock.steady_ns() - 10 * MS), clock, torch.device("cuda:1"))
    stages.mark("vision")
    stages.mark("decode")
    assert cuda.made == [("event", 1), ("event", 1)]
    assert [stage for stage, _ in stages.resolve().marks] == ["vision", "decode"]


def test_captures_are_counted() -> None:
    counted = CountedCapture(lambda function: function)
    assert [counted(one)()[0].item() for _ in range(3)] == [1.0] * 3
    assert counted.count == 3


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


def runners(slots: int = 1) -> tuple[DecoderRunner, DecoderRunner, Again, VLAModel]:
    """A runner whose passes are captured, and one whose are not."""
    capture = Again()
    captured, plain = (
        VLAModel(tiny(tiny_config("llama_gqa")), CPU, torch.float32, capture=c)
        for c in (capture, None)
    )
    return captured.runner(slots, 64), plain.runner(slots, 64), capture, plain


def singles(entry: int, count: int) -> tuple[PackLayout, ...]:
    return tuple(PackLayout((0,), tail=chain(0, entry + n, 1)) for n in range(count))


def test_passes_that_feed_each_other_are_one_graph_for_prompts_of_all_lengths() -> None:
    captured, plain, capture, model = runners()
    for length in (9, 12, 30, 9):
        prompt = model.decoder.embed(torch.arange(3, 3 + length))
        first = prefill_layout(length, (length - 1,))
        said = []
        for runner in (captured, plain):
            token, _ = runner.run(first, prompt, None)
            said.append((token, *runner.follow(singles(length, 6), token)))
        assert said[0][0].tolist() == said[1][0].tolist()
        assert said[0][1].tolist() == said[1][1].tolist()
        torch.testing.assert_close(said[0][2], said[1][2])
        one_by_one = [said[1][0]]
        for layout in singles(length, 6):
            one_by_one.append(plain.run(layout, None, one_by_one[-1])[0])
        assert torch.cat(one_by_one[1:]).tolist() == said[1][1].tolist()
    assert capture.captured == 2 + 1  # two lengths of prefills, rounded up, and what follows


def test_drafts_go_where_the_prompt_ends_whatever_was_there_before() -> None:
    """One graph for prompts of 20 to 30 tokens with two drafts, even after one of NaN."""
    captured, plain, capture, model = runners()
    draft = torch.tensor([800, 801])
    bad = model.decoder.embed(torch.arange(30)) * float("nan")
    captured.run(prefill_layout(32, (31,)), bad, draft)
    captured.kv_cache.flush(damaged=True)
    for length in (30, 20, 27):
        prompt = model.decoder.embed(torch.arange(3, 3 + length))
        layout = prefill_layout(length + 2, (length + 1,))
        wanted, got = (runner.run(layout, prompt, draft) for runner in (plain, captured))
        torch.testing.assert_close(got[1], wanted[1])
        tail = PackLayout((0, 1), tail=chain(0, length + 2, 2))
        wanted, got = (runner.run(tail, None, draft) for runner in (plain, captured))
        torch.testing.assert_close(got[1], wanted[1])
    assert capture.captured == 2


def test_a_prompt_with_a_draft_and_a_tail_in_one_pass() -> None:
    captured, plain, _, model = runners(2)
    older = model.decoder.embed(torch.arange(50, 60))
    fresh = model.decoder.embed(torch.arange(3, 13))
    layout = PackLayout((9, 10, 11, 12), 12, 1, tail=chain(0, 10, 1))
    found = []
    for runner in (plain, captured):
        runner.run(prefill_layout(10, (9,)), older, None)
        found.append(runner.run(layout, fresh, torch.tensor([800, 801, 802])))
    torch.testing.assert_close(found[0][1], found[1][1])
