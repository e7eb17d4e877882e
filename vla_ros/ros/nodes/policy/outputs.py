"""What robots take of a command beside ~/action: twists, trajectories, positions, grippers."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from builtin_interfaces.msg import Duration
from geometry_msgs.msg import TwistStamped
from rclpy.action import ActionClient
from rclpy.node import Node
from std_msgs.msg import Float64, Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from vla_ros.core.action_space import ActionKind, ActionSpace
from vla_ros.core.clock import SECOND
from vla_ros.core.types import Command, CommandKind, Floats
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import to_time
from vla_ros.runtime.safety import Limits

OUTPUTS = ("twist", "trajectory", "positions", "gripper")
ACTIONS = ("GripperCommand", "ParallelGripperCommand")
_OF_JOINTS = ("trajectory", "positions")
_LEAST = 1e-3  # of an opening: less is no other goal; of a period: a shorter rest is no point


@dataclass(frozen=True, slots=True)
class Robot:
    """``limits`` have the action space and the period, ``frame_id`` is the frame of displacements
    and poses. ``where``: the measured place of every number, float64 [D], grippers 0; None where
    there is no recent measurement. ``gripper_ends``: of each gripper the values that its controller
    takes for 0 (closed) and 1 (open). ``warn(kind, text)`` logs, throttled by kind."""

    limits: Limits
    frame_id: str
    where: Callable[[], Floats | None]
    gripper_ends: tuple[tuple[float, float], ...]
    warn: Callable[[str, str], None]

    def moving(self, action: Floats) -> Floats:
        """The numbers that move the arms, float64 [..., M], of an action [..., D]."""
        out: Floats = action[..., list(self.limits.space.motion)]
        return out

    @property
    def names(self) -> list[str]:
        """Of what :meth:`moving` gives."""
        return [self.limits.space.names[place] for place in self.limits.space.motion]

    def here(self) -> Floats | None:
        """Where the joints are, float64 [M]; None (and a warning) without a recent measurement."""
        where = self.where()
        if where is None:
            self.warn("where", "nothing fresh on joint_states: no output to the joints")
            return None
        return self.moving(where)

    def openings(self, action: Floats) -> list[float]:
        """Each gripper's number as its controller takes it."""
        values = zip(self.limits.space.grippers, self.gripper_ends, strict=True)
        return [float(np.interp(action[place], (0.0, 1.0), ends)) for place, ends in values]


class Output(ABC):
    """One way to command a robot, from :meth:`open` to :meth:`close`. Not thread-safe: the calls
    come under the control loop's lock."""

    def __init__(self, robot: Robot) -> None:
        self._robot = robot
        self._node: Node | None = None
        self._publishers: list[Any] = []

    def open(self, node: Node) -> None:
        """Make what publishes."""
        self._node = node

    def close(self) -> None:
        """Take it away."""
        for publisher in self._publishers:
            assert self._node is not None
            self._node.destroy_publisher(publisher)
        self._publishers.clear()

    @abstractmethod
    def command(self, command: Command) -> None:
        """A command has passed the gate, one a control period."""

    def rest(self, now_ns: int) -> None:
        """A period without a command, or none will come: what was set in motion stops, if it has
        not been stopped yet. A gripper stays as it is."""

    def _publisher(self, kind: Any, topic: str) -> Any:
        assert self._node is not None
        self._publishers.append(self._node.create_publisher(kind, topic, qos.ACTION))
        return self._publishers[-1]


class TwistOutput(Output):
    """`~/twist` is the displacement over one control period, exactly zero from the first period on
    that has no new action; `~/gripper` the opening, 0 closed to 1 open. Of several arms each has
    its own, with the arm's prefix: `~/left_twist`, `~/left_gripper`.

    Servo goes on with the newest twist until its own ``incoming_command_timeout``: that is why one
    is sent, once, when no command comes any more.
    """

    def __init__(self, robot: Robot) -> None:
        super().__init__(robot)
        self._moves = False

    def open(self, node: Node) -> None:
        super().open(node)
        names, make = self._robot.limits.space.names, self._publisher
        motion = self._robot.limits.space.motion
        arms = [names[place].removesuffix("x") for place in motion[::6]]
        self._arms = [make(TwistStamped, f"~/{arm}twist") for arm in arms]
        places = self._robot.limits.space.grippers
        self._grippers = [make(Float64, f"~/{names[place]}") for place in places]

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


class TrajectoryOutput(Output):
    """`~/joint_trajectory`: one message a chunk of actions, which replaces the one before it.

    A point a control period, the first one period after the stamp, and none after the command's
    ``valid_until``: the motion ends there, within a period, so a controller that hears nothing
    more cannot run on an old observation. Actions that end earlier are held until then, so a
    message that comes later than they last is followed and not refused as over. The stamp is the
    publication's: a message that comes late is late in it, too. A stop is one point, the measured
    position, a period after its arrival (stamp 0: start now), whatever the clocks say.

    Displacements are added up from where the joints are measured to be.
    """

    def __init__(self, robot: Robot) -> None:
        super().__init__(robot)
        self._moves = False
        self._stop: Floats | None = None  # the point of the stop that was published last

    def open(self, node: Node) -> None:
        super().open(node)
        self._topic = self._publisher(JointTrajectory, "~/joint_trajectory")

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


