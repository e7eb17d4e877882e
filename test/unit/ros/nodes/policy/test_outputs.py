"""What goes out to controllers: each message checked against what the controller makes of it."""

from __future__ import annotations

import importlib.util
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from unit.runtime.control.bench import Bench, Recorder
from vla_ros.core.action_space import ActionKind, ActionSpace, end_effectors, joints
from vla_ros.core.clock import MS, Moment
from vla_ros.core.types import Command, CommandKind, StaleAction
from vla_ros.ros.common.convert import stamp_of
from vla_ros.ros.nodes.policy.outputs import (
    OutputSpace,
    check_outputs,
    gripper_ends,
    joint_outputs,
    make_outputs,
)
from vla_ros.ros.nodes.policy.parameters import TABLE
from vla_ros.ros.nodes.policy.settings import validate
from vla_ros.runtime import safety
from vla_ros.runtime.control.queue import Chunking, Execution
from vla_ros.runtime.safety import Limits

DEFAULTS = {row.name: row.default for row in TABLE}
NAMES = ("shoulder", "claw", "elbow")
HERE = np.array([0.1, 0.0, -0.1])
LEAD = 20 * MS


class Notes:
    """A node as far as outputs see one: what is published, by topic."""

    def __init__(self) -> None:
        self.said: dict[str, list] = {}

    def create_publisher(self, kind: type, topic: str, profile: object) -> Topic:
        return Topic(self.said.setdefault(topic.removeprefix("~/"), []))

    def destroy_publisher(self, publisher: Topic) -> None:
        publisher.closed = True


class Topic:
    def __init__(self, said: list) -> None:
        self.said = said
        self.closed = False

    def publish(self, message: object) -> None:
        assert not self.closed
        self.said.append(deepcopy(message))  # as a publisher does, which serializes it


class Arm:
    """A control loop whose commands go to outputs, as the policy node wires them."""

    def __init__(
        self,
        space: ActionSpace,
        *outputs: str,
        how: Chunking = Chunking(),
        joint_delta_from: str = "measured",
        arms: tuple[str, ...] = ("",),
        **given: object,
    ) -> None:
        stale = StaleAction.HOLD if space.absolute else StaleAction.ZERO
        count = len(space.motion)
        ends = {"low": (-2.0,) * count, "high": (2.0,) * count}
        limits = Limits(space=space, **({"stale_action": stale} | ends | given))
        values = DEFAULTS | {"outputs": list(outputs), "gripper_range": [0.0, 0.04]}
        values["joint_delta_from"] = joint_delta_from
        check_outputs(values, space)
        self.notes, self.warnings = Notes(), []
        out = Recorder()
        self.bench = Bench(limits=limits, out=out, chunking=how)
        self.bench.loop.outputs = joint_outputs(values)
        robot = OutputSpace(
            space,
            limits.period_s,
            "base",
            gripper_ends(values, space),
            lambda kind, text: self.warnings.append(text),
            arms,
        )
        self.outputs = make_outputs(values, robot)
        for output in self.outputs:
            output.open(self.notes)
        out.publish, out.rest = self.publish, self.rest
        self.bench.control.activate()
        self.bench.control.set_instruction("reach")

    def publish(self, command: Command) -> None:
        self.bench.out.commands.append(command)
        for output in self.outputs:
            output.command(command)

    def moment(self) -> Moment:
        return Moment(self.bench.clock.now, self.bench.clock.steady)

    def measure(self, where: np.ndarray = HERE) -> None:
        moving = self.bench.loop.limits.space.motion
        now = self.moment()
        self.bench.control.measure(where[list(moving)], now.now_ns, now, moving)

    def tick(self) -> None:
        self.bench.tick()

    def rest(self, command: Command) -> None:
        for output in self.outputs:
            output.command(command)

    def cycle(self, action: np.ndarray) -> None:
        self.bench.answer(self.bench.frame(), action)
        self.tick()


# Twist


