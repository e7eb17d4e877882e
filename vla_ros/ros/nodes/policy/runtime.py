"""Runtime of a configured policy node: worker, control loop, inputs, tick.

Lives from configure to cleanup. Threads: the node's executor runs the callbacks of the
inputs, the worker's reader delivers results and events, the ticker runs the control tick.
They meet in :class:`vla_ros.runtime.control.control.Control`, under its lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rclpy.lifecycle import LifecycleNode

from vla_ros.core.assumption import Assumption, table
from vla_ros.core.clock import SECOND, Clock
from vla_ros.core.types import PolicyInfo, PolicyState
from vla_ros.policies.base import PolicySpec
from vla_ros.ros.nodes.policy.action_chunks import ActionChunkService
from vla_ros.ros.nodes.policy.assumptions import message_of, of_policy, of_robot
from vla_ros.ros.nodes.policy.corrector import CorrectorLink
from vla_ros.ros.nodes.policy.inputs import PolicyInputs
from vla_ros.ros.nodes.policy.link import LoopLink
from vla_ros.ros.nodes.policy.needs import FrameStreams, needs_of
from vla_ros.ros.nodes.policy.outputs import joint_outputs
from vla_ros.ros.nodes.policy.parameters import roles_of
from vla_ros.ros.nodes.policy.rates import SettledRate, settle_rate, slower
from vla_ros.ros.nodes.policy.settings import chunking_of
from vla_ros.ros.nodes.policy.shadow import Shadow
from vla_ros.ros.nodes.policy.space import check_space
from vla_ros.ros.nodes.policy.takeover import TakeoverInputs
from vla_ros.ros.nodes.policy.topics import (
    LatencyWindows,
    PolicyTopics,
    in_shadow,
    status_message,
)
from vla_ros.runtime.control.drivers import Scheduling, Ticker, make_control
from vla_ros.runtime.control.goals import PersistentState
from vla_ros.runtime.control.queue import Chunking, Execution
from vla_ros.runtime.control.requests import read_requests
from vla_ros.runtime.control.state import JointOutputs
from vla_ros.runtime.safety import Limits, slower_than_real_time
from vla_ros.runtime.worker.executor import Executor
from vla_ros.runtime.worker.wire import PolicyLoaded, WorkerGone, WorkerLimits

_LEAST_PATIENCE_S, _MOST_PATIENCE_S = 2.0, 30.0  # with a silent worker
_REST_S = 0.8  # to come to rest, of the second that an ending node has
_RETRIES = 2  # of the measurement, where inference was too slow for the limits
_BUSY = 10.0  # times as long as else: no load makes inference slower than that
CHECKS = 10  # of a simulation's clock, in one control period of wall time


class WrongState(Exception):
    """A request that is not possible now; the text gives the reason in one line."""


class PolicyRuntime:
    """One loaded policy and everything around it.

    Construction loads and warms up, and blocks. Raises PolicyRefused or ValueError, in one
    line, for a policy that cannot be loaded or limits that it cannot meet; nothing is left
    behind then; ``ending`` cuts it short. ``reported`` is called, from any thread, after each
    status that was published.
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
        persistent: PersistentState,
        reported: Callable[[], None],
        ending: threading.Event,
    ) -> None:
        log = self._log = node.get_logger()
        self._slow = ""  # what was logged about it
        self._values = values
        self._clock = clock
        self._topics = topics
        self._lockstep = values["mode"] == "lockstep"
        self._sim_time = sim_time
        self._ticker: Ticker | None = None
        cpus = tuple(cpu for cpu in values["tick_cpus"] if cpu >= 0)
        self._scheduling = Scheduling(values["tick_priority"], cpus)
        self._scheduling.check()
        self._inputs: PolicyInputs | None = None
        self._takeover: TakeoverInputs | None = None
        self._chunks: ActionChunkService | None = None
        self._windows = LatencyWindows(values["latency_window_s"])
        self._reported = reported
        self._built = False
        self._rate = SettledRate(limits.action_rate_hz)  # until the policy is loaded
        self._link = LoopLink(log, clock, topics, self._windows, self.report_status, self._renewed)
        self._link.spare = "loading" if values["warm_spare"] else ""
        self._corrector: CorrectorLink | None = None
        log.info(f"loading policy '{spec.name}' ...")
        self._executor = self._worker(spec)
        try:
            ready = self._load(spec, limits, ending, log.warning)
            self._load_corrector(spec, ready, ending, log)
            self._build(node, spec, self._rate.of(limits), ready, sim_time, persistent)
        except BaseException:
            self._abandon()
            raise
        self._built = True

    def _load(
        self,
        spec: PolicySpec,
        given: Limits,
        ending: threading.Event,
        warn: Callable[[str], None],
    ) -> PolicyLoaded:
        """Load a worker that meets the limits. A machine that was busy while inference was timed
        is no reason to refuse: it is measured again, where a quiet one could meet them."""
        left = _RETRIES
        while True:
            began_ns = self._clock.steady_ns()
            ready = self._executor.start(self._values["load_timeout_s"], ending)
            self._load_s = (self._clock.steady_ns() - began_ns) / SECOND
            simulated = self._sim_time or self._lockstep
            self._rate = settle_rate(given, ready.info, self._values, simulated)
            limits = self._rate.of(given)
            try:
                self._fitted(limits, ready)
            except ValueError as error:
                if not left:
                    raise
                left -= 1
                self._fitted(
                    limits, replace(ready, inference_p99_ms=ready.inference_p99_ms / _BUSY)
                )
                warn(f"{error}; if the machine was busy, that passes: measuring again")
                self._end_worker()
                self._executor = self._worker(spec)
            else:
                return ready

    def _load_corrector(
        self, spec: PolicySpec, ready: PolicyLoaded, ending: threading.Event, log: Any
    ) -> None:
        """Load the corrector's worker, where the execution needs one."""
        needed = Execution(self._values["execution"]) is Execution.CORRECTED
        if needed and ready.info.corrects and not self._lockstep:
            limits = replace(self._worker_limits(), spare=False)
            corrector = CorrectorLink(
                spec, self._clock, limits, log, self._link.warn, ready.info.corrects
            )
            corrector.start(self._values["load_timeout_s"], ending)
            self._corrector = corrector

    def _worker(self, spec: PolicySpec) -> Executor:
        link = self._link
        return Executor(spec, self._clock, self._worker_limits(), link.on_result, link.on_event)

    def _build(
        self,
        node: LifecycleNode,
        spec: PolicySpec,
        limits: Limits,
        ready: PolicyLoaded,
        sim_time: bool,
        persistent: PersistentState,
    ) -> None:
        """Make everything around the loaded worker."""
        values, log = self._values, node.get_logger()
        needs = needs_of(values, ready.info)
        contradiction = check_space(limits.space, ready.info, values["action_space_override"])
        chunking = self._fitted(limits, ready)
        self._set_hang_timeout(limits, ready)
        self.control = make_control(
            limits,
            ready.info,
            self._clock,
            self._link,
            lockstep=self._lockstep,
            sim_time=sim_time,
            detect_frozen=values["detect_frozen"],
            chunking=chunking,
            inference_s=ready.inference_p99_ms / 1e3,
            persistent=persistent,
            corrector=None if self._corrector is None else self._corrector.corrections,
        )
        if self._corrector is not None:
            self._corrector.attach(self.control)
        self.control.loop.goals.topic_preempts = values["allow_topic_preempt"]
        if values["replay_requests_file"]:
            self.control.requests.recorded = read_requests(Path(values["replay_requests_file"]))
        self._link.attach(self._executor, ready, self.control)
        self.control.loop.outputs = joint_outputs(values)
        self._topics.open(values, limits, self._link.warn)
        self._inputs = PolicyInputs(
            node, values, self._clock, self.control, needs, self._topics.camera
        )
        self._takeover = TakeoverInputs(node, self._clock, self.control, values["frame_id"])
        if values["shadow"]:
            self.control.loop.shadow = True
            self._link.shadow = Shadow(node, values, self._clock, self.control)
            log.info(in_shadow(""))
        if values["action_chunk_service"]:
            self._chunks = ActionChunkService(
                node,
                values,
                self._clock,
                self.control,
                self._link,
                needs,
                lambda: self._inputs.turning if self._inputs else frozenset(),
            )
        if values["instruction"]:
            self.control.set_instruction(values["instruction"])
        log.info(
            f"ready: {spec.name}, decoding {ready.info.decoding}, device {ready.info.device},"
            f" worker {ready.pid}, inference {ready.inference_p50_ms:.1f} ms"
            f" (p99 {ready.inference_p99_ms:.1f} ms)"
        )
        self._describe = partial(self._described, node, limits, needs)
        again, assumptions = self._topics.described, self._describe()
        if not again:
            marked = "taken for granted; ? marks a default that nothing says:"
            log.info(f"{marked}\n{table(assumptions)}")
        if chunking.replan_interval not in (values["replan_interval"], ready.info.chunk_length):
            log.info(
                f"of each chunk of {ready.info.chunk_length} actions {chunking.replan_interval} are"
                f" executed, as many as max_age_s {limits.max_age_s:g} allows"
            )
        if self._rate.note:
            log.info(self._rate.note)
        doubts = ready.info.contradiction, contradiction, self._rate.doubt
        for line in filter(None, (*doubts, slower(limits, ready.info))):
            log.warning(f"check this: {line}")

    def _described(
        self, node: LifecycleNode, limits: Limits, streams: FrameStreams
    ) -> list[Assumption]:
        """Publish what is taken for granted, and return it."""

        def writers(topic: str) -> list[str]:
            found = node.get_publishers_info_by_topic(topic)
            return [f"{one.node_namespace.rstrip('/')}/{one.node_name}" for one in found]

        info, resolve = self._link.ready.info, node.resolve_topic_name
        outputs = self._topics.outputs
        robot = of_robot(self._values, info, limits, self._rate, streams, resolve, writers, outputs)
        assumptions = [*of_policy(info), *robot]
        self._topics.describe(message_of(info, assumptions), self._clock.now_ns())
        return assumptions

    def _worker_limits(self) -> WorkerLimits:
        cameras = 2 + len(roles_of(self._values))
        return WorkerLimits(
            load_timeout_s=self._values["load_timeout_s"],
            max_image_bytes=cameras * 3 * self._values["max_image_pixels"],
            spare=self._values["warm_spare"],
        )

    def _abandon(self) -> None:
        """Close what was made of a runtime that could not be built."""
        self._close_inputs()
        self._topics.close()
        self._end_worker()

    # Its life

    def activate(self) -> None:
        """Begin to act, with a new worker where there is none. Raises WorkerGone where none can
        be started."""
        with self.control.lock:
            self._link.need_worker()
            self._topics.begin()
            self.control.activate()
        if self._chunks is not None:
            self._chunks.lost("the policy node was activated")
        period_ns = self.control.loop.limits.period_ns
        if self._sim_time and not self._lockstep:
            period_ns //= CHECKS  # /clock tells when a period has passed
        self._ticker = Ticker(period_ns, self._tick, self._tick_failed, self._scheduling)
        if self.control.loop.limits.actions_a_period == 1.0:
            self._link.ticker = self._ticker  # else no phase holds between arrivals and ticks
        self._ticker.start()
        self._describe()  # by now it is known who publishes

    def deactivate(self) -> None:
        """Nothing is published after this; the outputs, whose readers may go on with what they
        received last, are stopped."""
        self._come_to_rest("the policy node was deactivated")
        with self.control.lock:
            self.control.deactivate()
        self._link.ticker = None
        if self._ticker is not None:
            self._ticker.stop()
            self._ticker = None

    def shut_down(self) -> None:
        """Publish the stop, and wait until its readers have it."""
        self._come_to_rest("the policy node is shutting down")
        with self.control.lock:
            self.control.shut_down()
        self._topics.flush(0.2)

    def _come_to_rest(self, why: str) -> None:
        """Let the ticks decelerate the robot, where the limits do not allow it to stop at once."""
        control = self.control
        if self._ticker is None or not control.loop.limits.acceleration or control.at_rest:
            return
        control.brake(why)
        ends = time.monotonic() + _REST_S
        while not control.at_rest and time.monotonic() < ends:
            time.sleep(control.loop.limits.period_s / 4)

    def recover(self) -> str:
        """Leave FAULT, with a new worker, or HOLD. WrongState: there is nothing to leave."""
        control = self.control
        with control.lock:
            held = control.loop.safety.state in (PolicyState.FAULT, PolicyState.HOLD)
            if not held and not self._link.deserted:
                raise WrongState(f"nothing to recover from: {control.loop.safety.state.name}")
            try:
                self._link.need_worker()
            except WorkerGone as error:
                raise WrongState(str(error)) from None
            control.recover()
        return "recovered: waits for a fresh action"

    def close(self) -> None:
        """End the worker and take the topics away."""
        self.deactivate()
        self._close_inputs()
        self._end_worker()
        self._topics.close()

    def _close_inputs(self) -> None:
        for inputs in (self._inputs, self._takeover, self._chunks, self._link.shadow):
            if inputs is not None:
                inputs.close()

    def _end_worker(self) -> None:
        for worker in (self._executor, self._corrector):
            if worker is not None and not worker.close(0.5):
                self._link.warn("close", "the worker does not end: is it stuck in a driver?")

    def _tick(self, error_ns: int) -> None:
        with self.control.lock:
            self.control.tick()
            self._windows.tick(error_ns, self._clock.steady_ns())

    def _tick_failed(self, error: Exception) -> None:
        self._link.warn("tick", f"control tick failed: {type(error).__name__}: {error}")

    # Limits

    def check(self, given: Limits) -> None:
        """Raise ValueError for limits of the parameters that the loaded policy cannot meet."""
        limits = self._rate.of(given)
        other_rate = limits.control_rate_hz != self.control.loop.limits.control_rate_hz
        if other_rate and self.control.loop.safety.active:
            raise ValueError("control_rate_hz cannot change while active: deactivate first")
        self._fitted(limits, self._link.ready)

    def apply(self, values: Mapping[str, Any], given: Limits) -> None:
        """Use other values from now on; they have passed :meth:`check`."""
        limits = self._rate.of(given)
        if limits.control_rate_hz != self.control.loop.limits.control_rate_hz:
            self._topics.close()  # the deadline that a writer offers cannot change
            self._topics.open(values, limits, self._link.warn)
        self._values = values
        with self.control.lock:
            self.control.loop.limits = limits
            self.control.execute_by(self._fitted(limits, self._link.ready))
            self.control.loop.goals.topic_preempts = values["allow_topic_preempt"]
            self._windows.span(values["latency_window_s"])
        self._set_hang_timeout(limits, self._link.ready)

    def _fitted(self, limits: Limits, ready: PolicyLoaded) -> Chunking:
        """Chunking within these limits. ValueError: they cannot be met."""
        inference_s = 0.0 if self._lockstep else ready.inference_p99_ms / 1e3
        chunking = chunking_of(self._values).fitted(limits, ready.info, inference_s)
        refuse_unless_met(limits, ready.info, inference_s, chunking, joint_outputs(self._values))
        return chunking

    def _set_hang_timeout(self, limits: Limits, ready: PolicyLoaded) -> None:
        given = float(self._values["hang_timeout_s"])
        seconds = given or hang_timeout_s(limits, ready.inference_p99_ms / 1e3, self._load_s)
        self._executor.set_hang_timeout(seconds)
        if self._corrector is not None:
            self._corrector.set_hang_timeout(seconds)

    def _renewed(self, ready: PolicyLoaded) -> None:
        """Take over the times of a worker that replaces another: it may be slower, on a GPU that
        others use by now. Raises ValueError where the limits cannot be met with it. From the
        worker's reader."""
        with self.control.lock:
            limits = self.control.loop.limits
            self._set_hang_timeout(limits, ready)
            self.control.execute_by(self._fitted(limits, ready))
            self.control.loop.inference_s = ready.inference_p99_ms / 1e3

    # Report

    def report_latency(self) -> None:
        with self.control.lock:
            windows = self._windows.copy()
            loop = self.control.loop
            period_ns, missed = loop.limits.action_period_ns, loop.counters.missed_deadlines
        if not loop.safety.active:
            return
        steady_ns = self._clock.steady_ns()
        self._topics.latency(windows.message(steady_ns), self._clock.now_ns())
        if not (self._slow or self._lockstep or self._sim_time):
            self._slow = slower_than_real_time(windows.inference(steady_ns), period_ns, missed)
            if self._slow:
                self._log.warning(self._slow)

    def report_status(self) -> None:
        """Publish the status. Under the loop's lock: a newer one never goes out before it."""
        if not self._built:
            return
        control, link = self.control, self._link
        with control.lock:
            out = status_message(
                control.loop.safety,
                control.loop.instruction,
                link.ready.info,
                control.loop.counters,
                control.loop.limits,
            )
            out.worker_pid = link.worker_pid
            out.worker_restarts = link.worker_restarts
            out.acceptance = link.drafts.shares()
            out.graphs_captured = link.graphs_captured
            out.outputs = list(self._topics.outputs)
            if link.shadow is not None:
                out.reason = in_shadow(out.reason, link.shadow.line)
            self._topics.status(out, self._clock.now_ns(), link.spare)
        self._reported()


