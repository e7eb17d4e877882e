"""Joints as an array a period: forward_command_controller's topic, for arms and for grippers."""

from __future__ import annotations

from rclpy.node import Node
from std_msgs.msg import Float64MultiArray

from vla_ros.core import Command, CommandKind, Floats
from vla_ros.nodes.common import qos
from vla_ros.nodes.policy.outputs.base import Publishers, Robot


class PositionsOutput:
    """`~/positions`: where the joints are to be at the end of this period, in rad, in the order of
    the action's names, grippers left out. Such a controller holds what it was told last.

    Displacements are added to where the joints are measured to be.
    """

    def __init__(self, robot: Robot) -> None:
        self._robot = robot
        self._publishers = Publishers()
        self._moves = False
        self._last: Floats | None = None

    def open(self, node: Node) -> None:
        self._publishers.open(node)
        self._topic = self._publishers.make(Float64MultiArray, "~/positions", qos.ACTION)

    def close(self) -> None:
        self._publishers.close()

    def command(self, command: Command) -> None:
        stopped = not self._moves
        self._moves = command.kind is CommandKind.POLICY
        motion = self._robot.moving(command.action)
        if self._robot.limits.space.absolute:
            self._last = motion
        elif self._moves:
            here = self._robot.here()
            self._last = None if here is None else here + motion
        elif command.kind is CommandKind.STOP and not stopped:
            self._last = self._robot.here()
        self._publish()

    def rest(self, now_ns: int) -> None:
        if self._moves:
            self._moves = False
            self._last = self._robot.here()
            self._publish()

    def _publish(self) -> None:
        if self._last is not None:
            self._topic.publish(Float64MultiArray(data=self._last.tolist()))


class GripperPositions:
    """`~/gripper_positions`: the grippers' own joints in the order of the action's names, in the
    unit of ``gripper_range``. A gripper keeps what it was told last."""

    def __init__(self, robot: Robot) -> None:
        self._robot = robot
        self._publishers = Publishers()

    def open(self, node: Node) -> None:
        self._publishers.open(node)
        self._topic = self._publishers.make(Float64MultiArray, "~/gripper_positions", qos.ACTION)

    def close(self) -> None:
        self._publishers.close()

    def command(self, command: Command) -> None:
        self._topic.publish(Float64MultiArray(data=self._robot.openings(command.action)))

    def rest(self, now_ns: int) -> None:
        """Nothing: it stays as it is."""