def test_a_twist_is_a_velocity_and_exactly_zero_from_the_next_period_on() -> None:
    arm = Arm(end_effectors(ActionKind.END_EFFECTOR_DELTA), "twist")
    arm.cycle(np.array([0.01, 0.0, -0.02, 0.1, 0.0, 0.0, 0.3]))
    for _ in range(50):
        arm.tick()  # HELD, then STOP, then silence
    first, *later = arm.notes.said["twist"]
    assert (first.twist.linear.x, first.twist.linear.z) == pytest.approx((0.2, -0.4))
    assert first.twist.angular.x == pytest.approx(2.0)
    assert first.header.frame_id == "base"
    kinds = [c.kind for c in arm.bench.out.commands]
    assert {CommandKind.HELD, CommandKind.STOP} <= set(kinds) and len(kinds) < 51
    assert len(later) == len(kinds) - 1
    for message in later:
        linear, angular = message.twist.linear, message.twist.angular
        assert (linear.x, linear.y, linear.z, angular.x, angular.y, angular.z) == (0.0,) * 6
    assert {m.data for m in arm.notes.said["gripper"]} == {0.3}


def test_a_twist_ends_by_itself_where_nothing_is_published_any_more() -> None:
    arm = Arm(end_effectors(ActionKind.END_EFFECTOR_DELTA), "twist")
    limits = replace(arm.bench.loop.limits, stale_action=StaleAction.SILENCE)
    arm.bench.loop.limits = limits
    arm.cycle(np.full(7, 0.01))
    arm.bench.control.worker_lost("gone")  # HOLD: with `silence` no command says so
    arm.tick()
    arm.tick()
    moving, still = arm.notes.said["twist"]
    assert moving.twist.linear.x and not still.twist.linear.x
    assert stamp_of(still.header.stamp) == arm.bench.clock.now - 50 * MS, "once"


def test_two_arms_have_a_twist_and_a_gripper_each() -> None:
    arm = Arm(end_effectors(ActionKind.END_EFFECTOR_DELTA, ("left_", "right_")), "twist")
    arm.cycle(np.arange(14) / 100)
    assert arm.notes.said["left_twist"][0].twist.linear.x == 0.0
    assert arm.notes.said["right_twist"][0].twist.linear.x == pytest.approx(0.07 / 0.05)
    assert arm.notes.said["right_twist"][0].twist.angular.z == pytest.approx(0.12 / 0.05)
    assert arm.notes.said["left_gripper"][0].data == 0.06
    assert arm.notes.said["right_gripper"][0].data == 0.13


# Trajectory


def joint_space(kind: ActionKind = ActionKind.JOINT_POSITION) -> ActionSpace:
    return joints(kind, NAMES, ("claw",))


def points(message: object) -> list[tuple[float, list[float]]]:
    return [
        (p.time_from_start.sec + p.time_from_start.nanosec / 1e9, list(p.positions))
        for p in message.points
    ]


def test_a_chunk_is_one_trajectory_of_the_joints_that_move() -> None:
    arm = Arm(joint_space(), "trajectory")
    arm.measure()
    rows = np.array([[0.2, 1.0, -0.2], [0.3, 0.0, -0.3], [0.4, 0.0, -0.4]])
    arm.cycle(rows)
    for _ in range(4):
        arm.tick()  # the rest of the chunk, then HELD: it was all said
    (message,) = arm.notes.said["joint_trajectory"]
    assert message.joint_names == ["shoulder", "elbow"]
    assert points(message) == [
        (0.05, [0.2, -0.2]),
        (0.1, [0.3, -0.3]),
        (pytest.approx(0.15), [0.4, -0.4]),
        (0.2, [0.4, -0.4]),  # it comes to rest there
        (0.43, [0.4, -0.4]),
    ]
    velocities = [p.velocities.tolist() for p in message.points]
    assert velocities[:2] == [pytest.approx([2.0, -2.0])] * 2, "rad/s, at the policy's own pace"
    assert velocities[-2:] == [[0.0, 0.0]] * 2, "a controller refuses another end"
    assert stamp_of(message.header.stamp) == arm.bench.out.commands[0].published_ns + LEAD
    assert [m.data[0] for m in arm.notes.said["gripper_positions"]][:1] == [0.04]


