"""End-effector deltas as velocities: MoveIt Servo's input, one topic an arm."""

from __future__ import annotations

from typing import Any

from geometry_msgs.msg import TwistStamped
from rclpy.node import Node
from std_msgs.msg import Float64

from vla_ros.core import Command, CommandKind, Floats
from vla_ros.nodes.common import qos
from vla_ros.nodes.common.convert import to_time
from vla_ros.nodes.policy.outputs.base import Publishers, Robot


class TwistOutput:
    """`~/twist` is the displacement over one control period, exactly zero from the first period on
    that has no new action; `~/gripper` the opening, 0 closed to 1 open. Of several arms each has
    its own, with the arm's prefix: `~/left_twist`, `~/left_gripper`.

    Servo goes on with the newest twist until its own ``incoming_command_timeout``: that is why one
    is sent, once, when no command comes any more.
    """

    def __init__(self, robot: Robot) -> None:
        self._robot = robot
        self._publishers = Publishers()
        self._moves = False

    def open(self, node: Node) -> None:
        self._publishers.open(node)
        names, make = self._robot.limits.space.names, self._publishers.make
        motion = self._robot.limits.space.motion
        arms = [names[place].removesuffix("x") for place in motion[::6]]
        self._arms = [make(TwistStamped, f"~/{arm}twist", qos.ACTION) for arm in arms]
        places = self._robot.limits.space.grippers
        self._grippers = [make(Float64, f"~/{names[place]}", qos.ACTION) for place in places]

    def close(self) -> None:
        self._publishers.close()

    def command(self, command: Command) -> None:
        self._moves = command.kind is CommandKind.POLICY
        self._publish(self._robot.moving(command.action), command.published_ns)
        places = self._robot.limits.space.grippers
        for gripper, place in zip(self._grippers, places, strict=True):
            gripper.publish(Float64(data=float(command.action[place])))

    def rest(self, now_ns: int) -> None:
        if self._moves:
            self._moves = False
            self._publish(None, now_ns)

    def _publish(self, motion: Floats | None, stamp_ns: int) -> None:
        for arm, publisher in enumerate(self._arms):
            message: Any = TwistStamped()
            message.header.stamp = to_time(stamp_ns)
            message.header.frame_id = self._robot.frame_id
            if motion is not None:
                velocity = (motion[6 * arm : 6 * arm + 6] / self._robot.limits.period_s).tolist()
                linear, angular = message.twist.linear, message.twist.angular
                linear.x, linear.y, linear.z = velocity[:3]
                angular.x, angular.y, angular.z = velocity[3:]
            publisher.publish(message)
