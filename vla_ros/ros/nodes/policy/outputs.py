"""Outputs beside ~/action, in robots' own messages: twists, trajectories, positions, grippers."""

from __future__ import annotations

import importlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from action_msgs.msg import GoalStatus
from builtin_interfaces.msg import Duration
from geometry_msgs.msg import Quaternion, Transform, TwistStamped, Vector3
from rclpy.action import ActionClient
from rclpy.duration import Duration as WaitTime
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.task import Future
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64, Float64MultiArray
from trajectory_msgs.msg import (
    JointTrajectory,
    JointTrajectoryPoint,
    MultiDOFJointTrajectory,
    MultiDOFJointTrajectoryPoint,
)

from vla_ros.core import rotation
from vla_ros.core.action_space import ActionKind, ActionSpace
from vla_ros.core.clock import SECOND
from vla_ros.core.types import Command, Floats
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import set_time, to_time
from vla_ros.runtime.control.state import JointOutputs

OUTPUTS = (
    "twist", "trajectory", "cartesian_trajectory", "positions", "joint_positions", "joint_state",
    "gripper",
)  # fmt: skip
ACTIONS = ("GripperCommand", "ParallelGripperCommand")
FROM = ("", "commanded", "measured")
NAMESPACE = "/"  # at the end of an arm
_OF_JOINTS = ("trajectory", "positions", "joint_positions", "joint_state")
_RETRY_S = 1.0  # before a gripper's goal that failed is sent again
_ANSWER_S = 2.0  # for a server to accept a goal or not
_POLL_S = 0.002  # between two questions whether readers have the last message
_LEAST = 1e-3  # change of an opening that is a new goal


@dataclass(frozen=True, slots=True)
class OutputSpace:
    """A robot as its outputs need it. ``space`` is the action space, ``period_s`` the control
    period, ``frame_id`` the frame of displacements and poses. ``gripper_ends``: for each gripper
    the values that its controller takes for 0 (closed) and 1 (open). ``warn(kind, text)`` logs,
    throttled by kind. ``arms``: the prefix of each arm that has topics of its own; one without a
    name: all joints go out together."""

    space: ActionSpace
    period_s: float
    frame_id: str
    gripper_ends: tuple[tuple[float, float], ...]
    warn: Callable[[str, str], None]
    arms: tuple[str, ...] = ("",)

    def moving(self, action: Floats) -> Floats:
        """Numbers of an action [..., D] that move the arms, float64 [..., M]."""
        out: Floats = action[..., list(self.space.motion)]
        return out

    @property
    def groups(self) -> list[tuple[str, list[int], list[int]]]:
        """Prefix of each arm, its indices among the numbers that move, and those of its grippers
        among the grippers."""
        names, motion, grippers = self.space.names, self.space.motion, self.space.grippers
        return [
            (
                arm,
                [i for i, index in enumerate(motion) if names[index].startswith(arm)],
                [i for i, index in enumerate(grippers) if names[index].startswith(arm)],
            )
            for arm in self.arms
        ]

    def names(self, moving: Sequence[int]) -> list[str]:
        """The driver's names of the joints at these indices among the numbers that move."""
        return [self.drivers(self.space.motion[index]) for index in moving]

    def drivers(self, index: int) -> str:
        """The driver's name of a joint of the action: without its arm where that is a namespace
        (``left/``), in which each arm's driver has the same names."""
        name = self.space.names[index]
        spaces = (arm for arm in self.arms if arm.endswith(NAMESPACE) and name.startswith(arm))
        return name.removeprefix(next(spaces, ""))

    def openings(self, action: Floats) -> list[float]:
        """Openings in the controllers' units, one a gripper; NaN: it stays as it is."""
        values = zip(self.space.grippers, self.gripper_ends, strict=True)
        return [_opening(float(action[index]), *ends) for index, ends in values]


def _opening(share: float, closed: float, opened: float) -> float:
    if share >= 1.0:
        return opened
    return closed if share <= 0.0 else (opened - closed) * share + closed