@pytest.mark.parametrize(("execution", "said"), [("sync", (2, 2)), ("async", (4, 3))])
def test_a_new_chunk_is_a_new_trajectory_of_what_will_be_executed_of_it(
    execution: str, said: tuple[int, int]
) -> None:
    """Who stands still between chunks ends with the replan interval; who does not may go on to
    the end, and leaves out what was executed since the chunk's observation."""
    arm = Arm(joint_space(), "trajectory", how=Chunking(Execution(execution), replan_interval=2))
    arm.measure()
    arm.cycle(np.tile([0.2, 1.0, -0.2], (4, 1)))
    arm.tick()  # at the instant of the next frame, which does not show it
    if execution == "sync":
        arm.tick()
        arm.bench.clock.advance(0.01)
    arm.cycle(np.tile([0.3, 1.0, -0.3], (4, 1)))
    first, second = map(points, arm.notes.said["joint_trajectory"])
    assert [row for _, row in first] == [[0.2, -0.2]] * (said[0] + 1), "and held"
    assert [row for _, row in second] == [[0.3, -0.3]] * (said[1] + 1)


def test_no_point_lies_beyond_the_life_of_its_observation() -> None:
    arm = Arm(joint_space(), "trajectory", max_age_s=0.23)
    arm.measure()
    rows = np.column_stack([np.arange(1, 21) / 10 + 0.1, np.zeros(20), np.full(20, -0.1)])
    arm.cycle(rows)  # published 50 ms after its frame
    (command,), (message,) = arm.bench.out.commands, arm.notes.said["joint_trajectory"]
    end_s = (command.valid_until_ns - command.published_ns) / 1e9
    assert end_s == pytest.approx(0.18)
    got = points(message)
    assert [t for t, _ in got] == pytest.approx([0.05, 0.1, 0.15, 0.16]), "after the stamp"
    assert [row[0] for _, row in got] == pytest.approx([0.2, 0.3, 0.4, 0.42])


def test_each_point_is_held_to_the_limits_of_the_gate() -> None:
    arm = Arm(joint_space(), "trajectory", jump=0.05)  # 0.2 rad a period
    arm.measure()
    arm.cycle(np.tile([1.9, 1.0, -0.1], (4, 1)))
    (message,) = arm.notes.said["joint_trajectory"]
    rows = [row[0] for _, row in points(message)]
    first = 0.1 + 0.2 * 2 / 3  # from rest: no faster than 0.2 in between either
    assert rows == pytest.approx([first, *(first + 0.2 * np.arange(1, 4)), *[first + 0.6] * 2])
    for _ in range(3):
        arm.tick()
    sent = [c.action[0] for c in arm.bench.out.commands]
    assert sent == pytest.approx([0.3, 0.5, 0.7, 0.9]), "what ~/action says goes as fast at once"


def test_displacements_are_added_up_from_where_the_joints_are() -> None:
    arm = Arm(joint_space(ActionKind.JOINT_DELTA), "trajectory")
    arm.cycle(np.tile([0.1, 1.0, -0.1], (3, 1)))
    assert "joint_trajectory" in arm.notes.said and not arm.notes.said["joint_trajectory"]
    assert "nothing fresh on joint_states" in arm.bench.loop.counters.last_block
    for _ in range(3):
        arm.tick()
    arm.measure()
    arm.cycle(np.tile([0.1, 1.0, -0.1], (3, 1)))
    (message,) = arm.notes.said["joint_trajectory"]
    assert np.array([row for _, row in points(message)]) == pytest.approx(
        np.array([[0.2, -0.2], [0.3, -0.3], *[[0.4, -0.4]] * 3])
    )


