"""Publishers of the policy node, its latency windows, and its messages."""

from __future__ import annotations

import array
from collections import deque
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode
from rclpy.publisher import Publisher
from sensor_msgs.msg import TimeReference

from vla_ros.core.action_space import ActionSpace
from vla_ros.core.clock import MS, SECOND, Distribution, Moment, Window
from vla_ros.core.types import (
    ACTION_DIM,
    INFERENCE_STAGES,
    SHADOW,
    STAGES,
    Command,
    Instruction,
    PolicyInfo,
    PolicyState,
)
from vla_ros.msg import (
    ActionChunk,
    ActionCommand,
    Latency,
    PolicyDescription,
    PolicyStatus,
    Stages,
)
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import Diagnostics, set_time, set_times, status, to_time
from vla_ros.ros.common.text import make_printable
from vla_ros.ros.nodes.policy.outputs import (
    Output,
    OutputSpace,
    arms_of,
    gripper_ends,
    make_outputs,
    wait_for_readers,
)
from vla_ros.runtime.control.queue import PolicyAnswer
from vla_ros.runtime.control.state import ControlCounts
from vla_ros.runtime.safety import Limits, Safety
from vla_ros.runtime.worker.wire import WorkerResult

CAPTURED_S = 10.0  # for so long /diagnostics warns of a graph captured in service

#: fields of the status that are values of /diagnostics
_DIAGNOSED = (
    "policy",
    "decoding",
    "checkpoint",
    "device",
    "instruction",
    "worker_pid",
    "worker_restarts",
    "frames_received",
    "frames_dropped",
    "last_drop",
    "actions_published",
    "missed_deadlines",
    "actions_blocked",
    "last_block",
    "actions_clamped",
    "graphs_captured",
)


