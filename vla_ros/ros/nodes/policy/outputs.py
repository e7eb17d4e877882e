"""What robots take of a command beside ~/action: twists, trajectories, positions, grippers."""

from __future__ import annotations

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from action_msgs.msg import GoalStatus
from builtin_interfaces.msg import Duration
from geometry_msgs.msg import TwistStamped
from rclpy.action import ActionClient
from rclpy.duration import Duration as WaitTime
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.task import Future
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64, Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from vla_ros.core.action_space import ActionKind, ActionSpace
from vla_ros.core.clock import SECOND
from vla_ros.core.types import Command, CommandKind, Floats
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import to_time
from vla_ros.runtime.safety import Limits, approach

OUTPUTS = ("twist", "trajectory", "positions", "joint_state", "gripper")
ACTIONS = ("GripperCommand", "ParallelGripperCommand")
FROM = ("", "commanded", "measured")
_OF_JOINTS = ("trajectory", "positions", "joint_state")
_LEASH = 5  # displacements that joints may be behind what they are told
_AGAIN_S = 1.0  # before a gripper's goal that came to nothing is sent again
_ANSWER_S = 2.0  # for a server to take a goal or not
_LOOK_S = 0.002  # between two looks at what readers have
_LEAST = 1e-3  # of an opening: less is no other goal; of a period: a shorter rest is no point


@dataclass(frozen=True, slots=True)
class Robot:
    """``limits`` have the action space and the period, ``frame_id`` is the frame of displacements
    and poses. ``where``: the measured place of every number, float64 [D], grippers 0; None where
    there is no recent measurement. ``gripper_ends``: of each gripper the values that its controller
    takes for 0 (closed) and 1 (open). ``warn(kind, text)`` logs, throttled by kind.

    ``commanded``: what a displacement of joints is added to, see :class:`JointTargets`. ``lead_s``:
    how long after its publication a trajectory begins."""

    limits: Limits
    frame_id: str
    where: Callable[[], Floats | None]
    gripper_ends: tuple[tuple[float, float], ...]
    warn: Callable[[str, str], None]
    commanded: bool = False
    lead_s: float = 0.0

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

    def towards(self, goal: Floats, last: Floats) -> Floats:
        """The place of the joints ``goal``, or as near to it as one period leads from ``last``."""
        if not self.limits.space.absolute:
            most = largest_displacement(self.limits)
            nearer: Floats = np.clip(goal, last - most, last + most)
            return nearer
        both = np.zeros((2, self.limits.space.width))
        both[:, list(self.limits.space.motion)] = goal, last
        return self.moving(approach(both[0], both[1], self.limits))

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
        self.publishers: list[Any] = []

    def open(self, node: Node) -> None:
        """Make what publishes."""
        self._node = node

    def close(self) -> None:
        """Take it away."""
        for publisher in self.publishers:
            assert self._node is not None
            self._node.destroy_publisher(publisher)
        self.publishers.clear()

    def begin(self) -> None:
        """The node is active from now on; what others did with the robot meanwhile is unknown."""

    @abstractmethod
    def command(self, command: Command) -> None:
        """A command has passed the gate, one a control period."""

    def rest(self, now_ns: int) -> None:
        """A period without a command, or none will come: what was set in motion stops, if it has
        not been stopped yet. A gripper stays as it is."""

    def _publisher(self, kind: Any, topic: str) -> Any:
        assert self._node is not None
        self.publishers.append(self._node.create_publisher(kind, topic, qos.ACTION))
        return self.publishers[-1]


def wait_for_readers(publishers: Sequence[Publisher], seconds: float) -> bool:
    """Whether within so long every reliable reader has what was published last."""
    at_once, ends = WaitTime(), time.monotonic() + seconds
    while not all(publisher.wait_for_all_acked(at_once) for publisher in publishers):
        if time.monotonic() > ends:
            return False
        time.sleep(_LOOK_S)
    return True