@pytest.mark.parametrize("kind", [ActionKind.JOINT_POSITION, ActionKind.JOINT_DELTA])
def test_a_stop_slows_down_within_a_period_from_where_the_plan_is_by_now(kind: ActionKind) -> None:
    arm = Arm(joint_space(kind), "trajectory")
    arm.measure()
    arm.cycle(np.tile([0.2, 1.0, -0.2], (10, 1)))
    arm.measure(np.array([0.9, 0.0, 0.9]))  # one reading moves nothing
    arm.bench.control.stop()
    arm.tick()
    arm.measure(np.array([0.14, 0.0, -0.14]))  # it sags
    arm.tick()
    _, *stops = arm.notes.said["joint_trajectory"]
    assert len(stops) == 2
    step = 0.1 if kind.absolute else 0.2
    s, end = 0.6, 0.0 if kind.absolute else step  # 30 of 50 ms after its begin; velocity behind
    where = 0.1 + step * (3 * s**2 - 2 * s**3) + end * (s**3 - s**2)
    speed = step * (6 * s - 6 * s**2) + end * (3 * s**2 - 2 * s)
    for message in stops:
        assert stamp_of(message.header.stamp) == 0, "start now"
        ((seconds, row),) = points(message)
        assert seconds == 0.05 and row == pytest.approx([where + speed / 3, -where - speed / 3])
        assert message.points[0].velocities.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", [ActionKind.JOINT_POSITION, ActionKind.JOINT_DELTA])
def test_a_stop_decelerates_along_the_plan_and_then_rests(kind: ActionKind) -> None:
    """0.4 rad/s is ended by 2 rad/s^2 in 0.2 s and 0.04 rad."""
    limits = {"velocity": (0.4,) * 2, "acceleration": (2.0,) * 2}
    arm = Arm(joint_space(kind), "trajectory", "positions", max_age_s=2.0, **limits)
    arm.measure()
    step = 0.02 * np.arange(1, 31) if kind.absolute else np.full(30, 0.02)
    shift = HERE[0] if kind.absolute else 0.0
    arm.cycle(np.column_stack([step + shift, np.ones(30), np.full(30, HERE[2] * kind.absolute)]))
    for _ in range(10):
        last = arm.notes.said["positions"][-1].data[0]
        arm.measure(np.array([last, 0.0, HERE[2]]))
        arm.tick()
    arm.bench.control.stop()
    begin = len(arm.notes.said["positions"]) - 2
    for _ in range(6):
        arm.tick()
    _, first, *later = arm.notes.said["joint_trajectory"]
    ((seconds, rest),) = points(first)
    since_s = 11 * 0.05 - 0.02  # its begin: 0.2 s to 0.4 rad/s, then as fast as that
    assert seconds == pytest.approx(0.2)
    assert rest[0] == pytest.approx(HERE[0] + 0.4 * (since_s - 0.1) + 0.04)
    assert {tuple(points(m)[0][1]) for m in later} == {tuple(rest)}
    told = [m.data[0] for m in arm.notes.said["positions"][begin:]]
    assert np.diff(told) == pytest.approx([0.02, 0.015, 0.01, 0.005, 0.0, 0.0, 0.0], abs=1e-9)


def test_a_worker_that_dies_stops_the_trajectory_and_another_one_goes_on() -> None:
    arm = Arm(joint_space(), "trajectory")
    arm.measure()
    arm.cycle(np.tile([0.2, 1.0, -0.2], (10, 1)))
    arm.bench.control.worker_lost("gone")
    arm.tick()
    arm.bench.control.worker_ready()
    for _ in range(2):
        arm.measure()
        arm.cycle(np.tile([0.3, 1.0, -0.3], (1, 1)))
    said = [points(m)[-1][1] for m in arm.notes.said["joint_trajectory"]]
    stops = said[1:-2]
    assert said[0] == [0.2, -0.2] and said[-2:] == [[0.3, -0.3]] * 2
    assert stops and {tuple(stop) for stop in stops} == {tuple(stops[0])}
    assert 0.16 < stops[0][0] < 0.25, "on the way that it was on, and not back"