class PolicyTopics:
    """The publishers of the policy node; those of commands exist between open and close."""

    def __init__(self, node: LifecycleNode) -> None:
        self._node = node
        self._frame_id = ""
        self._action: Publisher | None = None
        self._outputs: list[Output] = []
        #: full names of the topics that commands go to beside ~/action
        self.outputs: tuple[str, ...] = ()
        self._status = node.create_publisher(PolicyStatus, "~/status", qos.STATUS)
        self.described = False  # since this node began
        self._description = node.create_publisher(PolicyDescription, "~/description", qos.LATCHED)
        self._diagnostics = Diagnostics(node)
        self._last, self._spare = PolicyStatus(), ""
        self._captured, self._captured_ns = 0, 0  # graphs in service, the last time some were
        self._latency = node.create_publisher(Latency, "~/latency", qos.REPORT)
        self._camera = node.create_publisher(TimeReference, "~/camera", qos.REPORT)
        self._chunk = node.create_publisher(ActionChunk, "~/action_chunk", qos.REPORT)

    def open(
        self,
        values: Mapping[str, Any],
        limits: Limits,
        warn: Callable[[str, str], None],
    ) -> None:
        """Make the command topics and the outputs; ``warn`` is that of a
        :class:`~vla_ros.ros.nodes.policy.outputs.OutputSpace`. A reader of ~/action may ask for a
        deadline of two control periods: that is how it finds out, without a message, that this
        process is gone.

        In the shadow this is where nothing gets out: there is no publisher but that of
        ~/shadow/action, for whatever would move something. ValueError: that one is remapped.
        """
        profile = qos.copy(qos.ACTION)
        if values["mode"] != "lockstep":
            profile.deadline = Duration(nanoseconds=2 * limits.period_ns)
        self._frame_id = values["frame_id"]
        self._messages = CommandMessages(limits.space, self._frame_id)
        if values["shadow"]:
            self._refuse_remapped()
            self._action = self._node.create_publisher(ActionCommand, "~/shadow/action", profile)
            return
        self._action = self._node.create_publisher(ActionCommand, "~/action", profile)
        ends = gripper_ends(values, limits.space)
        robot = OutputSpace(
            limits.space, limits.period_s, self._frame_id, ends, warn, arms_of(values)
        )
        self._outputs = make_outputs(values, robot)
        for output in self._outputs:
            output.open(self._node)
        topics = (publisher for output in self._outputs for publisher in output.publishers)
        self.outputs = tuple(publisher.topic_name for publisher in topics)

    def _refuse_remapped(self) -> None:
        for topic in ("~/shadow/action", "~/shadow/difference"):
            there = self._node.resolve_topic_name(topic)
            if there != self._node.resolve_topic_name(topic, only_expand=True):
                raise ValueError(
                    f"shadow: {topic} is remapped to {there}, and in the shadow nothing of ours may"
                    " reach a robot: take that remapping away"
                )

    def close(self) -> None:
        """Destroy the publishers of commands."""
        if self._action is None:
            return
        self._node.destroy_publisher(self._action)
        for output in self._outputs:
            output.close()
        self._outputs, self.outputs = [], ()
        self._action = None

    def begin(self) -> None:
        """Begin an active period: outputs forget their last command. Under the loop's lock, as the
        next two."""
        for output in self._outputs:
            output.begin()

    def command(self, command: Command, info: PolicyInfo) -> None:
        if self._action is None:
            return
        self._action.publish(self._messages.of(command, info))
        for output in self._outputs:
            output.command(command)

    def rest(self, command: Command) -> None:
        """Bring the outputs to rest, in a period without a command."""
        for output in self._outputs:
            output.command(command)

    def flush(self, seconds: float) -> bool:
        """Wait until the readers of ~/action and of the outputs have the last command; False: not
        within ``seconds``."""
        outputs = [publisher for output in self._outputs for publisher in output.publishers]
        return self._action is None or wait_for_readers([self._action, *outputs], seconds)

    def chunk(self, message: ActionChunk, now_ns: int) -> None:
        message.header.stamp = to_time(now_ns)
        message.header.frame_id = self._frame_id
        self._chunk.publish(message)

    def latency(self, message: Latency, now_ns: int) -> None:
        message.header.stamp = to_time(now_ns)
        self._latency.publish(message)

    def camera(self, topic: str, stamp_ns: int, received: Moment) -> None:
        """Publish the stamp and receipt of an image of the main camera: who monitors it needs no
        pixels, nor its topic, transport and reliability."""
        message = TimeReference(time_ref=to_time(stamp_ns), source=topic)
        message.header.stamp = to_time(received.now_ns)
        self._camera.publish(message)

    def status(self, message: PolicyStatus, now_ns: int, spare: str = "") -> None:
        """Stamp and publish a status. ``spare``: state of the spare worker, for /diagnostics alone;
        "": none is wanted."""
        message.header.stamp = to_time(now_ns)
        make_printable(message)
        self._status.publish(message)
        if message.graphs_captured > self._last.graphs_captured:
            self._captured = message.graphs_captured - self._last.graphs_captured
            self._captured_ns = now_ns
        elif not 0 <= now_ns - self._captured_ns < CAPTURED_S * SECOND:
            self._captured = 0
        self._last, self._spare = message, spare

    def describe(self, message: PolicyDescription, now_ns: int) -> None:
        """Stamp and publish what is taken for granted."""
        message.header.stamp = to_time(now_ns)
        for part in (message, *message.assumptions):
            make_printable(part)
        self._description.publish(message)
        self.described = True

    def diagnose(self) -> None:
        """Publish the last status on /diagnostics."""
        self._diagnostics.publish(diagnostic_of(self._last, self._spare, self._captured))


class LatencyWindows:
    """Sliding windows of every stage, keyed by the field names of Latency.msg."""

    def __init__(self, seconds: float) -> None:
        names = (*STAGES, "total", "inference", "tick_error")
        self._windows = {name: Window(seconds) for name in names}
        self._seconds = seconds
        self._last: Command | None = None

    def span(self, seconds: float) -> None:
        """Use windows of this length from now on."""
        self._seconds = seconds
        for window in self._windows.values():
            window.seconds = seconds

    def command(self, command: Command, steady_ns: int) -> None:
        """Account for one new action; its stages may have been measured a chunk ago."""
        first = self._last is None or self._last.stamp_ns != command.stamp_ns
        self._last = command
        if first:
            for stage, duration in command.stages_ms.items():
                self._windows[stage].add(steady_ns, duration)
            spent = sum(command.stages_ms[stage] for stage in INFERENCE_STAGES)
            self._windows["inference"].add(steady_ns, spent)
        self._windows["total"].add(steady_ns, command.total_ms)

    def tick(self, error_ns: int, steady_ns: int) -> None:
        self._windows["tick_error"].add(steady_ns, error_ns / MS)

    def copy(self) -> LatencyWindows:
        """A snapshot: percentiles of 20,000 samples take longer than the loop may wait."""
        other = LatencyWindows(self._seconds)
        other._windows = {name: window.copy() for name, window in self._windows.items()}
        other._last = self._last
        return other

    def inference(self, steady_ns: int) -> Distribution:
        """Times of inference, in ms."""
        return self._windows["inference"].distribution(steady_ns)

    def message(self, steady_ns: int) -> Latency:
        found = {name: w.distribution(steady_ns) for name, w in self._windows.items()}
        return latency_message(found, self._last, self._seconds)


