"""What the policy node publishes, apart from when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile

from vla_ros.core import Command, Floats, PolicyInfo
from vla_ros.msg import ActionChunk, ActionCommand, Latency, PolicyStatus
from vla_ros.nodes.common import qos
from vla_ros.nodes.common.convert import to_time
from vla_ros.nodes.common.diagnostics import Diagnostics
from vla_ros.nodes.policy.convert import command_message, diagnostic_of
from vla_ros.nodes.policy.outputs.base import Output, Robot
from vla_ros.nodes.policy.outputs.choose import gripper_ends, make_outputs
from vla_ros.safety import Limits
from vla_ros.timing import SECOND

CAPTURED_S = 10.0  # for so long /diagnostics warns of a graph captured in service


class PolicyTopics:
    """The publishers of the policy node; those of commands exist between open and close."""

    def __init__(self, node: LifecycleNode) -> None:
        self._node = node
        self._frame_id = ""
        self._action: Publisher | None = None
        self._outputs: list[Output] = []
        self._silent = True  # since the last period
        self._status = node.create_publisher(PolicyStatus, "~/status", qos.STATUS)
        self._diagnostics = Diagnostics(node)
        self._last, self._spare = PolicyStatus(), ""
        self._captured, self._captured_ns = 0, 0  # graphs in service, the last time some were
        self._latency = node.create_publisher(Latency, "~/latency", qos.REPORT)
        self._chunk = node.create_publisher(ActionChunk, "~/action_chunk", qos.REPORT)

    def open(
        self,
        values: Mapping[str, Any],
        limits: Limits,
        where: Callable[[], Floats | None],
        warn: Callable[[str, str], None],
    ) -> None:
        """Make the command topics and the outputs; ``where`` and ``warn`` are a
        :class:`~vla_ros.nodes.policy.outputs.base.Robot`'s. A reader of ~/action may ask for a
        deadline of two control periods: that is how it finds out, without a word from us, that
        this process is gone."""
        profile = QoSProfile(
            history=qos.ACTION.history,
            depth=qos.ACTION.depth,
            reliability=qos.ACTION.reliability,
            durability=qos.ACTION.durability,
        )
        if values["mode"] != "lockstep":
            profile.deadline = Duration(nanoseconds=2 * limits.period_ns)
        self._frame_id, self._space = values["frame_id"], limits.space
        self._action = self._node.create_publisher(ActionCommand, "~/action", profile)
        ends = gripper_ends(values, limits.space)
        robot = Robot(limits, self._frame_id, where, ends, warn)
        self._outputs = make_outputs(values, robot)
        for output in self._outputs:
            output.open(self._node)

    def close(self) -> None:
        """Take the command topics away."""
        if self._action is None:
            return
        self._node.destroy_publisher(self._action)
        for output in self._outputs:
            output.close()
        self._outputs = []
        self._action = None

    def command(self, command: Command, info: PolicyInfo) -> None:
        """Under the loop's lock, as :meth:`period` and :meth:`rest`."""
        if self._action is None:
            return
        self._silent = False
        self._action.publish(command_message(command, info, self._space, self._frame_id))
        for output in self._outputs:
            output.command(command)

    def period(self, now_ns: int) -> None:
        """A control period is over: without a command in it the outputs are at rest."""
        if self._silent:
            self.rest(now_ns)
        self._silent = True

    def rest(self, now_ns: int) -> None:
        """No command will come: what an output has set in motion is told to stop."""
        for output in self._outputs:
            output.rest(now_ns)

    def flush(self, seconds: float) -> None:
        """Wait until the last command has reached its readers."""
        if self._action is not None:
            self._action.wait_for_all_acked(Duration(nanoseconds=round(seconds * SECOND)))

    def chunk(self, message: ActionChunk, now_ns: int) -> None:
        message.header.stamp = to_time(now_ns)
        message.header.frame_id = self._frame_id
        self._chunk.publish(message)

    def latency(self, message: Latency, now_ns: int) -> None:
        message.header.stamp = to_time(now_ns)
        self._latency.publish(message)

    def status(self, message: PolicyStatus, now_ns: int, spare: str = "") -> None:
        """``spare``: how a spare worker is, for /diagnostics alone; "": none is wanted."""
        message.header.stamp = to_time(now_ns)
        self._status.publish(message)
        if message.graphs_captured > self._last.graphs_captured:
            self._captured = message.graphs_captured - self._last.graphs_captured
            self._captured_ns = now_ns
        elif not 0 <= now_ns - self._captured_ns < CAPTURED_S * SECOND:
            self._captured = 0
        self._last, self._spare = message, spare

    def diagnose(self) -> None:
        """The last status once more, for those who watch /diagnostics."""
        self._diagnostics.say(diagnostic_of(self._last, self._spare, self._captured))
