"""Two towers on two streams: what waits for what, with stand-ins for torch.cuda."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from support.engine import CPU, Again, tiny, tiny_config
from vla_ros.engine.layers.devices import SideBySide, in_turn
from vla_ros.engine.models.openvla import VLAModel
from vla_ros.engine.options import EngineOptions


class Stream:
    def __init__(self, cuda: Cuda, name: str) -> None:
        self.name, self._cuda = name, cuda

    def wait_stream(self, other: Stream) -> None:
        self._cuda.log.append(f"{self.name} waits for {other.name}")


class Cuda:
    """A GPU that writes down what it is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.current = Stream(self, "main")
        for name in ("current_stream", "stream", "Stream"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())

    def current_stream(self) -> Stream:
        return self.current

    def Stream(self) -> Stream:
        return Stream(self, "side")

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def work(self, name: str) -> Callable[[], str]:
        def run() -> str:
            self.log.append(f"{name} on {self.current.name}")
            return name

        return run


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


def test_the_side_stream_is_forked_before_and_joined_behind_both(cuda: Cuda) -> None:
    both = SideBySide(torch.device("cuda:0"))
    for _ in range(2):
        assert both(cuda.work("first"), cuda.work("second")) == ("first", "second")
        cuda.work("third")()
    assert cuda.log == 2 * [
        "side waits for main",
        "second on side",
        "first on main",
        "main waits for side",
        "third on main",
    ]


def test_within_a_stream_that_is_captured_that_one_is_forked(cuda: Cuda) -> None:
    """A graph holds what hangs on its own stream: forks of any other would be left out of it."""
    both = SideBySide(torch.device("cuda:0"))
    with cuda.stream(Stream(cuda, "captured")):
        both(cuda.work("first"), cuda.work("second"))
    assert cuda.log[0] == "side waits for captured"
    assert cuda.log[-1] == "captured waits for side"


def model(towers: str = "fused", capture: Any = None, both: Any = None, **options: Any) -> VLAModel:
    checkpoint = tiny(tiny_config("llama_gqa", towers), seed=3)
    return VLAModel(checkpoint, CPU, torch.float32, EngineOptions(**options), capture, both)


def pixels(seed: int = 0) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(seed)
    return torch.randn(1, 3, 32, 32), torch.randn(1, 3, 32, 32)


def test_two_towers_beside_each_other_see_what_they_see_in_turn(cuda: Cuda) -> None:
    """Captured too: the fork is within the function that a graph is made of."""
    plain, graphed = model(), model(capture=Again(), both=SideBySide(torch.device("cuda:0")))
    for seed in range(3):
        expected = plain.features(pixels(seed))
        assert torch.equal(expected, plain.vision.features(pixels(seed)))
        assert torch.equal(graphed.features(pixels(seed)), expected)
    assert cuda.log == 4 * ["side waits for main", "main waits for side"]  # and once for the graph


def test_one_tower_needs_no_second_stream(cuda: Cuda) -> None:
    alone = model("single", both=SideBySide(torch.device("cuda:0")))
    alone.features(pixels()[:1])
    assert cuda.log == []


@pytest.mark.parametrize("towers", ["single", "fused"])
def test_towers_are_compiled_one_by_one(towers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def keep(function: Any) -> Any:
        asked.append(function)
        return function

    monkeypatch.setattr("vla_ros.engine.models.openvla.compiled", keep)
    made = model(towers, compile=("vision",), both=in_turn)
    assert asked == list(made.vision.vision_backbone.towers)
    given = pixels()[: len(asked)]
    assert torch.equal(made.features(given), made.vision.features(given))
