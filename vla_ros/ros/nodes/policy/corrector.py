"""Second worker of ``execution: corrected``: it corrects the actions under way by every new frame.
The robot does not depend on it: while it is gone, actions go out as their chunk has them, no older
than the limits allow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from vla_ros.core.clock import Clock
from vla_ros.core.types import Instruction, Observation
from vla_ros.policies.base import PolicySpec
from vla_ros.policies.load import load_corrector
from vla_ros.runtime.control.control import Control
from vla_ros.runtime.control.corrections import Corrections
from vla_ros.runtime.worker.executor import Executor
from vla_ros.runtime.worker.wire import (
    ErrorKind,
    Event,
    FrameRefused,
    PolicyLoaded,
    WorkerGaveUp,
    WorkerLimits,
    WorkerLost,
    WorkerReady,
    WorkerResult,
)


class CorrectorLink:
    """The corrector's worker, its corrections and its events in the log. Threads: those of
    :class:`~vla_ros.ros.nodes.policy.link.LoopLink`; no answer counts before :meth:`attach`.
    ``most``: actions that it corrects at once; ``warn`` is throttled by its first argument."""

    def __init__(
        self,
        spec: PolicySpec,
        clock: Clock,
        limits: WorkerLimits,
        log: Any,
        warn: Callable[[str, str], None],
        most: int,
    ) -> None:
        self._log, self._warn = log, warn
        self._control: Control | None = None
        self._executor = Executor(
            spec, clock, limits, self._on_result, self._on_event, load_corrector
        )
        self.corrections = Corrections(self._submit, most)

    def start(self, timeout_s: float, ending: threading.Event) -> PolicyLoaded:
        """Load the worker. Blocks, and raises PolicyRefused with nothing left behind."""
        ready = self._executor.start(timeout_s, ending)
        self._log.info(
            f"corrector: worker {ready.pid}, a frame takes {ready.inference_p50_ms:.1f} ms"
            f" (p99 {ready.inference_p99_ms:.1f} ms)"
        )
        return ready

    def attach(self, control: Control) -> None:
        """Take its corrections from now on."""
        self._control = control

    def set_hang_timeout(self, seconds: float) -> None:
        self._executor.set_hang_timeout(seconds)

    def close(self, timeout_s: float) -> bool:
        return self._executor.close(timeout_s)

    def _submit(self, observation: Observation, instruction: Instruction) -> None:
        try:
            self._executor.submit(observation, instruction)
        except FrameRefused as error:  # the policy's own worker got it too, and its link reports it
            self._warn("corrector", f"no correction by this frame: {error}")

    def _on_result(self, result: WorkerResult) -> None:
        control = self._control
        if control is None:
            return
        if result.error is not ErrorKind.NONE:
            self._warn("corrector", f"no correction by this frame: {result.error_text}")
        elif result.inference is not None:
            with control.lock:
                self.corrections.answered(result.inference)

    def _on_event(self, event: Event) -> None:
        match event:
            case WorkerLost():
                self._log.error(f"corrector lost: {event.reason}; actions go out uncorrected")
            case WorkerReady():
                self._log.info(f"corrector is back, worker {event.ready.pid}")
            case WorkerGaveUp():
                self._log.error(f"no corrections any more: {event.reason}; configure again")