class JointTargets:
    """Where displacements of joints lead, float64 [M].

    ``measured``: each is one from where the joints are measured to be, as of demonstrations whose
    actions are the next command minus the measured joints (ManiSkill's ``pd_joint_delta_pos``,
    robosuite's ``goal_update_mode: achieved``). A servo that is behind makes less of its way.

    ``commanded``: each is one from where the last one led, as of demonstrations whose actions are
    the difference of two commands (ManiSkill's ``pd_joint_target_delta_pos``, robosuite's
    ``goal_update_mode: desired``). The joints are followed all the same: from a stop on it begins
    where they are measured to be, and of an arm that is held back the target is never farther away
    than a few of the largest displacements.

    Actions relative to the state that a chunk was asked for (openpi, LeRobot) are neither: what
    reads such a checkpoint makes joint positions of them.
    """

    def __init__(self, robot: Robot) -> None:
        self._robot = robot
        self._target: Floats | None = None

    def stopped(self) -> None:
        """The next displacement begins where the joints are."""
        self._target = None

    def add(self, motion: Floats) -> Floats | None:
        """The place that ``motion`` begins at; the next one begins where it leads. None (and a
        warning): nobody says where the joints are."""
        here = self._robot.here()
        start = here
        if here is not None and self._target is not None and self._robot.commanded:
            leash = _LEASH * largest_displacement(self._robot.limits)
            start = np.clip(self._target, here - leash, here + leash)
        self._target = None if start is None else start + motion
        return start


def largest_displacement(limits: Limits) -> Floats:
    """Of each number that moves in one control period, float64 [M]."""
    most = np.maximum(np.abs(limits.low), np.abs(limits.high))
    if limits.velocity:
        most = np.minimum(most, np.asarray(limits.velocity) * limits.period_s)
    return most


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
        self._moves = command.kind.moves
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

    Positions alone, a point a control period, the first one period after the stamp, and none after
    the command's ``valid_until``: the motion ends there, within a period, so a controller that
    hears nothing more cannot run on an old observation. Actions that end earlier are held until
    then, so a message that comes later than they last is followed and not refused as over.

    The stamp is ``lead_s`` after the publication: what was said before is followed until then, up
    to the very place that the limits of the first action were counted from, however late the
    message comes within the lead. A controller that knows no such replacement goes from where the
    arm is to the first point. A stop is one point, the measured position, a period after its
    arrival (stamp 0: start now), whatever the clocks say.

    Displacements are added up: see :class:`JointTargets`.
    """

    def __init__(self, robot: Robot) -> None:
        super().__init__(robot)
        self._moves = False
        self._stop: Floats | None = None  # the point of the stop that was published last
        self._targets = JointTargets(robot)

    def open(self, node: Node) -> None:
        super().open(node)
        self._topic = self._publisher(JointTrajectory, "~/joint_trajectory")

    def command(self, command: Command) -> None:
        """A STOP repeats the point of the first one, else a robot would creep with its sag."""
        if command.kind.moves:
            self._moves, self._stop = True, None
            self._follow(command)
        elif command.kind is CommandKind.STOP:
            self._moves = False
            self._targets.stopped()
            if self._stop is None:
                held = self._robot.limits.space.absolute
                self._stop = self._robot.moving(command.action) if held else self._robot.here()
            self._hold()

    def rest(self, now_ns: int) -> None:
        if self._moves:
            self._moves = False
            self._targets.stopped()
            self._stop = self._robot.here()
            self._hold()

    def _follow(self, command: Command) -> None:
        absolute = self._robot.limits.space.absolute
        here = None if absolute else self._targets.add(self._robot.moving(command.action))
        if command.plan is None:
            return
        rows = self._robot.moving(command.plan)
        if absolute:
            here = self._robot.here()
        elif here is None:
            return
        else:
            rows = here + np.cumsum(rows, 0)
        begin_ns = command.published_ns + round(self._robot.lead_s * SECOND)
        left_s = (command.valid_until_ns - begin_ns) / SECOND
        points = until(rows, here, self._robot.limits.period_s, left_s)
        if points:
            self._publish(points, begin_ns)

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

    Displacements are added up: see :class:`JointTargets`. A stop leads from what was said last to
    where the joints were measured to be by then, no faster than the limits allow.
    """

    def __init__(self, robot: Robot) -> None:
        super().__init__(robot)
        self._targets = JointTargets(robot)
        self.begin()

    def open(self, node: Node) -> None:
        super().open(node)
        self._topic = self._publisher(Float64MultiArray, "~/positions")

    def begin(self) -> None:
        self._moves = False
        self._last: Floats | None = None
        self._goal: Floats | None = None  # of a stop that is not there yet
        self._targets.stopped()

    def command(self, command: Command) -> None:
        motion = self._robot.moving(command.action)
        if self._robot.limits.space.absolute:
            self._last, self._goal = motion, None  # its stops are led by the gate
            self._moves = command.kind is not CommandKind.STOP
        elif command.kind.moves:
            start = self._targets.add(motion)
            self._last, self._goal = None if start is None else start + motion, None
            self._moves = True
        elif command.kind is CommandKind.STOP:
            self._stop()
        self._publish()

    def rest(self, now_ns: int) -> None:
        if self._moves or self._goal is not None:
            self._stop()
            self._publish()

    def _stop(self) -> None:
        """A period's way to where the joints were when it began."""
        if self._moves:
            self._moves = False
            self._targets.stopped()
            self._goal = self._robot.here()
        if self._goal is not None and self._last is not None:
            self._last = self._robot.towards(self._goal, self._last)
            if np.array_equal(self._last, self._goal):
                self._goal = None

    def _publish(self) -> None:
        if self._last is not None:
            self._topic.publish(Float64MultiArray(data=self._last.tolist()))