@pytest.mark.parametrize("silence_after_s", [0.0, 1.0])
def test_a_chunk_that_goes_on_after_a_hold_is_said_anew(silence_after_s: float) -> None:
    arm = Arm(joint_space(), "trajectory", max_age_s=2.0, silence_after_s=silence_after_s)
    arm.measure()
    arm.cycle(np.tile([0.2, 1.0, -0.2], (20, 1)))
    loop = arm.bench.loop
    loop.become(safety.hold(loop.safety, "the pixels do not change", arm.bench.clock.steady))
    for _ in range(3):  # clean actions: the third ends the hold
        arm.measure()
        arm.tick()
    lengths = [len(m.points) for m in arm.notes.said["joint_trajectory"]]
    assert lengths == [21, *([1, 1] if silence_after_s else [1]), 20], "each with its hold"


def test_an_output_that_is_left_alone_is_stopped_once() -> None:
    arm = Arm(
        joint_space(),
        "trajectory",
    )
    arm.measure()
    arm.cycle(np.tile([0.2, 1.0, -0.2], (10, 1)))
    arm.bench.control.deactivate()
    arm.tick()
    _, *stops = arm.notes.said["joint_trajectory"]
    assert stops and all(points(stop) == [(0.05, [0.1, -0.1])] for stop in stops)


def test_a_single_action_is_held_until_its_observation_is_too_old() -> None:
    """Over after one period, it would be refused by a controller that gets it 50 ms late."""
    arm = Arm(joint_space(), "trajectory", max_age_s=0.5)
    arm.measure()
    arm.cycle(np.array([0.2, 1.0, -0.2]))
    (command,), (message,) = arm.bench.out.commands, arm.notes.said["joint_trajectory"]
    left_s = (command.valid_until_ns - stamp_of(message.header.stamp)) / 1e9
    assert left_s > 0.4
    times, rows = zip(*points(message), strict=True)
    assert times == (0.05, 0.1, pytest.approx(left_s))
    assert list(rows) == [[0.2, -0.2]] * 3


# Positions


def test_positions_are_commanded_every_period_and_hold_where_nothing_new_came() -> None:
    arm = Arm(joint_space(), "positions")
    arm.measure()
    arm.cycle(np.array([0.2, 0.5, -0.2]))
    arm.tick()
    arm.measure(np.array([0.18, 0.0, -0.18]))
    arm.bench.control.stop()
    arm.tick()
    said = [list(m.data) for m in arm.notes.said["positions"]]
    assert said == [[0.2, -0.2]] * 3, "a servo that sags is led no farther down"
    assert [list(m.data) for m in arm.notes.said["gripper_positions"]] == [[0.02]] * 3


def test_positions_of_displacements_are_where_the_joints_are_and_so_much_more() -> None:
    arm = Arm(joint_space(ActionKind.JOINT_DELTA), "positions")
    arm.measure()
    arm.cycle(np.array([0.2, 1.0, -0.2]))
    arm.tick()
    arm.measure(np.array([0.25, 0.0, -0.25]))
    arm.cycle(np.array([0.2, 1.0, -0.2]))
    arm.bench.control.worker_lost("gone")
    arm.tick()
    said = [m.data.tolist() for m in arm.notes.said["positions"]]
    assert np.array(said) == pytest.approx(
        np.array([[0.3, -0.3], [0.3, -0.3], [0.45, -0.45], [0.45, -0.45]])
    )


class Servo:
    """Joints that make a share of the way to where they are told in each period."""

    def __init__(self, arm: Arm, share: float, topic: str) -> None:
        self.arm, self.share, self.topic = arm, share, topic
        self.at = np.zeros(2)

    def goes(self, periods: int, step: float = 0.02, free: bool = True) -> list[np.ndarray]:
        """So many displacements by ``step``; what was told in each."""
        told = []
        for _ in range(periods):
            self.arm.measure(np.array([self.at[0], 0.0, self.at[1]]))
            self.arm.cycle(np.array([step, 1.0, -step]))
            message = self.arm.notes.said[self.topic][-1]
            row = message.data if self.topic == "positions" else message.points[0].positions
            told.append(np.array(row))
            if free:
                self.at = self.at + self.share * (told[-1] - self.at)
        return told