class Output(ABC):
    """One way to command a robot, from :meth:`open` to :meth:`close`. Not thread-safe: the calls
    come under the control loop's lock. Messages are made once: a publisher keeps none."""

    def __init__(self, robot: OutputSpace) -> None:
        self._robot = robot
        self._node: Node | None = None
        self.publishers: list[Any] = []

    def open(self, node: Node) -> None:
        """Make the publishers."""
        self._node = node

    def close(self) -> None:
        """Destroy the publishers."""
        for publisher in self.publishers:
            assert self._node is not None
            self._node.destroy_publisher(publisher)
        self.publishers.clear()

    def begin(self) -> None:
        """Forget the last command: the node is active from now on, and what others did with the
        robot meanwhile is unknown."""

    @abstractmethod
    def command(self, command: Command) -> None:
        """Publish a command that has passed the gate, one a control period. A gripper whose number
        is NaN stays as it is: nothing is published for it."""

    def _publisher(self, kind: Any, topic: str) -> Any:
        assert self._node is not None
        self.publishers.append(self._node.create_publisher(kind, topic, qos.ACTION))
        return self.publishers[-1]


def wait_for_readers(publishers: Sequence[Publisher], seconds: float) -> bool:
    """Wait until every reliable reader has the last message; False: not within ``seconds``."""
    at_once, ends = WaitTime(), time.monotonic() + seconds
    while not all(publisher.wait_for_all_acked(at_once) for publisher in publishers):
        if time.monotonic() > ends:
            return False
        time.sleep(_POLL_S)
    return True


class TwistOutput(Output):
    """`~/twist` is the displacement over one control period, zero from the first period on that has
    no new action, where acceleration_limits do not make it decelerate; `~/gripper` the opening, 0
    closed to 1 open. Of several arms each has its own, with the arm's prefix: `~/left_twist`,
    `~/left_gripper`.

    Servo goes on with the newest twist until its own ``incoming_command_timeout``: that is why one
    is sent, once, when no command comes any more.
    """

    def open(self, node: Node) -> None:
        super().open(node)
        space, make = self._robot.space, self._publisher
        arms = [space.names[index].removesuffix("x") for index in space.motion[::6]]
        self._arms = [make(TwistStamped, f"~/{arm}twist") for arm in arms]
        self._grippers = [make(Float64, f"~/{space.names[index]}") for index in space.grippers]
        self._twist, self._opening = TwistStamped(), Float64()
        self._twist.header.frame_id = self._robot.frame_id

    def command(self, command: Command) -> None:
        velocities = (self._robot.moving(command.action) / self._robot.period_s).tolist()
        set_time(self._twist.header.stamp, command.published_ns)
        linear, angular = self._twist.twist.linear, self._twist.twist.angular
        for arm, publisher in enumerate(self._arms):
            linear.x, linear.y, linear.z = velocities[6 * arm : 6 * arm + 3]
            angular.x, angular.y, angular.z = velocities[6 * arm + 3 : 6 * arm + 6]
            publisher.publish(self._twist)
        for gripper, index in zip(self._grippers, self._robot.space.grippers, strict=True):
            self._opening.data = float(command.action[index])
            if math.isfinite(self._opening.data):
                gripper.publish(self._opening)