def refuse_unless_met(
    limits: Limits,
    info: PolicyInfo,
    inference_s: float,
    chunking: Chunking,
    outputs: JointOutputs = JointOutputs(),
) -> None:
    """Raise ValueError where the policy cannot act on observations as young as ``limits`` want, or
    no trajectory could.

    ``inference_s``: L, the 99th percentile of inference at warm-up; 0 in lock-step, where the
    world waits and inference makes no observation older.
    """
    least = chunking.least_age_s(limits, info, inference_s)
    if limits.max_age_s < least:
        kept = chunking.executed_of(info.chunk_length)
        late = chunking.delay_frames if info.chunk_length > 1 else 0
        longest_s = max(limits.period_s, limits.action_period_s)
        smoothed_ms = limits.smoothing_delay_ns / 1e6
        smoothed = f", smoothing_hz {smoothed_ms:.0f} ms" if smoothed_ms else ""
        raise ValueError(
            f"max_age_s {limits.max_age_s:g} cannot be met: camera period"
            f" {1e3 / limits.camera_rate_hz:.0f} ms, {info.pipeline_depth - 1 + late} frames of"
            f" pipeline and {kept} actions at {longest_s * 1e3:.0f} ms, inference"
            f" {inference_s * 1e3:.0f} ms{smoothed} need at least {least:.3f}"
        )
    if outputs.plans and limits.max_age_s < least + outputs.lead_s:
        raise ValueError(
            f"trajectory_lead_s {outputs.lead_s:g} is longer than what max_age_s"
            f" {limits.max_age_s:g} leaves of an observation, {limits.max_age_s - least:.3f}"
        )


def hang_timeout_s(limits: Limits, inference_s: float, load_s: float) -> float:
    """max(3 L, 5 T, A, 2 s, a quarter of the load time) + T, T the action period, or the control
    period if that is longer: how long a worker may be silent.

    From A on the robot holds still anyway, so killing gains nothing but another worker, after
    ``load_s``: one that is merely slow, on a busy machine or a GPU that others use, is back before.
    """
    period = max(limits.period_s, limits.action_period_s)
    patience_s = max(_LEAST_PATIENCE_S, min(load_s / 4, _MOST_PATIENCE_S))
    return max(3 * inference_s, 5 * period, limits.max_age_s, patience_s) + period