class PositionsOutput(Output):
    """`~/positions`: where the joints are to be at the end of this period, in rad, in the order of
    the action's names, grippers left out. Such a controller holds what it received last.

    Displacements are added to where the joints are measured to be.
    """

    def __init__(self, robot: Robot) -> None:
        super().__init__(robot)
        self._moves = False
        self._last: Floats | None = None

    def open(self, node: Node) -> None:
        super().open(node)
        self._topic = self._publisher(Float64MultiArray, "~/positions")

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


class GripperPositions(Output):
    """`~/gripper_positions`: the grippers' own joints in the order of the action's names, in the
    unit of ``gripper_range``. A gripper keeps what it received last."""

    def open(self, node: Node) -> None:
        super().open(node)
        self._topic = self._publisher(Float64MultiArray, "~/gripper_positions")

    def command(self, command: Command) -> None:
        self._topic.publish(Float64MultiArray(data=self._robot.openings(command.action)))


class GripperOutput(Output):
    """A goal to the action server `~/<the gripper's name>_cmd` whenever its number has changed.

    The gate has held it still by then: see ``gripper_hysteresis`` and ``gripper_dwell_s``. A goal
    replaces the one before it; its result is not looked at.
    """

    def __init__(self, robot: Robot, action: str, max_effort: float) -> None:
        super().__init__(robot)
        self._kind = getattr(control_msgs(), action)
        self._parallel = action == "ParallelGripperCommand"
        self._max_effort = max_effort
        self._clients: list[ActionClient] = []
        self._told: list[float] = []

    def open(self, node: Node) -> None:
        space = self._robot.limits.space
        names = [space.names[place] for place in space.grippers]
        self._clients = [ActionClient(node, self._kind, f"~/{name}_cmd") for name in names]
        self._told = [float("nan")] * len(names)

    def close(self) -> None:
        for client in self._clients:
            client.destroy()
        self._clients = []

    def command(self, command: Command) -> None:
        space = self._robot.limits.space
        positions = self._robot.openings(command.action)
        for i, (client, place) in enumerate(zip(self._clients, space.grippers, strict=True)):
            opening = float(command.action[place])
            if abs(opening - self._told[i]) < _LEAST:
                continue
            if not client.server_is_ready():
                self._robot.warn("gripper", f"nobody takes goals for {space.names[place]!r}")
                continue
            self._told[i] = opening
            client.send_goal_async(self._goal(space.names[place], positions[i]))

    def _goal(self, name: str, position: float) -> Any:
        goal = self._kind.Goal()
        if self._parallel:
            goal.command.name, goal.command.position = [name], [position]
            goal.command.effort = [self._max_effort] if self._max_effort else []
        else:
            goal.command.position, goal.command.max_effort = position, self._max_effort
        return goal


def control_msgs() -> Any:
    """The actions of control_msgs. ValueError, in one line, where it cannot be imported."""
    try:
        return importlib.import_module("control_msgs.action")
    except ImportError as error:
        raise ValueError(
            f"outputs 'gripper' needs the ROS package control_msgs ({error}): install it, or use"
            " ~/gripper_positions of 'trajectory' and 'positions', or ~/gripper of 'twist'"
        ) from None


def wanted(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the outputs, each once."""
    return tuple(dict.fromkeys(filter(None, values["outputs"])))


def check_outputs(values: Mapping[str, Any], space: ActionSpace) -> None:
    """Raise ValueError, in one line, for outputs that cannot express the action space."""
    names, kind = wanted(values), space.kind
    if strange := [name for name in names if name not in OUTPUTS]:
        raise ValueError(f"outputs has '{strange[0]}', must be of {', '.join(OUTPUTS)}")
    if "twist" in names and kind is not ActionKind.END_EFFECTOR_DELTA:
        raise ValueError(
            "the twist output needs action_space end_effector_delta: nothing else is a velocity"
            " of the end effector"
        )
    for name in _OF_JOINTS:
        if name in names and not kind.joints:
            raise ValueError(
                f"the {name} output needs action_space joint_position or joint_delta: of an end"
                " effector only somebody knows the joints who knows the arm, as MoveIt Servo does"
            )
    if "gripper" in names:
        control_msgs()
        if not space.grippers:
            raise ValueError("the gripper output needs gripper_names: the action has no gripper")
    gripper_ends(values, space)


def gripper_ends(values: Mapping[str, Any], space: ActionSpace) -> tuple[tuple[float, float], ...]:
    """(closed, open) a gripper, in its controller's unit. Raises ValueError."""
    ends, count = list(values["gripper_range"]), len(space.grippers)
    if len(ends) == 2:
        ends *= count
    if len(ends) != 2 * count:
        raise ValueError(
            f"gripper_range needs 2 values, or 2 a gripper, {2 * count}: closed and open"
        )
    return tuple((float(ends[2 * i]), float(ends[2 * i + 1])) for i in range(count))


def make_outputs(values: Mapping[str, Any], robot: Robot) -> list[Output]:
    """What :func:`check_outputs` has passed; the grippers' own topic comes with the joints'."""
    names = wanted(values)
    made: list[Output] = []
    if "twist" in names:
        made.append(TwistOutput(robot))
    if "trajectory" in names:
        made.append(TrajectoryOutput(robot))
    if "positions" in names:
        made.append(PositionsOutput(robot))
    if robot.limits.space.grippers and set(names) & set(_OF_JOINTS):
        made.append(GripperPositions(robot))
    if "gripper" in names:
        made.append(GripperOutput(robot, values["gripper_action"], values["gripper_max_effort"]))
    return made