class TrajectoryOutput(Output):
    """`~/joint_trajectory`: one message a chunk of actions, which replaces the one before it.

    Positions and velocities, a point an action period, the first when the action of now is over,
    and points in between where a joint has to stand at a bound: a controller goes from one to the
    next by a cubic, which is within the limits too. After the command's ``valid_until`` none that
    moves on, but the deceleration where there are acceleration_limits: the motion ends there, so a
    controller that hears nothing more cannot run on an old observation. After actions that end
    earlier it comes to rest and stands until then, so a message that comes later than they last is
    followed and not refused as over.

    The stamp is ``trajectory_lead_s`` after the publication: the trajectory before is followed
    until then, up to the very position and velocity that the limits were counted from, however late
    the message comes within the lead. A controller that knows no such replacement goes from where
    the arm is to the first point. A stop begins at its arrival (stamp 0: start now), whatever the
    clocks show.
    """

    def open(self, node: Node) -> None:
        super().open(node)
        make, arms = self._publisher, self._robot.arms
        self._topics = [make(JointTrajectory, f"~/{arm}joint_trajectory") for arm in arms]

    def command(self, command: Command) -> None:
        if command.plan is None:
            return
        stamp = to_time(0 if command.plan.at_once else command.plan.begin_ns)
        for topic, (_, joints, _) in zip(self._topics, self._robot.groups, strict=True):
            message = JointTrajectory(joint_names=self._robot.names(joints))
            message.header.stamp = stamp
            message.header.frame_id = self._robot.frame_id
            message.points = [
                JointTrajectoryPoint(
                    positions=row[joints].tolist(),
                    velocities=velocities[joints].tolist(),
                    time_from_start=_duration(seconds),
                )
                for seconds, row, velocities in command.plan.points
            ]
            topic.publish(message)


def _duration(seconds: float) -> Duration:
    whole, rest = divmod(round(seconds * SECOND), SECOND)
    return Duration(sec=whole, nanosec=rest)


class CartesianTrajectoryOutput(Output):
    """`~/cartesian_reference`: one message a chunk of actions, as :class:`TrajectoryOutput` has it,
    of poses of the end effector in ``frame_id``, for ros2_controllers'
    cartesian_trajectory_controller. Of several arms each has its own.

    The controller goes from where it is through the poses, at their times, by a spline of its own:
    no velocities are sent. A stop is the poses of the deceleration, to begin at arrival (stamp 0).
    """

    def open(self, node: Node) -> None:
        super().open(node)
        space, make = self._robot.space, self._publisher
        arms = [space.names[index].removesuffix("x") for index in space.motion[::6]]
        self._topics = [
            (f"{arm}end_effector", make(MultiDOFJointTrajectory, f"~/{arm}cartesian_reference"))
            for arm in arms
        ]

    def command(self, command: Command) -> None:
        if command.plan is None:
            return
        stamp = to_time(0 if command.plan.at_once else command.plan.begin_ns)
        for arm, (name, topic) in enumerate(self._topics):
            message = MultiDOFJointTrajectory(joint_names=[name])
            message.header.stamp = stamp
            message.header.frame_id = self._robot.frame_id
            message.points = [
                MultiDOFJointTrajectoryPoint(
                    transforms=[_transform(row[6 * arm : 6 * arm + 6])],
                    time_from_start=_duration(seconds),
                )
                for seconds, row, _ in command.plan.points
            ]
            topic.publish(message)


def _transform(pose: Floats) -> Transform:
    """Transform of a pose: x y z in m, axis-angle in rad."""
    w, vector = rotation.quaternion(pose[3:])
    (x, y, z), (qx, qy, qz) = pose[:3].tolist(), vector.tolist()
    return Transform(translation=Vector3(x=x, y=y, z=z), rotation=Quaternion(x=qx, y=qy, z=qz, w=w))


class PositionsOutput(Output):
    """`~/positions`: where the joints are to be at the end of this period, in rad, in the order of
    the action's names, grippers left out. Such a controller holds what it received last."""

    def open(self, node: Node) -> None:
        super().open(node)
        self._topics = [
            (self._publisher(Float64MultiArray, f"~/{arm}positions"), joints)
            for arm, joints, _ in self._robot.groups
        ]
        self._message = Float64MultiArray()

    def command(self, command: Command) -> None:
        if command.joint_positions is None:
            return
        positions = command.joint_positions.tolist()
        for topic, joints in self._topics:
            self._message.data = [positions[joint] for joint in joints]
            topic.publish(self._message)


