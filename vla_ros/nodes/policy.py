"""The policy node: topics in, a policy in a worker process, gated commands out.

Threads: the executor of the node runs every callback, the worker's reader delivers results,
the ticker runs the control tick. They meet in :class:`vla_ros.control.Control`, under its lock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock as RosClock
from rclpy.clock import ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from std_srvs.srv import Trigger

from vla_ros.control import Control, Counters, check_instruction
from vla_ros.control.actions import Answer
from vla_ros.control.ticker import Ticker
from vla_ros.core import Command, CommandKind, Instruction, Observation, PolicyInfo, PolicyState
from vla_ros.executor import Executor
from vla_ros.executor import Limits as ExecutorLimits
from vla_ros.executor.messages import (
    ErrorKind,
    Event,
    FrameRefused,
    Ready,
    Result,
    WorkerGaveUp,
    WorkerLost,
)
from vla_ros.nodes import convert
from vla_ros.nodes.parameters import check_choices, declare
from vla_ros.nodes.policy_inputs import PolicyInputs
from vla_ros.nodes.policy_parameters import TABLE, limits_of, spec_of
from vla_ros.nodes.policy_topics import (
    Acceptance,
    LatencyWindows,
    PolicyTopics,
    Throttle,
    status_message,
)
from vla_ros.nodes.spin import run
from vla_ros.policies.base import PolicyRefused
from vla_ros.safety import Limits, Safety, least_max_age_s

_DONE = TransitionCallbackReturn.SUCCESS
_REFUSED = TransitionCallbackReturn.FAILURE


class NodeClock:
    """Stamps from the node's clock (wall or simulated), durations from the monotonic one."""

    def __init__(self, clock: RosClock) -> None:
        self._clock = clock

    def steady_ns(self) -> int:
        return time.monotonic_ns()

    def now_ns(self) -> int:
        return int(self._clock.now().nanoseconds)