class JointStateOutput(PositionsOutput):
    """`~/joint_commands`: the same as a JointState by name, the grippers' joints among them, in the
    order of the action's names: what drivers of LeRobot's arms and Rosetta's contracts take."""

    def open(self, node: Node) -> None:
        Output.open(self, node)
        self._clock = node.get_clock()
        self._topic = self._publisher(JointState, "~/joint_commands")
        self._openings: list[float] = []

    def command(self, command: Command) -> None:
        self._openings = self._robot.openings(command.action)
        super().command(command)

    def _publish(self) -> None:
        if self._last is None:
            return
        space = self._robot.limits.space
        places = np.zeros(space.width)
        places[list(space.motion)] = self._last
        places[list(space.grippers)] = self._openings
        message = JointState(name=list(space.names), position=places.tolist())
        message.header.stamp = self._clock.now().to_msg()
        self._topic.publish(message)


class GripperPositions(Output):
    """`~/gripper_positions`: the grippers' own joints in the order of the action's names, in the
    unit of ``gripper_range``. A gripper keeps what it received last."""

    def open(self, node: Node) -> None:
        super().open(node)
        self._topic = self._publisher(Float64MultiArray, "~/gripper_positions")

    def command(self, command: Command) -> None:
        self._topic.publish(Float64MultiArray(data=self._robot.openings(command.action)))


class GripperOutput(Output):
    """A goal to the action server `~/<the gripper's name>_cmd` whenever its number has changed, and
    again where it came to nothing: see :class:`GripperGoal`.

    The gate has held it still by then: see ``gripper_hysteresis`` and ``gripper_dwell_s``. A goal
    replaces the one before it.
    """

    def __init__(self, robot: Robot, action: str, max_effort: float) -> None:
        super().__init__(robot)
        self._kind = getattr(control_msgs(), action)
        self._parallel = action == "ParallelGripperCommand"
        self._max_effort = max_effort
        self._goals: list[GripperGoal] = []

    def open(self, node: Node) -> None:
        space = self._robot.limits.space
        self._goals = [
            GripperGoal(node, self._kind, space.names[place], self._robot.warn)
            for place in space.grippers
        ]

    def close(self) -> None:
        for goal in self._goals:
            goal.close()
        self._goals = []

    def begin(self) -> None:
        for goal in self._goals:
            goal.forget()

    def command(self, command: Command) -> None:
        space = self._robot.limits.space
        positions = self._robot.openings(command.action)
        for goal, place, position in zip(self._goals, space.grippers, positions, strict=True):
            opening = float(command.action[place])
            goal.want(opening, self._goal(space.names[place], position), time.monotonic())

    def _goal(self, name: str, position: float) -> Any:
        goal = self._kind.Goal()
        if self._parallel:
            goal.command.name, goal.command.position = [name], [position]
            goal.command.effort = [self._max_effort] if self._max_effort else []
        else:
            goal.command.position, goal.command.max_effort = position, self._max_effort
        return goal