class WholeOutput(Output):
    """The positions of all joints of an arm in one message, the grippers' among them, in the order
    of the action's names. ``kind`` of message, on topics that end in ``ending``."""

    kind: Any
    ending: str

    def open(self, node: Node) -> None:
        super().open(node)
        space = self._robot.space
        self._topics = []
        for arm, joints, grippers in self._robot.groups:
            own = [*(space.motion[i] for i in joints), *(space.grippers[i] for i in grippers)]
            topic = self._publisher(self.kind, f"~/{arm}{self.ending}")
            self._topics.append((topic, [(i, self._robot.drivers(i)) for i in sorted(own)]))
        self._numbers, self._message = [0.0] * space.width, self.kind()

    def _all(self, command: Command) -> list[float]:
        """Positions by their index in the action; NaN of a gripper that nothing is known of."""
        assert command.joint_positions is not None
        space, numbers = self._robot.space, self._numbers
        for index, position in zip(space.motion, command.joint_positions.tolist(), strict=True):
            numbers[index] = position
        for index, opening in zip(
            space.grippers, self._robot.openings(command.action), strict=True
        ):
            numbers[index] = opening
        return numbers


class JointPositionsOutput(WholeOutput):
    """`~/joint_positions`: what a forward_command_controller over arm and gripper takes. Nothing
    goes out while a gripper was neither commanded nor measured."""

    kind, ending = Float64MultiArray, "joint_positions"

    def command(self, command: Command) -> None:
        if command.joint_positions is None:
            return
        numbers = self._all(command)
        for topic, own in self._topics:
            self._message.data = [numbers[i] for i, _ in own]
            if all(map(math.isfinite, self._message.data)):
                topic.publish(self._message)


class JointStateOutput(WholeOutput):
    """`~/joint_commands`: positions as a JointState with names: what drivers of LeRobot's arms and
    Rosetta's contracts take. A gripper that was neither commanded nor measured is left out."""

    kind, ending = JointState, "joint_commands"

    def command(self, command: Command) -> None:
        if command.joint_positions is None:
            return
        numbers, message = self._all(command), self._message
        set_time(message.header.stamp, command.published_ns)
        for topic, own in self._topics:
            known = [(name, numbers[i]) for i, name in own if math.isfinite(numbers[i])]
            message.name = [name for name, _ in known]
            message.position = [number for _, number in known]
            topic.publish(message)


class GripperPositions(Output):
    """`~/gripper_positions`: the grippers' own joints in the order of the action's names, in the
    unit of ``gripper_range``. A gripper keeps what it received last; nothing goes out while one of
    them was neither commanded nor measured."""

    def open(self, node: Node) -> None:
        super().open(node)
        self._topics = [
            (self._publisher(Float64MultiArray, f"~/{arm}gripper_positions"), grippers)
            for arm, _, grippers in self._robot.groups
        ]
        self._message = Float64MultiArray()

    def command(self, command: Command) -> None:
        openings = self._robot.openings(command.action)
        for topic, grippers in self._topics:
            own = [openings[gripper] for gripper in grippers]
            if own and all(map(math.isfinite, own)):
                self._message.data = own
                topic.publish(self._message)


class GripperOutput(Output):
    """Goals to the action server `~/<the gripper's name>_cmd`: one whenever the gripper's number
    has changed, and again where it failed, see :class:`GripperGoal`.

    The gate has held it still by then: see ``gripper_hysteresis`` and ``gripper_dwell_s``. A goal
    replaces the one before it.
    """

    def __init__(self, robot: OutputSpace, action: str, max_effort: float) -> None:
        super().__init__(robot)
        self._kind = getattr(control_msgs(), action)
        self._parallel = action == "ParallelGripperCommand"
        self._max_effort = max_effort
        self._goals: list[GripperGoal] = []

    def open(self, node: Node) -> None:
        space = self._robot.space
        self._goals = [
            GripperGoal(node, self._kind, space.names[index], self._robot.warn)
            for index in space.grippers
        ]

    def close(self) -> None:
        for goal in self._goals:
            goal.close()
        self._goals = []

    def begin(self) -> None:
        for goal in self._goals:
            goal.forget()

    def command(self, command: Command) -> None:
        space = self._robot.space
        positions = self._robot.openings(command.action)
        for goal, index, position in zip(self._goals, space.grippers, positions, strict=True):
            opening = float(command.action[index])
            if np.isnan(opening):
                continue
            goal.command(
                opening, self._goal(self._robot.drivers(index), position), time.monotonic()
            )

    def _goal(self, name: str, position: float) -> Any:
        goal = self._kind.Goal()
        if self._parallel:
            goal.command.name, goal.command.position = [name], [position]
            goal.command.effort = [self._max_effort] if self._max_effort else []
        else:
            goal.command.position, goal.command.max_effort = position, self._max_effort
        return goal