class DraftShares:
    """Share of the draft tokens that were accepted, per action dimension, last 200 actions."""

    def __init__(self) -> None:
        self._seen: deque[tuple[tuple[int, ...], tuple[int, ...]]] = deque(maxlen=200)

    def add(self, answer: PolicyAnswer) -> None:
        if answer.inference.drafted:
            self._seen.append((answer.inference.drafted, answer.inference.accepted))

    def shares(self) -> list[float]:
        if not self._seen:
            return []
        dims = range(min(ACTION_DIM, len(self._seen[-1][0])))
        drafted = [sum(d[i] for d, _ in self._seen if i < len(d)) for i in dims]
        accepted = [sum(a[i] for _, a in self._seen if i < len(a)) for i in dims]
        return [a / d if d else 0.0 for a, d in zip(accepted, drafted, strict=True)]


# Messages


_STAGE_FIELDS = tuple((stage, f"{stage}_s") for stage in STAGES)


def _set_stages(out: Stages, command: Command) -> Stages:
    spent_ms = command.stages_ms
    for stage, field in _STAGE_FIELDS:
        setattr(out, field, spent_ms.get(stage, 0.0) / 1e3)
    out.total_s = command.total_ms / 1e3
    return out


class CommandMessages:
    """The messages of commands that have passed the gate, numbers of ``space``. One message is made
    and filled again and again: a publisher keeps none. Not thread-safe."""

    def __init__(self, space: ActionSpace, frame_id: str) -> None:
        self._message, self._width, self._motion = ActionCommand(), space.width, space.motion
        self._info: PolicyInfo | None = None
        self._message.header.frame_id = frame_id
        self._message.action_space = int(space.kind)
        self._message.names, self._message.units = list(space.names), list(space.units)

    def of(self, command: Command, info: PolicyInfo) -> ActionCommand:
        """The message of a command, until the next call. Raises ValueError unless all numbers are
        finite but for those of grippers that were neither commanded nor measured."""
        out, numbers = self._message, command.action.tolist()
        if len(numbers) != self._width or not all(isfinite(numbers[i]) for i in self._motion):
            raise ValueError(f"command is not {self._width} finite numbers: {command.action}")
        if info is not self._info:  # another worker has loaded
            out.pipeline_depth, out.decoding, self._info = info.pipeline_depth, info.decoding, info
        set_time(out.header.stamp, command.published_ns)
        set_time(out.observation_stamp, command.stamp_ns)
        set_time(out.receive_stamp, command.received_ns)
        set_time(out.latest_observation_stamp, command.latest_ns)
        set_time(out.correction_stamp, command.corrected_ns)
        set_time(out.valid_until, command.valid_until_ns)
        out.sequence = command.sequence
        out.epoch = command.epoch
        out.kind = int(command.kind)
        out.chunk_index = command.chunk_index
        out.chunk_length = command.chunk_length
        out.action_phase = command.action_phase
        out.staleness_s = command.staleness_ns / SECOND
        out.instruction_hash = command.instruction_digest
        out.action = array.array("d", numbers)
        _set_stages(out.stages, command)
        return out


