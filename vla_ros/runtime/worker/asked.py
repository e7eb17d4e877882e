"""A policy in a worker process, asked one frame at a time: for whoever waits for each answer of a
policy that another Python has to load."""

from __future__ import annotations

import queue

from vla_ros.core.clock import Clock
from vla_ros.core.types import Inference, Instruction, Observation, Timeline
from vla_ros.policies.base import InvalidAction, PolicyRefused, PolicySpec
from vla_ros.runtime.worker.executor import Executor
from vla_ros.runtime.worker.wire import (
    ErrorKind,
    Event,
    WorkerGaveUp,
    WorkerLimits,
    WorkerLost,
    WorkerResult,
)

_PATIENCE_S = 120.0  # with one answer
_ROOM = 8 * 1920 * 1200 * 3  # bytes of a frame's images


class WorkerPolicy:
    """The policy of ``spec`` in a process of its own, until :meth:`close`. PolicyRefused: it cannot
    be loaded within ``load_timeout_s``."""

    def __init__(self, spec: PolicySpec, clock: Clock, load_timeout_s: float = 300.0) -> None:
        self._answers: queue.SimpleQueue[WorkerResult | str] = queue.SimpleQueue()
        limits = WorkerLimits(
            hang_timeout_s=_PATIENCE_S,
            max_respawns=0,
            load_timeout_s=load_timeout_s,
            max_image_bytes=_ROOM,
        )
        self._executor = Executor(spec, clock, limits, self._answers.put, self._on_event)
        self.info = self._executor.start(load_timeout_s).info
        self._instruction = Instruction("", 0)

    def reset(self, instruction: Instruction) -> None:
        """A new task; one of another epoch is reset in the worker, too."""
        self._instruction = instruction

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference | None:
        """The answer to an observation. InvalidAction: it is none; PolicyRefused: the worker is
        lost."""
        self._executor.submit(observation, self._instruction)
        try:
            result = self._answers.get(timeout=2 * _PATIENCE_S)
        except queue.Empty:
            raise PolicyRefused(f"no answer of the policy within {2 * _PATIENCE_S:g} s") from None
        if isinstance(result, str):
            raise PolicyRefused(f"the policy's worker is lost: {result}")
        if result.error is not ErrorKind.NONE:
            raise InvalidAction(result.error_text)
        return result.inference

    def close(self) -> None:
        """End the worker."""
        self._executor.close(5.0)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, WorkerLost | WorkerGaveUp):
            self._answers.put(event.reason)