class GripperGoal:
    """The newest goal of one gripper, and its outcome; checked once a control period.

    The same opening is sent again where its goal was rejected, aborted or not answered, a second
    later; and at once where its server has gone and come back, or another one has come: a
    controller that starts anew knows nothing of it. One that gave up because the fingers stand
    still on something (``stalled``) has done what it was commanded.
    """

    def __init__(self, node: Node, kind: Any, name: str, warn: Callable[[str, str], None]) -> None:
        self._node, self._name, self._warn = node, name, warn
        self._client = ActionClient(node, kind, f"~/{name}_cmd")
        self._status = node.resolve_topic_name(f"~/{name}_cmd") + "/_action/status"
        self._warned = ""
        self.forget()

    def close(self) -> None:
        self._client.destroy()

    def forget(self) -> None:
        """Send the next opening whatever it is."""
        self._commanded = self._failed = float("nan")
        self._response: Future | None = None  # of the newest goal, older ones are replaced by it
        self._result: Future | None = None
        self._sent_s = self._checked_s = float("-inf")
        self._servers: set[bytes] = set()

    def command(self, opening: float, goal: Any, now_s: float) -> None:
        """Command ``opening`` by sending ``goal``, unless it is on its way or reached already."""
        if not self._client.server_is_ready():
            self.forget()
            self._warn_of("nobody takes goals")
            return
        self._check_servers(now_s)
        self._check_outcome(now_s)
        waits = abs(opening - self._failed) < _LEAST and now_s - self._sent_s < _RETRY_S
        if waits or abs(opening - self._commanded) < _LEAST:
            return
        self._commanded, self._failed, self._sent_s = opening, float("nan"), now_s
        self._response, self._result = self._client.send_goal_async(goal), None

    def _check_outcome(self, now_s: float) -> None:
        if self._response is not None and self._response.done():
            handle, self._response = _outcome(self._response), None
            if handle is None or not handle.accepted:
                self._fail("its goal was rejected: is its controller active?")
            else:
                self._result = handle.get_result_async()
        elif self._response is not None and now_s - self._sent_s > _ANSWER_S:
            self._fail("its goal was not answered")
        if self._result is not None and self._result.done():
            answer, self._result = _outcome(self._result), None
            if answer is None:
                self._fail("its goal came to nothing")
            elif answer.status != GoalStatus.STATUS_SUCCEEDED and not answer.result.stalled:
                how = "canceled" if answer.status == GoalStatus.STATUS_CANCELED else "aborted"
                self._fail(f"its goal was {how}")
            else:
                self._warned = ""

    def _check_servers(self, now_s: float) -> None:
        """Send the goal to a new server. One that was killed counts as ready until its lease ends,
        beside its successor."""
        if now_s - self._checked_s < _RETRY_S:
            return
        self._checked_s = now_s
        found = self._node.get_publishers_info_by_topic(self._status)
        servers = {bytes(server.endpoint_gid) for server in found}
        if self._servers and servers - self._servers:
            self._warn_of("another server takes its goals now")
            self._commanded, self._response, self._result = float("nan"), None, None
        self._servers = servers

    def _fail(self, reason: str) -> None:
        self._failed, self._commanded = self._commanded, float("nan")
        self._response = self._result = None
        self._warn_of(reason)

    def _warn_of(self, reason: str) -> None:
        """Warn once of a reason, until a goal is reached."""
        if reason != self._warned:
            self._warned = reason
            self._warn(f"gripper {self._name}", f"gripper {self._name!r}: {reason}")