def chunk_message(
    answer: PolicyAnswer, result: WorkerResult, info: PolicyInfo, limits: Limits
) -> ActionChunk:
    """Message of one inference; the caller stamps it."""
    inference = answer.inference
    out = ActionChunk()
    out.observation_stamp = to_time(inference.stamp_ns)
    out.receive_stamp = to_time(answer.received_ns)
    out.epoch = result.epoch
    out.decoding = info.decoding
    out.instruction_hash = result.instruction_digest
    out.length = len(inference.actions)
    out.period_s = limits.action_period_s
    if (before := inference.continues) is not None:
        out.previous_stamp = to_time(before.stamp_ns)
        out.previous_index, out.delay_steps = before.index, before.delay_steps
    out.conditioning_delay = inference.conditioning_delay
    out.action_space, out.width = int(limits.space.kind), inference.actions.shape[-1]
    out.names, out.units = list(limits.space.names), list(limits.space.units)
    out.actions = inference.actions.ravel().tolist()
    out.tokens = list(inference.tokens)
    out.target_passes = inference.target_passes
    out.draft_passes = inference.draft_passes
    out.drafted = list(inference.drafted)
    out.accepted = list(inference.accepted)
    spent_ms = inference.timeline.durations_ms()
    out.inference_s = sum(spent_ms.get(stage, 0.0) for stage in INFERENCE_STAGES) / 1e3
    return out


def latency_message(
    windows: dict[str, Distribution], last: Command | None, window_s: float
) -> Latency:
    """Stage latencies over a window; ``windows``, in ms, is keyed by the message's field names
    without their unit."""
    out = Latency(window_s=window_s)
    if last is not None:
        _set_stages(out.last, last)
    for name, distribution in windows.items():
        set_times(out, name, distribution)
    return out


def idle_message(safety: Safety, values: Mapping[str, Any]) -> PolicyStatus:
    """The status of a node that is not configured, from its parameters; the caller stamps it."""
    out = PolicyStatus(state=int(safety.state), reason=safety.said)
    if values["shadow"]:
        out.reason = in_shadow(safety.said)
    out.policy, out.decoding, out.checkpoint = (
        values[name] for name in ("policy", "decoding", "checkpoint")
    )
    out.action_rate_hz = values["action_rate_hz"]
    out.control_rate_hz, out.max_age_s = values["control_rate_hz"], values["max_age_s"]
    return out


def in_shadow(reason: str, line: str = "") -> str:
    """The reason of a state in the shadow; ``line``: how far the policy is from the person."""
    parts = [f"{SHADOW}nothing of ours moves the robot", *filter(None, [line])]
    return "; ".join([*filter(None, [reason]), *parts])


def status_message(
    safety: Safety,
    instruction: Instruction,
    info: PolicyInfo,
    counters: ControlCounts,
    limits: Limits,
) -> PolicyStatus:
    """The part of the status that follows from the loop's state; the caller stamps it."""
    out = PolicyStatus(state=int(safety.state), reason=safety.said)
    out.policy, out.decoding = info.name, info.decoding
    out.checkpoint, out.checkpoint_sha256 = info.checkpoint, info.checkpoint_sha256
    out.device, out.dtype = info.device, info.dtype
    out.pipeline_depth, out.chunk_length = info.pipeline_depth, info.chunk_length
    out.instruction, out.epoch = instruction.text, instruction.epoch
    out.action_rate_hz = 1.0 / limits.action_period_s
    out.control_rate_hz, out.max_age_s = limits.control_rate_hz, limits.max_age_s
    for name in ControlCounts.__slots__:
        setattr(out, name, getattr(counters, name))
    return out


def diagnostic_of(message: PolicyStatus, spare: str = "", captured: int = 0) -> DiagnosticStatus:
    """The node's state for /diagnostics. A robot in HOLD or FAULT does not do its task: error.
    ``spare``: state of its spare worker; "": none is wanted. ``captured``: CUDA graphs that were
    captured lately, while the robot waited for them."""
    state = PolicyState(message.state)
    bad = state in (PolicyState.HOLD, PolicyState.FAULT)
    idle = state in (PolicyState.UNCONFIGURED, PolicyState.WAITING)
    values = {name: getattr(message, name) for name in _DIAGNOSED}
    if spare:
        values["spare_worker"] = spare
    summary = f"{state.name}: {message.reason}" if message.reason else state.name
    if captured:
        summary += f"; {captured} CUDA graphs captured in service, each while the robot waited"
    return status(2 if bad else int(idle or captured > 0), "state", summary, values.items())
