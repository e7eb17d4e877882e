"""What a configured policy node is made of: worker, control loop, inputs, tick.

Lives from configure to cleanup. Threads: the node's executor runs the callbacks of the
inputs, the worker's reader delivers results and events, the ticker runs the control tick.
They meet in :class:`vla_ros.control.Control`, under its lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from rclpy.lifecycle import LifecycleNode

from vla_ros.control import Control, check_instruction
from vla_ros.control.actions import Answer
from vla_ros.control.ticker import Ticker
from vla_ros.core import Command, CommandKind, Instruction, Observation, PolicyState
from vla_ros.executor import Executor
from vla_ros.executor import Limits as ExecutorLimits
from vla_ros.executor.messages import (
    ErrorKind,
    Event,
    FrameRefused,
    Result,
    WorkerGaveUp,
    WorkerLost,
)
from vla_ros.msg import PolicyStatus
from vla_ros.nodes.common import convert
from vla_ros.nodes.policy.inputs import PolicyInputs
from vla_ros.nodes.policy.topics import (
    Acceptance,
    LatencyWindows,
    PolicyTopics,
    Throttle,
    status_message,
)
from vla_ros.policies.base import PolicySpec
from vla_ros.safety import Limits, Safety, least_max_age_s
from vla_ros.timing import Clock


class PolicyRuntime:
    """One loaded policy and everything around it. It is the Outlet of its control loop.

    Construction loads and warms up, and blocks. Raises PolicyRefused or ValueError, in one
    line, for a policy that cannot be loaded or limits that it cannot meet; nothing is left
    behind then; ``ending`` cuts it short. ``changed_state`` is called, from any thread, when
    the status is another one.
    """

    def __init__(
        self,
        node: LifecycleNode,
        values: Mapping[str, Any],
        spec: PolicySpec,
        limits: Limits,
        clock: Clock,
        topics: PolicyTopics,
        *,
        sim_time: bool,
        changed_state: Callable[[], None],
        ending: threading.Event,
    ) -> None:
        self._log = node.get_logger()
        self._values = values
        self._limits = limits
        self._clock = clock
        self._topics = topics
        self._changed_state = changed_state
        self._lockstep = values["mode"] == "lockstep"
        self._restarts = 0
        self._throttle = Throttle()
        self._windows = LatencyWindows(values["latency_window_s"])
        self._acceptance = Acceptance()
        self._ticker: Ticker | None = None
        self.control: Control | None = None
        room = ExecutorLimits(
            load_timeout_s=values["load_timeout_s"],
            max_image_bytes=2 * 3 * values["max_image_pixels"],
        )
        self._log.info(f"loading policy '{spec.name}' ...")
        self._executor = Executor(spec, clock, room, self._on_result, self._on_event)
        self._ready = self._executor.start(values["load_timeout_s"], ending)
        self._worker_pid = self._ready.pid  # 0: there is none
        try:
            self.check(limits)
        except ValueError:
            self._executor.close()
            raise
        self._executor.set_hang_timeout(self._hang_timeout_s())
        self.control = Control(
            limits,
            self._ready.info,
            clock,
            self,
            lockstep=self._lockstep,
            sim_time=sim_time,
            detect_frozen=values["detect_frozen"],
            replan_interval=values["replan_interval"],
        )
        self.control.inference_s = self._inference_s
        topics.open(limits, clocked=not self._lockstep)
        poses = spec.name == "scripted"
        wrist = values["use_wrist_image"] or self._ready.info.cameras == 2
        needs = {**values, "use_wrist_image": wrist}
        self._inputs = PolicyInputs(node, needs, clock, self.control, poses=poses)
        if values["instruction"]:
            self.control.set_instruction(check_instruction(values["instruction"]))
        self._log.info(
            f"ready: {spec.name}, schedule {self._ready.info.schedule}, device"
            f" {self._ready.info.device}, inference {self._ready.inference_p50_ms:.1f} ms"
            f" (p99 {self._ready.inference_p99_ms:.1f} ms)"
        )
        if self._ready.info.conventions:
            self._log.info(f"the checkpoint is read so: {self._ready.info.conventions}")
        if self._ready.info.contradiction:
            self._log.warning(f"overridden: {self._ready.info.contradiction}")

    # ------------------------------------------------------------------ its life

    def activate(self) -> None:
        self.loop.activate()
        self._ticker = Ticker(self._limits.period_ns, self._tick, self._tick_failed)
        self._ticker.start()

    def deactivate(self) -> None:
        """Nothing is published after this."""
        self.loop.deactivate()
        if self._ticker is not None:
            self._ticker.stop()
            self._ticker = None

    def last_word(self) -> None:
        """Publish the stale policy's command and see that it gets out."""
        self.loop.shut_down()
        self._topics.flush(0.2)

    def close(self) -> None:
        """End the worker and take the topics away."""
        self.deactivate()
        self._inputs.close()
        self._executor.close(0.5)
        self._topics.close()

    @property
    def loop(self) -> Control:
        assert self.control is not None
        return self.control

    # ------------------------------------------------------------------ limits

    @property
    def _inference_s(self) -> float:
        """L, the 99th percentile of inference at warm-up."""
        return self._ready.inference_p99_ms / 1e3

    def _hang_timeout_s(self) -> float:
        """max(3 L, 5 T, A) + T. Before A the robot still moves on valid evidence: a worker that
        is merely slow, on a busy machine, must not be killed for it."""
        if self._values["hang_timeout_s"] > 0.0:
            return float(self._values["hang_timeout_s"])
        period = self._limits.period_s
        return max(3 * self._inference_s, 5 * period, self._limits.max_age_s) + period

    def check(self, limits: Limits) -> None:
        """Raise ValueError for limits that the loaded policy cannot meet."""
        if (
            self.control is not None
            and self.control.safety.active
            and limits.control_rate_hz != self._limits.control_rate_hz
        ):
            raise ValueError("control_rate_hz cannot change while active: deactivate first")
        info = self._ready.info
        # In lock-step the world waits: inference does not make its evidence older.
        inference_s = 0.0 if self._lockstep else self._inference_s
        kept = min(self._values["replan_interval"] or info.chunk_length, info.chunk_length)
        least = least_max_age_s(limits, info.pipeline_depth, inference_s, kept)
        if limits.max_age_s < least:
            raise ValueError(
                f"max_age_s {limits.max_age_s:g} cannot be met: camera period"
                f" {1e3 / limits.camera_rate_hz:.0f} ms, {info.pipeline_depth - 1} frames of"
                f" pipeline and {kept} actions at {limits.period_s * 1e3:.0f} ms, inference"
                f" {inference_s * 1e3:.0f} ms need at least {least:.3f}"
            )

    def apply(self, values: Mapping[str, Any], limits: Limits) -> None:
        """Use other limits from now on; they have passed :meth:`check`."""
        if limits.control_rate_hz != self._limits.control_rate_hz:
            self._topics.close()  # the deadline that a writer offers cannot change
            self._topics.open(limits, clocked=not self._lockstep)
        self._values, self._limits = values, limits
        with self.loop.lock:
            self.loop.limits = limits
        self._executor.set_hang_timeout(self._hang_timeout_s())

    # ------------------------------------------------------------------ services

    def recover(self) -> None:
        """Leave FAULT, with a new worker, or HOLD."""
        if self.loop.safety.state is PolicyState.FAULT:
            self._executor.restart()
        self.loop.recover()

    # ------------------------------------------------------------------ the worker

    def _on_result(self, result: Result) -> None:
        """On the worker's reader thread."""
        loop = self.control
        if loop is None:
            return
        if result.error is ErrorKind.INVALID:
            loop.invalid(result.epoch, result.error_text)
        elif result.error is ErrorKind.MEMORY:
            loop.fault(f"out of memory: {result.error_text}")
        elif result.error is ErrorKind.FAILED:
            self._log.error(f"the policy failed: {result.error_text}")
        elif result.inference is None:
            loop.result(result.epoch, None)
        else:
            answer = Answer(result.inference, result.received_ns, result.received_steady_ns)
            self._acceptance.add(answer)
            loop.result(result.epoch, answer)
            if self._ticker is not None:
                self._ticker.arrived(self._clock.steady_ns())
            self._topics.chunk(
                convert.chunk_message(answer, result, self._ready.info, self._limits.period_s),
                self._clock.now_ns(),
            )

    def _on_event(self, event: Event) -> None:
        """On the worker's reader thread: the worker came or went."""
        loop = self.control
        if loop is None:
            return
        if isinstance(event, WorkerLost):
            self._restarts += 1
            self._worker_pid = 0
            loop.worker_lost(event.reason)
            self._log.error(f"worker lost: {event.reason}")
        elif isinstance(event, WorkerGaveUp):
            loop.fault(event.reason)
        else:
            self._ready, self._worker_pid = event.ready, event.ready.pid
            self._log.info(f"worker is back, pid {event.ready.pid}")
            loop.worker_ready()
        self._changed_state()

    # ------------------------------------------------------------------ Outlet

    def submit(self, observation: Observation, instruction: Instruction) -> None:
        try:
            self._executor.submit(observation, instruction)
        except FrameRefused as error:
            self.loop.drop(str(error))

    def publish(self, command: Command) -> None:
        self._topics.command(command, self._ready.info, self._limits.period_s)
        if command.kind is CommandKind.POLICY:
            self._windows.command(command, self._clock.steady_ns())

    def changed(self, before: Safety, after: Safety) -> None:
        if after.state is PolicyState.FAULT and before.state is not after.state:
            self._executor.halt()  # until recover: what is broken must not go on computing
            self._worker_pid = 0
        if before.state != after.state:
            line = f"{before.state.name} -> {after.state.name}: {after.reason}"
            # rclpy allows one severity a line of source, and raises for a second one.
            if after.state in (PolicyState.HOLD, PolicyState.FAULT):
                self._log.error(line)
            else:
                self._log.info(line)
        self._changed_state()

    def warn(self, kind: str, text: str) -> None:
        if line := self._throttle.text(kind, text):
            self._log.warning(line)

    # ------------------------------------------------------------------ tick and report

    def _tick(self, error_ns: int) -> None:
        self.loop.tick()
        self._windows.tick(error_ns, self._clock.steady_ns())

    def _tick_failed(self, error: Exception) -> None:
        self.warn("tick", f"control tick failed: {type(error).__name__}: {error}")

    def report_latency(self) -> None:
        if self.loop.safety.active:
            self._topics.latency(self._windows, self._clock.now_ns(), self._clock.steady_ns())

    def status(self) -> PolicyStatus | None:
        """The status; None while still being constructed."""
        if self.control is None:
            return None
        loop = self.control
        out = status_message(
            loop.safety, loop.instruction, self._ready.info, loop.counters, self._limits
        )
        out.worker_pid = self._worker_pid
        out.worker_restarts = self._restarts
        out.acceptance = self._acceptance.shares()
        return out