def _outcome(future: Future) -> Any:
    """Result of a future that is done; None where the request failed."""
    return future.result() if future.exception() is None else None


def control_msgs() -> Any:
    """Actions of control_msgs. ValueError, in one line, where it cannot be imported."""
    try:
        return importlib.import_module("control_msgs.action")
    except ImportError as error:
        raise ValueError(
            f"outputs 'gripper' needs the ROS package control_msgs ({error}): install it, or use"
            " ~/gripper_positions of 'trajectory' and 'positions', or ~/gripper of 'twist'"
        ) from None


def joint_outputs(values: Mapping[str, Any]) -> JointOutputs:
    """Joint positions and trajectories that the outputs need beside the action."""
    names = outputs_of(values)
    return JointOutputs(
        positions=bool({"positions", "joint_positions", "joint_state"} & set(names)),
        plans="trajectory" in names or "cartesian_trajectory" in names,
        commanded=values["joint_delta_from"] == "commanded",
        lead_s=values["trajectory_lead_s"],
        wrapped=values["continuous_as"] == "wrapped",
    )


def arms_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Prefixes of the arms that have topics of their own; one without a name: no arm has."""
    return tuple(filter(None, values["arms"])) or ("",)


def outputs_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the outputs, each once."""
    return tuple(dict.fromkeys(filter(None, values["outputs"])))


def check_outputs(values: Mapping[str, Any], space: ActionSpace) -> None:
    """Raise ValueError, in one line, for outputs that cannot express the action space."""
    names, kind = outputs_of(values), space.kind
    if strange := [name for name in names if name not in OUTPUTS]:
        raise ValueError(f"outputs has '{strange[0]}', must be of {', '.join(OUTPUTS)}")
    if "twist" in names and kind is not ActionKind.END_EFFECTOR_DELTA:
        raise ValueError(
            "the twist output needs action_space end_effector_delta: nothing else is a velocity"
            " of the end effector"
        )
    if "cartesian_trajectory" in names and kind is not ActionKind.END_EFFECTOR_DELTA:
        raise ValueError(
            "the cartesian_trajectory output needs action_space end_effector_delta: of joints the"
            " trajectory output is one"
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
    _check_arms(values, space)
    added = [name for name in names if name in (*_OF_JOINTS, "cartesian_trajectory")]
    if added and not kind.absolute and not values["joint_delta_from"]:
        raise ValueError(
            f"outputs {', '.join(added)} of action_space {kind.name.lower()} need joint_delta_from:"
            " measured where the demonstrations' actions are a command minus what was measured,"
            " commanded where they are the difference of two commands"
        )


def _check_arms(values: Mapping[str, Any], space: ActionSpace) -> None:
    """Each joint must be of one arm, where arms have topics of their own. Raises ValueError."""
    arms = arms_of(values)
    if not space.kind.joints or arms == ("",):
        return
    for name in space.names:
        if sum(name.startswith(arm) for arm in arms) != 1:
            raise ValueError(
                f"arms has {', '.join(map(repr, arms))}, prefixes of the joints' names: one of them"
                f" must begin {name!r}"
            )


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


def make_outputs(values: Mapping[str, Any], robot: OutputSpace) -> list[Output]:
    """The outputs of ``outputs``, which :func:`check_outputs` has passed; the grippers' own topic
    comes with those of joints."""
    names = outputs_of(values)
    made: list[Output] = []
    if "twist" in names:
        made.append(TwistOutput(robot))
    if "trajectory" in names:
        made.append(TrajectoryOutput(robot))
    if "cartesian_trajectory" in names:
        made.append(CartesianTrajectoryOutput(robot))
    if "positions" in names:
        made.append(PositionsOutput(robot))
    if "joint_positions" in names:
        made.append(JointPositionsOutput(robot))
    if "joint_state" in names:
        made.append(JointStateOutput(robot))
    if robot.space.grippers and set(names) & {"trajectory", "positions"}:
        made.append(GripperPositions(robot))
    if "gripper" in names:
        made.append(GripperOutput(robot, values["gripper_action"], values["gripper_max_effort"]))
    return made
