"""What the policy node publishes, apart from when: topics, windows and throttled warnings."""

from __future__ import annotations

import time
from collections import deque

from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from std_msgs.msg import Float64

from vla_ros.control import ControlCounts
from vla_ros.control.queue import Answer
from vla_ros.core import ACTION_DIM, GRIPPER, STAGES, Command, Instruction, PolicyInfo
from vla_ros.msg import ActionChunk, ActionCommand, Latency, PolicyStatus
from vla_ros.nodes.common import qos
from vla_ros.nodes.common.convert import to_time
from vla_ros.nodes.policy import convert
from vla_ros.safety import Limits, Safety
from vla_ros.timing import MS, SECOND, Window

_INFERENCE = ("preprocess", "vision", "prefill", "decode")


class Throttle:
    """Lets a kind of warning through at most once a second, and counts what it held back."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._held: dict[str, int] = {}

    def text(self, kind: str, text: str) -> str | None:
        """The line to log now, or None."""
        now = time.monotonic()
        if now - self._last.get(kind, -1.0) < 1.0:
            self._held[kind] = self._held.get(kind, 0) + 1
            return None
        self._last[kind] = now
        held = self._held.pop(kind, 0)
        return f"{text} (and {held} more like it)" if held else text


class LatencyWindows:
    """Sliding windows of every stage, keyed by the field names of Latency.msg."""

    def __init__(self, seconds: float) -> None:
        names = (*STAGES, "total", "inference", "tick_error")
        self._windows = {name: Window(seconds) for name in names}
        self._seconds = seconds
        self.last: Command | None = None

    def command(self, command: Command, steady_ns: int) -> None:
        """Account for one new action; its stages may have been measured a chunk ago."""
        self.last = command
        if command.chunk_index == 0:
            for stage, duration in command.stages_ms.items():
                self._windows[stage].add(steady_ns, duration)
            spent = sum(command.stages_ms[stage] for stage in _INFERENCE)
            self._windows["inference"].add(steady_ns, spent)
        self._windows["total"].add(steady_ns, command.total_ms)

    def tick(self, error_ns: int, steady_ns: int) -> None:
        self._windows["tick_error"].add(steady_ns, error_ns / MS)

    def message(self, steady_ns: int) -> Latency:
        found = {name: w.distribution(steady_ns) for name, w in self._windows.items()}
        return convert.latency_message(found, self.last, self._seconds)


class DraftShares:
    """Share of the draft tokens that were accepted, per action dimension, last 200 actions."""

    def __init__(self) -> None:
        self._seen: deque[tuple[tuple[int, ...], tuple[int, ...]]] = deque(maxlen=200)

    def add(self, answer: Answer) -> None:
        if answer.inference.drafted:
            self._seen.append((answer.inference.drafted, answer.inference.accepted))

    def shares(self) -> list[float]:
        if not self._seen:
            return []
        dims = range(min(ACTION_DIM, len(self._seen[-1][0])))
        drafted = [sum(d[i] for d, _ in self._seen if i < len(d)) for i in dims]
        accepted = [sum(a[i] for _, a in self._seen if i < len(a)) for i in dims]
        return [a / d if d else 0.0 for a, d in zip(accepted, drafted, strict=True)]


class PolicyTopics:
    """The publishers of the policy node."""

    def __init__(self, node: LifecycleNode, frame_id: str, twist: bool) -> None:
        self._node = node
        self._frame_id = frame_id
        self._action: Publisher | None = None
        self._twist_wanted = twist
        self._status = node.create_publisher(PolicyStatus, "~/status", qos.LATCHED)
        self._latency = node.create_publisher(Latency, "~/latency", qos.REPORT)
        self._chunk = node.create_publisher(ActionChunk, "~/action_chunk", qos.REPORT)

    def open(self, limits: Limits, clocked: bool) -> None:
        """Make the command topics. A reader may ask for a deadline of two control periods:
        that is how it finds out, without a word from us, that this process is gone."""
        profile = QoSProfile(
            history=qos.ACTION.history,
            depth=qos.ACTION.depth,
            reliability=qos.ACTION.reliability,
            durability=qos.ACTION.durability,
        )
        if clocked:
            profile.deadline = Duration(nanoseconds=2 * limits.period_ns)
        self._action = self._node.create_publisher(ActionCommand, "~/action", profile)
        if self._twist_wanted:
            from geometry_msgs.msg import TwistStamped

            self._twist = self._node.create_publisher(TwistStamped, "~/twist", qos.ACTION)
            self._gripper = self._node.create_publisher(Float64, "~/gripper", qos.ACTION)

    def close(self) -> None:
        """Take the command topics away."""
        if self._action is None:
            return
        self._node.destroy_publisher(self._action)
        if self._twist_wanted:
            self._node.destroy_publisher(self._twist)
            self._node.destroy_publisher(self._gripper)
        self._action = None

    def command(self, command: Command, info: PolicyInfo, period_s: float) -> None:
        if self._action is None:
            return
        self._action.publish(convert.command_message(command, info, self._frame_id))
        if self._twist_wanted:
            self._twist.publish(convert.twist_message(command, self._frame_id, period_s))
            self._gripper.publish(Float64(data=float(command.action[GRIPPER])))

    def flush(self, seconds: float) -> None:
        """Wait until the last command has reached its readers."""
        if self._action is not None:
            self._action.wait_for_all_acked(Duration(nanoseconds=round(seconds * SECOND)))

    def chunk(self, message: ActionChunk, now_ns: int) -> None:
        message.header.stamp = to_time(now_ns)
        message.header.frame_id = self._frame_id
        self._chunk.publish(message)

    def latency(self, windows: LatencyWindows, now_ns: int, steady_ns: int) -> None:
        message = windows.message(steady_ns)
        message.header.stamp = to_time(now_ns)
        self._latency.publish(message)

    def status(self, message: PolicyStatus) -> None:
        self._status.publish(message)


def status_message(
    safety: Safety,
    instruction: Instruction,
    info: PolicyInfo,
    counters: ControlCounts,
    limits: Limits,
) -> PolicyStatus:
    """The part of the status that follows from the loop's state; the caller stamps it."""
    out = PolicyStatus(state=int(safety.state), reason=safety.reason)
    out.policy, out.schedule = info.name, info.schedule
    out.checkpoint, out.checkpoint_sha256 = info.checkpoint, info.checkpoint_sha256
    out.device, out.dtype = info.device, info.dtype
    out.pipeline_depth, out.chunk_length = info.pipeline_depth, info.chunk_length
    out.instruction, out.epoch = instruction.text, instruction.epoch
    out.control_rate_hz, out.max_age_ms = limits.control_rate_hz, limits.max_age_s * 1e3
    for name in ControlCounts.__slots__:
        setattr(out, name, getattr(counters, name))
    return out