class GripperGoal:
    """What one gripper was told last, and what became of it. Looked at once a control period.

    The same opening is told again where its goal was rejected, aborted or not answered, a second
    later; and at once where its server has gone and come back, or another one has come: a
    controller that starts anew knows nothing of it. One that gave up because the fingers stand
    still on something (``stalled``) has done what it was told.
    """

    def __init__(self, node: Node, kind: Any, name: str, warn: Callable[[str, str], None]) -> None:
        self._node, self._name, self._warn = node, name, warn
        self._client = ActionClient(node, kind, f"~/{name}_cmd")
        self._status = node.resolve_topic_name(f"~/{name}_cmd") + "/_action/status"
        self._complained = ""
        self.forget()

    def close(self) -> None:
        self._client.destroy()

    def forget(self) -> None:
        """The next opening is told whatever it is."""
        self._told = self._failed = float("nan")
        self._response: Future | None = None  # of the newest goal, older ones are replaced by it
        self._result: Future | None = None
        self._sent_s = self._looked_s = float("-inf")
        self._servers: set[bytes] = set()

    def want(self, opening: float, goal: Any, now_s: float) -> None:
        """See that the gripper is told ``opening``, which ``goal`` says."""
        if not self._client.server_is_ready():
            self.forget()
            self._complain("nobody takes goals")
            return
        self._look_for_others(now_s)
        self._look(now_s)
        waits = abs(opening - self._failed) < _LEAST and now_s - self._sent_s < _AGAIN_S
        if waits or abs(opening - self._told) < _LEAST:
            return
        self._told, self._failed, self._sent_s = opening, float("nan"), now_s
        self._response, self._result = self._client.send_goal_async(goal), None

    def _look(self, now_s: float) -> None:
        """At what became of the newest goal."""
        if self._response is not None and self._response.done():
            handle, self._response = _outcome(self._response), None
            if handle is None or not handle.accepted:
                self._lost("its goal was rejected: is its controller active?")
            else:
                self._result = handle.get_result_async()
        elif self._response is not None and now_s - self._sent_s > _ANSWER_S:
            self._lost("its goal was not answered")
        if self._result is not None and self._result.done():
            answer, self._result = _outcome(self._result), None
            if answer is None:
                self._lost("its goal came to nothing")
            elif answer.status != GoalStatus.STATUS_SUCCEEDED and not answer.result.stalled:
                how = "canceled" if answer.status == GoalStatus.STATUS_CANCELED else "aborted"
                self._lost(f"its goal was {how}")
            else:
                self._complained = ""

    def _look_for_others(self, now_s: float) -> None:
        """A server that was killed counts as ready until its lease ends, beside its successor."""
        if now_s - self._looked_s < _AGAIN_S:
            return
        self._looked_s = now_s
        found = self._node.get_publishers_info_by_topic(self._status)
        servers = {bytes(server.endpoint_gid) for server in found}
        if self._servers and servers - self._servers:
            self._complain("another server takes its goals now")
            self._told, self._response, self._result = float("nan"), None, None
        self._servers = servers

    def _lost(self, reason: str) -> None:
        self._failed, self._told = self._told, float("nan")
        self._response = self._result = None
        self._complain(reason)

    def _complain(self, reason: str) -> None:
        """Once a reason, until a goal is reached."""
        if reason != self._complained:
            self._complained = reason
            self._warn(f"gripper {self._name}", f"gripper {self._name!r}: {reason}")


def _outcome(future: Future) -> Any:
    """What has come of it; None where asking failed."""
    return future.result() if future.exception() is None else None


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
    told = [name for name in names if name in _OF_JOINTS]
    if told and kind is ActionKind.JOINT_DELTA and not values["joint_delta_from"]:
        raise ValueError(
            f"outputs {', '.join(told)} of action_space joint_delta need joint_delta_from: measured"
            " where the demonstrations' actions are a command minus the measured joints, commanded"
            " where they are the difference of two commands"
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
    if "joint_state" in names:
        made.append(JointStateOutput(robot))
    if robot.limits.space.grippers and set(names) & {"trajectory", "positions"}:
        made.append(GripperPositions(robot))
    if "gripper" in names:
        made.append(GripperOutput(robot, values["gripper_action"], values["gripper_max_effort"]))
    return made
