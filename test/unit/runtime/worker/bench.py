"""An executor whose results and events can be waited for."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Instruction, Observation
from vla_ros.policies import PolicySpec
from vla_ros.runtime.worker.executor import Executor
from vla_ros.runtime.worker.wire import Event, WorkerLimits, WorkerResult
from vla_ros.runtime.worker.worker import Loader

T = TypeVar("T")
CLOCK = SystemClock()


class Bench:
    """An executor, with queues behind its callbacks."""

    def __init__(self, spec: PolicySpec, limits: WorkerLimits, loader: Loader) -> None:
        self.results: queue.Queue[WorkerResult] = queue.Queue()
        self.events: queue.Queue[Event] = queue.Queue()
        self.executor = Executor(
            spec, CLOCK, limits, self.results.put, self.events.put, loader=loader
        )
        self.stamp = 0

    def ask(self, text: str = "go", epoch: int = 0, value: int = 0) -> int:
        """Submit a small frame of one value; returns its stamp."""
        self.stamp += 1
        self.executor.submit(frame(self.stamp, value), Instruction(text, epoch))
        return self.stamp

    def result(self, stamp: int | None = None, timeout_s: float = 5.0) -> WorkerResult:
        """The next result, or the one that answers ``stamp``."""
        while True:
            result = self.results.get(timeout=timeout_s)
            if stamp is None or result.request_stamp_ns == stamp:
                return result

    def event(self, kind: type[T], timeout_s: float = 5.0) -> T:
        """The next event, which must be of this kind."""
        event = self.events.get(timeout=timeout_s)
        assert isinstance(event, kind), event
        return event


def frame(stamp: int, value: int = 0, shape: tuple[int, int, int] = (8, 8, 3)) -> Observation:
    return Observation(stamp, CLOCK.now_ns(), CLOCK.steady_ns(), np.full(shape, value, np.uint8))


MakeBench = Callable[..., Bench]  # what the fixture `make_bench` is