@pytest.mark.parametrize("output", ["positions", "trajectory"])
@pytest.mark.parametrize("share", [1.0, 0.7, 0.35])
def test_displacements_from_the_last_command_are_all_made_by_a_servo_that_lags(
    output: str, share: float
) -> None:
    """Those from the measured joints only by the servo's share."""
    topic = {"positions": "positions", "trajectory": "joint_trajectory"}[output]
    space = joint_space(ActionKind.JOINT_DELTA)
    far = {}
    for word in ("commanded", "measured"):
        arm = Servo(Arm(space, output, joint_delta_from=word), share, topic)
        arm.goes(100)
        far[word] = arm.at
    lag = 0.02 * (1 - share) / share
    assert far["commanded"] == pytest.approx([2.0 - lag, lag - 2.0], abs=1e-6)
    assert far["measured"] == pytest.approx([2.0 * share, -2.0 * share])


@pytest.mark.parametrize("output", ["positions", "trajectory"])
@pytest.mark.parametrize("word", ["commanded", "measured"])
def test_one_wrong_reading_is_no_leap_of_displacements(output: str, word: str) -> None:
    """Even where the intake takes it in: 1.21 -> 0.01 -> 1.21 rad in two periods it was."""
    topic = {"positions": "positions", "trajectory": "joint_trajectory"}[output]
    space, limits = joint_space(ActionKind.JOINT_DELTA), {"velocity": (0.5,) * 2}
    servo = Servo(Arm(space, output, joint_delta_from=word, **limits), 0.7, topic)
    servo.at = np.array([1.2, -1.2])
    told = servo.goes(10)
    right, servo.at = servo.at, np.zeros(2)
    told += servo.goes(1, free=False)
    servo.at = right
    told += servo.goes(5)
    assert np.abs(np.diff(told, axis=0)).max() <= 0.025 + 1e-9


def test_of_an_arm_that_is_held_back_the_target_stays_near() -> None:
    space = joint_space(ActionKind.JOINT_DELTA)
    ends = {"low": (-0.04,) * 2, "high": (0.04,) * 2}
    arm = Servo(Arm(space, "positions", joint_delta_from="commanded", **ends), 1.0, "positions")
    arm.goes(20)
    held = arm.goes(100, free=False)
    late = 1 + (0.3 + 0.05) / 0.05  # leash_s, the age of the reading, and the period
    assert np.abs(held - arm.at).max() <= late * 0.04 + 1e-9
    assert held[-1][0] - arm.at[0] > 0.1, "it does lean on what holds it"
    back = arm.goes(15, step=-0.02)
    assert back[-1][0] < arm.at[0] + 0.02, "and comes back at once"


@pytest.mark.parametrize("word", ["commanded", "measured"])
def test_after_a_silent_stop_displacements_begin_where_the_joints_are(word: str) -> None:
    space = joint_space(ActionKind.JOINT_DELTA)
    arm = Arm(space, "positions", joint_delta_from=word, velocity=(0.5,) * 2)
    servo = Servo(arm, 0.35, "positions")
    servo.goes(10)
    arm.bench.control.stop()
    for _ in range(30):
        arm.tick()
    servo.at = np.array([-0.3, 0.3])  # moved by hand
    arm.bench.control.set_instruction("again")
    (told,) = servo.goes(1)
    assert told == pytest.approx([-0.28, 0.28])


