"""What is made for a GPU is made on that GPU, with a stand-in for torch.cuda that knows which."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from vla_ros.core.clock import MS, SystemClock
from vla_ros.core.types import Timeline
from vla_ros.engine.layers.graphs import CountedCapture, CudaCapture
from vla_ros.engine.layers.request import StageTimer


class Made:
    """A stream, an event, a graph: on the device that was the current one."""

    def __init__(self, cuda: Cuda, kind: str) -> None:
        self.device, self.kind, self.replayed = cuda.current, kind, 0
        self._cuda = cuda
        cuda.made.append((kind, cuda.current))

    def wait_stream(self, other: Made) -> None:
        assert self.device == other.device == self._cuda.current

    def record(self) -> None:
        assert self.device == self._cuda.current

    def synchronize(self) -> None: ...

    def elapsed_time(self, other: Made) -> float:
        return 1.0

    def replay(self) -> None:
        assert self.device == self._cuda.current
        self.replayed += 1


class Cuda:
    """Two GPUs, of which 0 is the current one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = 0
        self.made: list[tuple[str, int]] = []
        self.streams: list[weakref.ref[Made]] = []  # of captures
        self._default = {0: Made(self, "default"), 1: None}
        names = "device", "stream", "graph", "current_stream", "Stream", "CUDAGraph", "Event"
        for name in (*names, "graph_pool_handle"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        self.made.clear()

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index or 0
        yield
        self.current = before

    @contextmanager
    def stream(self, stream: Made) -> Iterator[None]:
        assert stream.device == self.current
        yield

    @contextmanager
    def graph(self, graph: Made, pool: object, stream: Made | None = None) -> Iterator[None]:
        assert stream is not None, "torch's default capture stream is everybody's"
        assert graph.device == stream.device == self.current == pool
        self.streams.append(weakref.ref(stream))
        yield

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


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


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
