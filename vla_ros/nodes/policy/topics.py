"""What the policy node publishes, apart from when."""

from __future__ import annotations

from geometry_msgs.msg import TwistStamped
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from std_msgs.msg import Float64

from vla_ros.core import GRIPPER, Command, PolicyInfo
from vla_ros.msg import ActionChunk, ActionCommand, Latency, PolicyStatus
from vla_ros.nodes.common import qos
from vla_ros.nodes.common.convert import to_time
from vla_ros.nodes.policy.convert import command_message, twist_message
from vla_ros.safety import Limits
from vla_ros.timing import SECOND


class PolicyTopics:
    """The publishers of the policy node; those of commands exist between open and close."""

    def __init__(self, node: LifecycleNode, frame_id: str, twist: bool) -> None:
        self._node = node
        self._frame_id = frame_id
        self._period_s = 0.0
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
        self._period_s = limits.period_s
        self._action = self._node.create_publisher(ActionCommand, "~/action", profile)
        if self._twist_wanted:
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

    def command(self, command: Command, info: PolicyInfo) -> None:
        if self._action is None:
            return
        self._action.publish(command_message(command, info, self._frame_id))
        if self._twist_wanted:
            self._twist.publish(twist_message(command, self._frame_id, self._period_s))
            self._gripper.publish(Float64(data=float(command.action[GRIPPER])))

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

    def status(self, message: PolicyStatus, now_ns: int) -> None:
        message.header.stamp = to_time(now_ns)
        self._status.publish(message)