@pytest.mark.parametrize("silent", [False, True], ids=["STOP", "no command"])
def test_a_stop_of_displacements_stays_where_they_led(silent: bool) -> None:
    space = joint_space(ActionKind.JOINT_DELTA)
    stale = StaleAction.SILENCE if silent else StaleAction.ZERO
    arm = Arm(space, "positions", joint_delta_from="commanded", stale_action=stale)
    servo = Servo(arm, 0.2, "positions")
    last = servo.goes(30)[-1]
    arm.bench.control.stop()
    begin = len(arm.notes.said["positions"])
    for _ in range(8):
        arm.tick()
    said = [m.data.tolist() for m in arm.notes.said["positions"][begin:]]
    assert said == [last.tolist()] * len(said) and len(said) == (1 if silent else 8)


@pytest.mark.parametrize("output", ["positions", "trajectory"])
def test_what_a_displacement_is_added_to_is_not_guessed(output: str) -> None:
    space, given = joint_space(ActionKind.JOINT_DELTA), {"outputs": [output]}
    with pytest.raises(ValueError, match="need joint_delta_from: measured where") as caught:
        check_outputs(DEFAULTS | given, space)
    assert "\n" not in str(caught.value)
    check_outputs(DEFAULTS | given | {"joint_delta_from": "commanded"}, space)
    check_outputs(DEFAULTS | given, joint_space())
    check_outputs(DEFAULTS, space)


# Limits of the robot's own


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"outputs": ["twist"]}, "outputs twist need limits of the robot's own.* 0.05 m .* action"),
        ({"outputs": ["twist"], "velocity_limits": [0.25] * 3 + [1.0] * 3}, ""),
        ({"outputs": ["twist"], "bounds_high": [0.02] * 3 + [0.1] * 3}, ""),
        ({"outputs": [""]}, ""),
    ],
)
def test_a_robot_is_not_driven_by_a_simulation_s_limits(given: dict, says: str) -> None:
    if not says:
        validate(DEFAULTS | given, sim_time=False)
        return
    with pytest.raises(ValueError, match=says) as caught:
        validate(DEFAULTS | given, sim_time=False)
    assert "\n" not in str(caught.value)
    assert "velocity_limits" in str(caught.value) and "bounds_low" in str(caught.value)


# Refusals


@pytest.mark.parametrize(
    ("outputs", "space", "says"),
    [
        (["twits"], joint_space(), "outputs has 'twits', must be of twist, trajectory"),
        (["twist"], joint_space(), "the twist output needs action_space end_effector_delta"),
        (["twist"], end_effectors(ActionKind.END_EFFECTOR_POSE), "needs action_space end_eff"),
        (["trajectory"], end_effectors(ActionKind.END_EFFECTOR_DELTA), "the trajectory output"),
        (["positions"], end_effectors(ActionKind.END_EFFECTOR_POSE), "the positions output"),
    ],
)
def test_an_output_that_cannot_express_it_is_refused(
    outputs: list[str], space: ActionSpace, says: str
) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        check_outputs(DEFAULTS | {"outputs": outputs}, space)
    assert "\n" not in str(caught.value)


def test_grippers_have_ends_of_their_own_or_the_same() -> None:
    two = joints(ActionKind.JOINT_POSITION, ("a", "l", "r"), ("l", "r"))
    assert gripper_ends({"gripper_range": [0.0, 0.1]}, two) == ((0.0, 0.1),) * 2
    assert gripper_ends({"gripper_range": [0.8, 0.0, 0.0, 1.0]}, two) == ((0.8, 0.0), (0.0, 1.0))
    with pytest.raises(ValueError, match="gripper_range needs 2 values, or 2 a gripper, 4"):
        gripper_ends({"gripper_range": [0.0, 0.1, 0.2]}, two)


@pytest.mark.skipif(
    importlib.util.find_spec("control_msgs") is not None, reason="control_msgs is here"
)
def test_gripper_goals_need_control_msgs() -> None:
    with pytest.raises(ValueError, match="needs the ROS package control_msgs") as caught:
        check_outputs(DEFAULTS | {"outputs": ["gripper"]}, joint_space())
    assert "\n" not in str(caught.value)
