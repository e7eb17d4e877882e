"""Joints as trajectories: the topic of ros2_control's joint_trajectory_controller."""

from __future__ import annotations

import numpy as np
from builtin_interfaces.msg import Duration
from rclpy.node import Node
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from vla_ros.core import Command, CommandKind, Floats
from vla_ros.nodes.common import qos
from vla_ros.nodes.common.convert import to_time
from vla_ros.nodes.policy.outputs.base import Publishers, Robot
from vla_ros.timing import SECOND

_LEAST = 1e-3  # of a period: a shorter rest of one is no point


class TrajectoryOutput:
    """`~/joint_trajectory`: one message a chunk of actions, which replaces the one before it.

    A point a control period, the first one period after the stamp, and none after the evidence's
    ``valid_until``: the motion ends there, within a period, so a controller that hears nothing
    more cannot run on old evidence. Actions that end earlier are held until then, so a message
    that comes later than they last is followed and not refused as over. The stamp is the
    publication's: a message that comes late is late in it, too. A stop is one point, the measured
    position, a period after its arrival (stamp 0: start now), whatever the clocks say.

    Displacements are added up from where the joints are measured to be.
    """

    def __init__(self, robot: Robot) -> None:
        self._robot = robot
        self._publishers = Publishers()
        self._moves = False
        self._stop: Floats | None = None  # where the stop is that was said last

    def open(self, node: Node) -> None:
        self._publishers.open(node)
        self._topic = self._publishers.make(JointTrajectory, "~/joint_trajectory", qos.ACTION)

    def close(self) -> None:
        self._publishers.close()

    def command(self, command: Command) -> None:
        """A STOP repeats the point of the first one, else a robot would creep with its sag."""
        if command.kind is CommandKind.POLICY:
            self._moves, self._stop = True, None
            if command.plan is not None:
                self._follow(command, command.plan)
        elif command.kind is CommandKind.STOP:
            self._moves = False
            if self._stop is None:
                held = self._robot.limits.space.absolute
                self._stop = self._robot.moving(command.action) if held else self._robot.here()
            self._hold()

    def rest(self, now_ns: int) -> None:
        if self._moves:
            self._moves = False
            self._stop = self._robot.here()
            self._hold()

    def _follow(self, command: Command, plan: Floats) -> None:
        here = self._robot.here()
        rows = self._robot.moving(plan)
        if not self._robot.limits.space.absolute:
            if here is None:
                return
            rows = here + np.cumsum(rows, 0)
        left_s = (command.valid_until_ns - command.published_ns) / SECOND
        points = until(rows, here, self._robot.limits.period_s, left_s)
        if points:
            self._publish(points, command.published_ns)

    def _hold(self) -> None:
        if self._stop is not None:
            self._publish([(self._robot.limits.period_s, self._stop)], 0)

    def _publish(self, points: list[tuple[float, Floats]], stamp_ns: int) -> None:
        message = JointTrajectory(joint_names=self._robot.names)
        message.header.stamp = to_time(stamp_ns)
        message.header.frame_id = self._robot.frame_id
        message.points = [
            JointTrajectoryPoint(positions=row.tolist(), time_from_start=_duration(seconds))
            for seconds, row in points
        ]
        self._topic.publish(message)


def until(
    rows: Floats, here: Floats | None, period_s: float, left_s: float
) -> list[tuple[float, Floats]]:
    """(seconds from the start, positions [M]) of ``rows`` [n, M], one a period, cut off after
    ``left_s``: the period that is cut gets as far as it would by then. Rows that end before are
    held until ``left_s``. ``here`` is where it starts from; None: unknown, and a first period that
    is cut gives nothing."""
    left_s = max(left_s, 0.0)
    whole = min(len(rows), int(left_s / period_s + _LEAST))
    points = [((i + 1) * period_s, rows[i]) for i in range(whole)]
    share = left_s / period_s - whole
    before = rows[whole - 1] if whole else here
    if whole < len(rows) and share > _LEAST and before is not None:
        points.append((left_s, before + share * (rows[whole] - before)))
    elif whole == len(rows) > 0 and share > _LEAST:
        points.append((left_s, rows[-1]))
    return points


def _duration(seconds: float) -> Duration:
    whole, rest = divmod(round(seconds * SECOND), SECOND)
    return Duration(sec=whole, nanosec=rest)