class PolicyNode(LifecycleNode):
    """See the module's text. It is also the :class:`vla_ros.control.Outlet` of its loop."""

    def __init__(self) -> None:
        super().__init__("policy")
        self.values = declare(self, TABLE)
        self.limits = limits_of(self.values)
        try:
            self.spec = spec_of(self.values)
        except PolicyRefused as error:
            raise ValueError(str(error)) from None
        self.clock = NodeClock(self.get_clock())
        self.sim_time = bool(self.get_parameter("use_sim_time").value)
        self.lockstep = self.values["mode"] == "lockstep"
        if self.lockstep and not self.sim_time:
            raise ValueError("mode 'lockstep' needs use_sim_time:=true and a /clock")
        self.control: Control | None = None
        self._executor_: Executor | None = None
        self._ready: Ready | None = None
        self._restarts = 0
        self._ticker: Ticker | None = None
        self._inputs: PolicyInputs | None = None
        self._throttle = Throttle()
        self._windows = LatencyWindows(self.values["latency_window_s"])
        self._acceptance = Acceptance()
        self._idle = Safety(PolicyState.UNCONFIGURED, "not configured")
        self._topics = PolicyTopics(self, self.values["frame_id"], self.values["publish_twist"])
        steady = RosClock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(1.0, self._report, clock=steady)
        self.add_on_set_parameters_callback(self._check_parameters)
        self.add_post_set_parameters_callback(self._apply_parameters)
        self.create_service(Trigger, "~/stop", self._on_stop)
        self.create_service(Trigger, "~/recover", self._on_recover)
        self.create_service(Trigger, "~/reset", self._on_reset)
        self.publish_status()

    # ------------------------------------------------------------------ lifecycle

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the policy in its worker, warm it up, refuse what cannot be met."""
        try:
            self._configure()
        except (PolicyRefused, ValueError) as error:
            self.get_logger().error(f"configure refused: {error}")
            self._idle = Safety(PolicyState.UNCONFIGURED, f"refused: {error}")
            self._release()
            return _REFUSED
        return _DONE

    def _configure(self) -> None:
        values = self.values
        executor_limits = ExecutorLimits(
            load_timeout_s=values["load_timeout_s"],
            max_image_bytes=2 * 3 * values["max_image_pixels"],
        )
        self.get_logger().info(f"loading policy '{self.spec.name}' ...")
        self._executor_ = Executor(
            self.spec, self.clock, executor_limits, self._on_result, self._on_event
        )
        self._ready = self._executor_.start(values["load_timeout_s"])
        self._executor_.set_hang_timeout(self._hang_timeout_s(self._ready))
        self._check_age(self.limits)
        self.control = Control(
            self.limits,
            self._ready.info,
            self.clock,
            self,
            lockstep=self.lockstep,
            sim_time=self.sim_time,
            detect_frozen=values["detect_frozen"],
            replan_interval=values["replan_interval"],
        )
        self.control.inference_s = self._ready.inference_p99_ms / 1e3
        self._topics.open(self.limits, clocked=not self.lockstep)
        poses = self.spec.name == "scripted"
        self._inputs = PolicyInputs(self, values, self.clock, self.control, poses=poses)
        if values["instruction"]:
            self.control.set_instruction(check_instruction(values["instruction"]))
        self.publish_status()
        info = self._ready.info
        self.get_logger().info(
            f"ready: {info.name}, schedule {info.schedule}, device {info.device}, inference"
            f" {self._ready.inference_p50_ms:.1f} ms (p99 {self._ready.inference_p99_ms:.1f} ms)"
        )

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        assert self.control is not None
        self.control.activate()
        self._ticker = Ticker(self.limits.period_ns, self._tick, self._tick_failed)
        self._ticker.start()
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._end_ticking()
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._release()
        self._idle = Safety(PolicyState.UNCONFIGURED, "not configured")
        self.publish_status()
        return _DONE

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.last_word()
        return _DONE

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._end_ticking()
        self._release()
        return _DONE

    def _end_ticking(self) -> None:
        if self.control is not None:
            self.control.deactivate()
        if self._ticker is not None:
            self._ticker.stop()
            self._ticker = None

    def _release(self) -> None:
        """Give back what configure took."""
        if self._inputs is not None:
            self._inputs.close()
            self._inputs = None
        if self._executor_ is not None:
            self._executor_.close(0.5)
            self._executor_ = None
        self._topics.close()
        self.control = None
        self._ready = None

    def last_word(self) -> None:
        """At the end of the process: the stale policy's command, then the worker's end."""
        if self.control is not None:
            self.control.shut_down()
            self._topics.flush(0.2)
        self._end_ticking()
        self._release()

    # ------------------------------------------------------------------ limits

    def _hang_timeout_s(self, ready: Ready) -> float:
        """max(3 L, 5 T) + T: an inference that takes longer than this never ends."""
        if self.values["hang_timeout_s"] > 0.0:
            return float(self.values["hang_timeout_s"])
        period = self.limits.period_s
        return max(3 * ready.inference_p99_ms / 1e3, 5 * period) + period

    def _check_age(self, limits: Limits) -> None:
        """Raise ValueError for a max_age_s that the loaded policy cannot meet."""
        if self._ready is None:
            return
        info = self._ready.info
        # In lock-step the world waits: inference does not make its evidence older.
        inference_s = 0.0 if self.lockstep else self._ready.inference_p99_ms / 1e3
        kept = min(self.values["replan_interval"] or info.chunk_length, info.chunk_length)
        least = least_max_age_s(limits, info.pipeline_depth, inference_s, kept)
        if limits.max_age_s < least:
            raise ValueError(
                f"max_age_s {limits.max_age_s:g} cannot be met: camera period"
                f" {1e3 / limits.camera_rate_hz:.0f} ms, {info.pipeline_depth - 1} frames of"
                f" pipeline and {kept} actions at {limits.period_s * 1e3:.0f} ms, inference"
                f" {inference_s * 1e3:.0f} ms need at least {least:.3f}"
            )

    def _check_parameters(self, changes: list[Parameter]) -> SetParametersResult:
        """All or nothing: the changed set is checked as a whole."""
        own = {row.name for row in TABLE}
        values = self.values | {p.name: p.value for p in changes if p.name in own}
        try:
            check_choices(TABLE, values)
            limits = limits_of(values)
            active = self.control is not None and self.control.safety.active
            if active and limits.control_rate_hz != self.limits.control_rate_hz:
                raise ValueError("control_rate_hz cannot change while active: deactivate first")
            self._check_age(limits)
        except ValueError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _apply_parameters(self, changes: list[Parameter]) -> None:
        own = {row.name for row in TABLE}
        self.values |= {p.name: p.value for p in changes if p.name in own}
        self.limits = limits_of(self.values)
        if self.control is not None:
            with self.control.lock:
                self.control.limits = self.limits
        if self._executor_ is not None and self._ready is not None:
            self._executor_.set_hang_timeout(self._hang_timeout_s(self._ready))

    # ------------------------------------------------------------------ the worker

    def _on_result(self, result: Result) -> None:
        """On the worker's reader thread."""
        control = self.control
        if control is None or self._ready is None:
            return
        if result.error is ErrorKind.INVALID:
            control.invalid(result.epoch, result.error_text)
        elif result.error is ErrorKind.MEMORY:
            control.fault(f"out of memory: {result.error_text}")
        elif result.error is ErrorKind.FAILED:
            self.get_logger().error(f"the policy failed: {result.error_text}")
        elif result.inference is None:
            control.result(result.epoch, None)
        else:
            answer = Answer(result.inference, result.received_ns, result.received_steady_ns)
            self._acceptance.add(answer)
            control.result(result.epoch, answer)
            self._topics.chunk(
                convert.chunk_message(answer, result, self._ready.info, self.limits.period_s),
                self.clock.now_ns(),
            )

    def _on_event(self, event: Event) -> None:
        """On the worker's reader thread: the worker came or went."""
        control = self.control
        if control is None:
            return
        if isinstance(event, WorkerLost):
            self._restarts += 1
            control.worker_lost(event.reason)
            self.get_logger().error(f"worker lost: {event.reason}")
        elif isinstance(event, WorkerGaveUp):
            control.fault(event.reason)
        else:
            self._ready = event.ready
            self.get_logger().info(f"worker is back, pid {event.ready.pid}")
            control.worker_ready()
        self.publish_status()

    # ------------------------------------------------------------------ Outlet

    def submit(self, observation: Observation, instruction: Instruction) -> None:
        assert self._executor_ is not None and self.control is not None
        try:
            self._executor_.submit(observation, instruction)
        except FrameRefused as error:
            self.control.drop(str(error))

    def publish(self, command: Command) -> None:
        assert self._ready is not None
        self._topics.command(command, self._ready.info, self.limits.period_s)
        if command.kind is CommandKind.POLICY:
            self._windows.command(command, self.clock.steady_ns())

    def changed(self, before: Safety, after: Safety) -> None:
        if before.state != after.state or "no action came out" in after.reason:
            bad = after.state in (PolicyState.HOLD, PolicyState.FAULT)
            log = self.get_logger().error if bad else self.get_logger().info
            log(f"{before.state.name} -> {after.state.name}: {after.reason}")
        self.publish_status()

    def warn(self, kind: str, text: str) -> None:
        if line := self._throttle.text(kind, text):
            self.get_logger().warning(line)

    # ------------------------------------------------------------------ timers and services

    def _tick(self, error_ns: int) -> None:
        assert self.control is not None
        self.control.tick()
        self._windows.tick(error_ns, self.clock.steady_ns())

    def _tick_failed(self, error: Exception) -> None:
        self.warn("tick", f"control tick failed: {type(error).__name__}: {error}")

    def _report(self) -> None:
        self.publish_status()
        if self.control is not None and self.control.safety.active:
            self._topics.latency(self._windows, self.clock.now_ns(), self.clock.steady_ns())

    def publish_status(self) -> None:
        control, ready = self.control, self._ready
        message = status_message(
            control.safety if control else self._idle,
            control.instruction if control else Instruction("", 0),
            ready.info if ready else PolicyInfo(self.spec.name, self.spec.schedule),
            control.counters if control else Counters(),
            self.limits,
            ready,
        )
        message.header.stamp = convert.to_time(self.clock.now_ns())
        message.worker_restarts = self._restarts
        message.acceptance = self._acceptance.shares()
        self._topics.status(message)

    def _on_stop(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        return self._serve(response, Control.stop, "stopped: give a new instruction to go on")

    def _on_reset(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        return self._serve(response, Control.reset, "reset: a new episode begins")

    def _on_recover(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        faulty = self.control is not None and self.control.safety.state is PolicyState.FAULT
        if faulty and self._executor_ is not None:
            self._executor_.restart()
        return self._serve(response, Control.recover, "recovered: waits for a fresh action")

    def _serve(
        self, response: Trigger.Response, call: Callable[[Control], None], said: str
    ) -> Trigger.Response:
        if self.control is None:
            response.success, response.message = False, "not configured"
        else:
            call(self.control)
            response.success, response.message = True, said
            self.publish_status()
        return response


def main(args: Sequence[str] | None = None) -> int:
    """Run the policy node: exit status 0 after SIGINT or SIGTERM, 2 for a bad parameter."""
    return run(PolicyNode, PolicyNode.last_word, args)


if __name__ == "__main__":
    sys.exit(main())
