"""The judge of motion: what is allowed passes, and every planted break is found by its own rule."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.motion_judge import KINDS, MotionJudge
from support.motion_limits import Limits, Readings, rotation_between

POLICY, HELD, STOP, TAKEOVER = range(4)
T = 0.05
ZERO_NS = 1_800_000_000_000_000_000
JOINTS: dict[str, Any] = {
    "action_space": "joint_position",
    "action_names": ["j1", "j2", "g"],
    "gripper_names": ["g"],
    "gripper_range": [0.8, 0.0],
    "bounds_low": [-2.0, -2.0],
    "bounds_high": [2.0, 2.0],
    "velocity_limits": [1.0, 2.0],
    "acceleration_limits": [0.0],
    "control_rate_hz": 1 / T,
    "outputs": ["positions"],
    "policy": "replay",
}
HAND: dict[str, Any] = JOINTS | {
    "action_space": "end_effector_delta",
    "bounds_low": [-0.1] * 6,
    "bounds_high": [0.1] * 6,
    "velocity_limits": [1.0] * 6,
    "outputs": ["twist"],
}
POSE = HAND | {
    "action_space": "end_effector_pose",
    "bounds_low": [-1.0] * 3 + [-4.0] * 3,
    "bounds_high": [1.0] * 3 + [4.0] * 3,
    "outputs": [""],
}
JERKY = {"acceleration_limits": [4.0, 4.0]}
HAND_NAMES = ["x", "y", "z", "rx", "ry", "rz", "gripper"]


def ns(at: float) -> int:
    return ZERO_NS + round(at * 1e9)


def stamp(at: float | None) -> Any:
    sec, nanosec = divmod(0 if at is None else ns(at), 10**9)
    return SimpleNamespace(sec=sec, nanosec=nanosec)


class Node:
    """A policy node with outputs, as far as its messages go: a call is one of each."""

    def __init__(self, parameters: dict[str, Any], **changes: Any) -> None:
        self.judge = MotionJudge()
        self.values = parameters | changes
        self.judge.limits(self.values, ns(0.0))
        self.at = 1.0
        self.sequence = 0
        joints = "joint" in self.values["action_space"]
        self.names = self.values["action_names"] if joints else HAND_NAMES

    def measure(self, at: float | None = None, **joints: float) -> None:
        at = self.at if at is None else at
        message = SimpleNamespace(name=list(joints), position=list(joints.values()))
        self.judge.hear("joint_states", message, ns(at))

    def stands(self, **joints: float) -> None:
        """For some readings up to now."""
        for i in range(5):
            self.measure(self.at - 0.01 * (5 - i), **joints)

    def act(
        self, *motion: float, kind: int = POLICY, gripper: float = math.nan, valid_s: float = 0.45
    ) -> None:
        message = SimpleNamespace(
            header=SimpleNamespace(stamp=stamp(self.at)),
            kind=kind,
            valid_until=stamp(self.at + valid_s)
            if kind != STOP
            else SimpleNamespace(sec=0, nanosec=0),
            sequence=self.sequence,
            names=self.names,
            action=[*motion, gripper],
        )
        self.sequence += 1
        self.judge.hear("action", message, ns(self.at) + 100_000, self.sequence, "node")

    def output(self, topic: str, message: Any, late: float = 0.0005) -> None:
        self.judge.hear(topic, message, ns(self.at + late))

    def go(self, *motion: float, kind: int = POLICY, gripper: float = math.nan) -> None:
        """A period: the action, and the output of joints."""
        self.act(*motion, kind=kind, gripper=gripper)
        self.output("positions", SimpleNamespace(data=list(motion)))
        self.at += T

    def turn(self, *rate: float, kind: int = POLICY, gripper: float = math.nan) -> None:
        """A period: a displacement, and the twist of it."""
        six = [*rate, *[0.0] * (6 - len(rate))]
        self.act(*(T * x for x in six), kind=kind, gripper=gripper)
        linear, angular = (dict(zip("xyz", part, strict=True)) for part in (six[:3], six[3:]))
        twist = SimpleNamespace(
            linear=SimpleNamespace(**linear), angular=SimpleNamespace(**angular)
        )
        header = SimpleNamespace(stamp=stamp(self.at))
        self.output("twist", SimpleNamespace(twist=twist, header=header))
        self.at += T

    def course(
        self,
        *points: tuple[float, ...],
        kind: int = POLICY,
        lead: float | None = 0.02,
        periods: float = 1.0,
        valid_s: float = 0.45,
        each: float = T,
    ) -> None:
        """A trajectory, each point a period after the one before, for so many ``periods``."""
        self.act(*points[0], kind=kind, valid_s=valid_s)
        message = SimpleNamespace(
            header=SimpleNamespace(
                stamp=SimpleNamespace(sec=0, nanosec=0) if lead is None else stamp(self.at + lead)
            ),
            joint_names=["j1", "j2"],
            points=[
                SimpleNamespace(
                    positions=list(point),
                    time_from_start=SimpleNamespace(sec=0, nanosec=round((i + 1) * each * 1e9)),
                )
                for i, point in enumerate(points)
            ],
        )
        self.output("joint_trajectory", message)
        self.at += periods * T

    @property
    def lines(self) -> list[str]:
        return self.judge.finish()

    @property
    def rules(self) -> set[tuple[str, str]]:
        self.judge.finish()
        return set(self.judge.breaks)


def both(*rules: str) -> set[tuple[str, str]]:
    """These rules, broken by the action and by the positions."""
    return set(itertools.product(("action", "positions"), rules))


# What is allowed


def test_messages_are_counted_by_topic_and_kind() -> None:
    node = Node(JOINTS)
    node.go(0.0, 0.0)
    node.go(0.0, 0.0, kind=HELD)
    node.go(0.0, 0.0, kind=STOP)
    assert not node.lines
    assert node.judge.judged == {
        (topic, KINDS[kind]): 1
        for topic in ("action", "positions")
        for kind in (POLICY, HELD, STOP)
    }


def test_nothing_is_judged_before_the_limits_are_known() -> None:
    judge = MotionJudge()
    judge.hear("positions", SimpleNamespace(data=[math.nan]), ns(1.0))
    assert not judge.finish() and not judge.judged
    judge.limits({"policy": "zero"}, ns(2.0))
    assert not judge.finish() and not judge.judged


def bounded(goal: float, at: float, rate: float, most: float, by: float, lapse: float) -> float:
    """The speed of a joint that goes to ``goal`` and can stop there."""
    left = goal - at
    reach = abs(left) / lapse  # at once
    stop = math.sqrt(max(0.0, (by * lapse / 2) ** 2 + 2 * by * abs(left))) - by * lapse / 2
    wish = math.copysign(min(reach, stop, most), left)
    return min(max(wish, rate - by * lapse), rate + by * lapse)


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([POLICY, POLICY, POLICY, HELD, STOP, TAKEOVER]),
            st.floats(-1.8, 1.8),
            st.sampled_from([0.0, 0.0, 0.0, 0.004, 0.03, 0.12]),  # a tick is late by
            st.sampled_from([0.0, 0.001, 0.015]),  # it is sent later by
        ),
        min_size=5,
        max_size=60,
    ),
    st.sampled_from([0.5, 2.0, 20.0]),
)
def test_a_motion_within_its_limits_passes_whatever_the_clock_does(
    ticks: list[tuple[int, float, float, float]], acceleration: float
) -> None:
    """Steps are made for the time that has passed, at most a period: a late tick buys no way."""
    limits = {"velocity_limits": [1.0, 2.0], "acceleration_limits": [acceleration] * 2}
    node = Node(JOINTS, **limits)
    position, rate, due, last = 0.0, 0.0, node.at, node.at - T
    node.stands(j1=0.0, j2=0.0)
    stopped = False
    for kind, goal, late, sent in ticks:
        node.at = due + late
        lapse, last = min(node.at - last, T), node.at
        stopped = kind == STOP or (stopped and kind == HELD)
        if stopped:
            rate = math.copysign(max(0.0, abs(rate) - acceleration * lapse), rate)
        else:
            rate = bounded(goal, position, rate, 1.0, acceleration, lapse)
        position += rate * lapse
        node.act(position, 0.0, kind=kind)
        node.output("positions", SimpleNamespace(data=[position, 0.0]), 0.0005 + sent)
        node.measure(node.at + 0.001, j1=position, j2=0.0)
        while due <= node.at + sent:
            due += T
    assert not node.lines


@given(st.lists(st.floats(-1.5, 1.5), min_size=3, max_size=12), st.sampled_from([2.0, 10.0]))
def test_trajectories_that_go_on_from_one_another_and_brake_at_their_ends_pass(
    goals: list[float], acceleration: float
) -> None:
    node = Node(JOINTS, acceleration_limits=[acceleration] * 2, outputs=["trajectory"])
    node.stands(j1=0.0, j2=0.0)
    position, rate = 0.0, 0.0
    for i, goal in enumerate(goals):
        if i % 4 == 3:  # a stop: as slow as may be, from where the motion is
            rows = braking(position, rate, acceleration)
            node.course(*rows, kind=STOP, lead=None, periods=len(rows) + 1)
            position, rate = rows[-1][0], 0.0
            continue
        rows, at, speed = [], position, rate
        for n in range(6):
            speed = bounded(goal, at, speed, 1.0, acceleration, T)
            at += speed * T
            rows.append((at, 0.0))
            if n == 2:  # where the next one takes over
                position, rate = at, speed
        rows += braking(at, speed, acceleration)
        node.course(*rows, lead=0.0, periods=3, valid_s=0.3)
        for k in range(3):
            node.measure(node.at - 0.01 * (3 - k), j1=rows[2][0], j2=0.0)
    assert not only(node), node.lines


def braking(at: float, speed: float, acceleration: float) -> list[tuple[float, float]]:
    rows = []
    while abs(speed) > acceleration * T:
        speed -= math.copysign(acceleration * T, speed)
        at += speed * T
        rows.append((at, 0.0))
    return [*rows, (at, 0.0)]


def test_how_a_trajectory_begins_that_was_not_heard_from_its_begin_is_not_known_at_once() -> None:
    """From where the robot is measured, a reading away from where the node has it."""
    node = trajectories(**JERKY)
    node.course((0.0, 0.0), periods=0.98)  # it is at 0.01 by now, and is slowing down
    node.course((-0.018, 0.0), (-0.028, 0.0), (-0.028, 0.0), periods=1.02)
    assert not only(node), node.lines
    node.course((-0.06, 0.0))
    assert only(node) == {"acceleration"}


def test_a_late_message_of_a_trajectory_s_stop_is_where_the_motion_is_by_then() -> None:
    node = Node(JOINTS, outputs=["trajectory"])
    node.stands(j1=0.0, j2=0.0)
    node.course(*((0.05 * i, 0.0) for i in range(1, 8)), lead=0.0, periods=2.4)
    node.course((0.12, 0.0), kind=STOP, lead=None, periods=1.7)
    for _ in range(3):
        node.course((0.12, 0.0), kind=STOP, lead=None)
    assert not only(node), node.lines


def test_a_pause_ends_where_the_robot_is_or_where_it_was_sent_last() -> None:
    for at in (0.0, 0.7):
        node = Node(JOINTS)
        node.stands(j1=0.0, j2=0.0)
        node.go(0.04, 0.0)
        node.at += 0.5
        node.stands(j1=0.7, j2=0.0)
        node.go(at + 0.04, 0.0)
        assert not node.lines, at


def test_an_activation_begins_where_the_robot_is_however_soon_it_comes() -> None:
    node = Node(JOINTS)
    node.stands(j1=0.0, j2=0.0)
    for x in (0.05, 0.10, 0.15):
        node.go(x, 0.0)
    node.stands(j1=0.11, j2=0.0)
    inactive = SimpleNamespace(state=1, STATE_UNCONFIGURED=0, STATE_INACTIVE=1)
    node.judge.hear("status", inactive, ns(node.at - 0.02))
    node.go(0.02, 0.0, kind=STOP)
    assert node.rules == both("begin"), "but not anywhere"
    node.stands(j1=0.11, j2=0.0)
    node.judge.hear("status", inactive, ns(node.at - 0.02))
    node.go(0.11, 0.0, kind=STOP)
    assert sum(node.judge.breaks.values()) + len(node.rules) == 4


def test_an_arm_outside_of_its_bounds_may_stand_there_or_come_back() -> None:
    node = Node(JOINTS)
    node.stands(j1=2.5, j2=0.0)
    for x in (2.5, 2.5, 2.46, 2.42, 2.40):
        node.go(x, 0.0)
    assert not node.lines


def test_a_joint_that_brakes_may_still_get_past_bounds_that_have_just_become_narrower() -> None:
    node = Node(JOINTS, **JERKY)
    node.stands(j1=0.0, j2=0.0)
    x, speeds = 0.0, [0.2, 0.4, 0.6, 0.8, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0, -0.2]
    for i, speed in enumerate(speeds):
        if i == 5:
            node.judge.limits(node.values | {"bounds_high": [x, 2.0]}, ns(node.at - T / 2))
        x += speed * T
        node.go(x, 0.0)
        node.stands(j1=x, j2=0.0)
    assert not node.lines


@pytest.mark.parametrize("new", [0.2, 5.0])
def test_around_a_change_of_limits_the_old_or_the_new_ones_hold_for_two_periods(new: float) -> None:
    node = Node(JOINTS)
    node.stands(j1=0.0, j2=0.0)
    node.go(0.04, 0.0)
    node.judge.limits(node.values | {"velocity_limits": [new, new]}, ns(node.at - T / 2))
    fast = max(new, 1.0) * T
    for i in range(2):
        node.go(0.04 + (i + 1) * fast, 0.0)
    assert not node.lines
    node.at += 3 * T
    node.go(0.04 + 3 * fast, 0.0)
    if new < 1.0:
        assert ("positions", "speed") in node.rules
    else:
        assert not node.lines


def test_a_message_that_was_lost_is_no_leap() -> None:
    node = Node(JOINTS)
    node.stands(j1=0.0, j2=0.0)
    node.go(0.0, 0.0)
    node.sequence += 3
    node.act(0.15, 0.0)
    assert not node.lines


def test_a_command_that_is_sent_again_in_lock_step_is_no_second_one() -> None:
    node = Node(HAND, acceleration_limits=[4.0] * 6, use_sim_time=True)
    node.turn(0.2)
    node.turn(0.4)
    node.at -= T
    node.turn(0.4)
    node.turn(0.6)
    assert not node.lines


def test_simulated_time_may_hurry_or_crawl() -> None:
    for pace in (0.1, 20.0):
        node = Node(JOINTS, use_sim_time=True, **JERKY)
        x = 0.0
        for i in range(12):
            x += min(0.2 * (i + 1), 1.0) * T
            message = SimpleNamespace(
                header=SimpleNamespace(stamp=stamp(1.0 + i * T)), kind=POLICY, sequence=i,
                valid_until=stamp(2.0 + i * T), names=node.names, action=[x, 0.0, math.nan],
            )  # fmt: skip
            sent = ns(1.0 + i * T * pace)
            node.judge.hear("action", message, sent)
            node.judge.hear("positions", SimpleNamespace(data=[x, 0.0]), sent + 10**5)
        assert not node.lines, pace


def test_the_pose_of_a_hand_that_points_down_may_flip_its_axis() -> None:
    node = Node(POSE)
    for angle in (3.10, 3.14, -3.12, -3.09):
        node.act(0.4, 0.0, 0.3, angle, 0.0, 0.0)
        node.at += T
    assert not node.lines
    node.act(0.4, 0.0, 0.3, -2.9, 0.0, 0.0)
    assert node.rules == {("action", "speed")}


def test_a_continuous_joint_is_measured_within_a_turn_and_commanded_as_its_controller_wants() -> (
    None
):
    for wrapped in (False, True):
        said = "wrapped" if wrapped else "unwrapped"
        node = Node(JOINTS, continuous_joints=["j1"], continuous_as=said,
                    bounds_low=[-9.0] * 2, bounds_high=[9.0] * 2)  # fmt: skip
        node.stands(j1=3.12, j2=0.0)
        for x in (3.12, 3.16, 3.20):
            here = (x + math.pi) % (2 * math.pi) - math.pi
            node.go(here if wrapped else x, 0.0)
            node.stands(j1=here, j2=0.0)
        assert not node.lines, wrapped
    node = Node(JOINTS, continuous_joints=["j1"], bounds_low=[-9.0] * 2, bounds_high=[9.0] * 2)
    node.go(3.12, 0.0)
    node.go(3.16 - 2 * math.pi, 0.0)
    assert node.rules == both("speed"), "a whole turn, to a controller that does not wrap"


@pytest.mark.parametrize("kind", [POLICY, TAKEOVER])
def test_a_policy_and_a_person_may_open_a_gripper(kind: int) -> None:
    node = Node(JOINTS)
    node.measure(g=0.4)
    for value in (0.5, 1.0, 0.0):
        node.go(0.0, 0.0, kind=kind, gripper=value)
        node.output("gripper_positions", SimpleNamespace(data=[0.8 * (1 - value)]), -0.04)
    node.go(0.0, 0.0, kind=STOP, gripper=0.0)
    node.go(0.0, 0.0, kind=HELD)
    assert not node.lines


def test_a_gripper_may_be_commanded_to_stay_where_it_is_measured() -> None:
    node = Node(JOINTS, policy="zero")
    node.stands(j1=0.0, j2=0.0, g=0.2)
    for kind, value in zip((STOP, POLICY, HELD, STOP), (0.75, 0.75, 0.74, 0.76), strict=True):
        node.go(0.0, 0.0, kind=kind, gripper=value)
    assert not node.lines
    node.go(0.0, 0.0, kind=STOP, gripper=0.6)
    assert node.rules == {("action", "gripper")}


# What is found


def jerk(node: Node) -> None:
    """Faster than the acceleration allows, from rest."""
    for x in (0.0, 0.04, 0.08):
        node.go(x, 0.0)


def leap(node: Node) -> None:
    for x in (0.0, 0.04, 0.5):
        node.go(x, 0.0)


def late(node: Node) -> None:
    """A tick that comes late makes up for it."""
    for x in (0.0, 0.05):
        node.go(x, 0.0)
    node.at += 2 * T
    node.go(0.15, 0.0)


def hurried(node: Node) -> None:
    """A whole step right after the one before."""
    for x in (0.0, 0.05):
        node.go(x, 0.0)
    node.at -= 0.8 * T
    node.go(0.10, 0.0)


def outside(node: Node) -> None:
    for x in (1.98, 2.01):
        node.go(x, 0.0)


def farther_outside(node: Node) -> None:
    node.stands(j1=2.5, j2=0.0)
    for x in (2.5, 2.52):
        node.go(x, 0.0)


def thrown_to_its_bound(node: Node) -> None:
    node.stands(j1=2.3, j2=0.0)
    for x in (2.3, 2.26, 2.0):
        node.go(x, 0.0)


def stopped_by_going_back(node: Node) -> None:
    for x in (0.0, 0.04, 0.08):
        node.go(x, 0.0)
    node.go(0.06, 0.0, kind=STOP)


def stopped_and_going_on(node: Node) -> None:
    for x in (0.0, 0.04):
        node.go(x, 0.0)
    for x in (0.06, 0.08, 0.08, 0.081):  # slower, as slow, standing, creeping
        node.go(x, 0.0, kind=STOP)


def thrown_back_by_a_stop(node: Node) -> None:
    for x in (0.0, 0.01, 0.03, 0.06):
        node.go(x, 0.0)
    node.go(0.06, 0.0, kind=STOP)


def begun_at_a_wrong_reading(node: Node) -> None:
    for i, x in enumerate((1.2, 1.2, 0.0, 1.2, 1.2, 0.0)):
        node.measure(node.at - 0.01 * (6 - i), j1=x, j2=0.0)
    node.go(0.0, 0.0)


def running_away(node: Node) -> None:
    for i in range(12):
        node.stands(j1=0.0, j2=0.0)
        node.go(0.05 * i, 0.0)


def not_finite(node: Node) -> None:
    node.go(0.0, 0.0)
    node.go(math.nan, 0.0)


@pytest.mark.parametrize(
    ("plant", "rule", "more"),
    [
        (jerk, "acceleration", JERKY),
        (leap, "speed", {}),
        (late, "speed", {}),
        (hurried, "speed", {}),
        (outside, "bounds", {}),
        (farther_outside, "bounds", {}),
        (thrown_to_its_bound, "speed", {}),
        (stopped_by_going_back, "stop", {}),
        (stopped_and_going_on, "stop", {}),
        (thrown_back_by_a_stop, "acceleration", JERKY),
        (begun_at_a_wrong_reading, "begin", {}),
        (running_away, "leash", {}),
        (not_finite, "finite", {}),
    ],
)
def test_positions_that_break_a_rule_are_found(plant: Any, rule: str, more: Any) -> None:
    node = Node(JOINTS, **more)
    plant(node)
    assert node.rules == both(rule), node.lines
    assert len(node.lines) >= 2 and all(f", {rule}: " in line for line in node.lines)


@pytest.mark.parametrize(
    ("rates", "kinds", "rule", "more"),
    [
        ([0.5, 1.2], [POLICY] * 2, "speed", {}),
        ([0.5, 2.1], [POLICY] * 2, "bounds", {"velocity_limits": [0.0]}),
        ([0.1, 0.2, 0.5], [POLICY] * 3, "acceleration", {"acceleration_limits": [4.0] * 6}),
        ([0.5], [POLICY], "acceleration", {"acceleration_limits": [4.0] * 6}),
        (
            [0.2, 0.4, 0.0],
            [POLICY, POLICY, STOP],
            "acceleration",
            {"acceleration_limits": [4.0] * 6},
        ),
        ([0.2, 0.3], [POLICY, STOP], "stop", {}),
        ([0.2, -0.1], [POLICY, STOP], "stop", {}),
        ([0.2, 0.0, 0.1], [POLICY, STOP, STOP], "stop", {}),
        ([math.inf], [POLICY], "finite", {}),
    ],
)
def test_velocities_that_break_a_rule_are_found(
    rates: list[float], kinds: list[int], rule: str, more: Any
) -> None:
    node = Node(HAND, **more)
    for rate, kind in zip(rates, kinds, strict=True):
        node.turn(rate, kind=kind)
    assert node.rules == set(itertools.product(("action", "twist"), (rule,))), node.lines


def test_velocities_may_end_at_once_where_no_acceleration_is_limited() -> None:
    node = Node(HAND)
    for rate, kind in zip([0.9, -0.9, 0.9, 0.0, 0.0], [POLICY] * 3 + [STOP, STOP], strict=True):
        node.turn(rate, kind=kind)
    assert not node.lines


def test_a_turn_of_a_pose_is_an_angle() -> None:
    node = Node(POSE)
    for ry in (0.0, 0.1):  # about an axis of its own: 0.1 rad, and 0 of it in rx
        node.act(0.4, 0.0, 0.3, 3.0, ry, 0.0)
        node.at += T
    assert node.rules == {("action", "speed")}
    node = Node(POSE, bounds_low=[-1.0] * 3 + [-0.5] * 3, bounds_high=[1.0] * 3 + [0.5] * 3)
    for rx in (0.49, 0.52):
        node.act(0.4, 0.0, 0.3, rx, 0.0, 0.0)
        node.at += T
    assert node.rules == {("action", "bounds")}


def trajectories(**more: Any) -> Node:
    node = Node(JOINTS, outputs=["trajectory"], **more)
    node.stands(j1=0.0, j2=0.0)
    return node


def line(start: float, step: float, count: int) -> list[tuple[float, float]]:
    return [(start + step * (i + 1), 0.0) for i in range(count)]


def only(node: Node) -> set[str]:
    """Rules that trajectories broke."""
    node.judge.finish()
    return {rule for topic, rule in node.judge.breaks if topic == "joint_trajectory"}


def test_a_trajectory_that_is_too_fast_is_found() -> None:
    node = trajectories()
    node.course(*line(0.0, 0.04, 3), (0.2, 0.0))
    assert only(node) == {"speed"}
    node = trajectories()
    node.course((0.2, 0.0))
    assert only(node) == {"speed"}, "from where it stands"


def test_a_trajectory_that_throws_the_last_one_back_is_found() -> None:
    """It counts from the last command, not from where the plan is by now."""
    node = trajectories()
    node.course(*line(0.0, 0.05, 8), periods=5)
    node.course(*line(0.10, 0.05, 8), periods=3)
    assert only(node) == {"speed"}


def test_a_trajectory_that_changes_its_speed_too_much_is_found() -> None:
    for rows in (line(0.0, 0.05, 4), [*line(0.0, 0.01, 2), (0.05, 0.0)]):
        node = trajectories(**JERKY)
        node.course(*rows)
        assert "acceleration" in only(node)


def test_a_trajectory_that_ends_at_speed_is_found_once_nothing_has_replaced_it() -> None:
    rows = [(x, 0.0) for x in (0.01, 0.03, 0.06, 0.10)]
    node = trajectories(**JERKY)
    node.course(*rows, periods=2)
    node.course(*[(x, 0.0) for x in (0.06, 0.08, 0.09, 0.09)], periods=2)
    assert only(node) == set()
    node = trajectories(**JERKY)
    node.course(*rows, periods=6)
    node.course((0.10, 0.0), kind=STOP, lead=None)
    assert only(node) == {"acceleration"}


def test_a_trajectory_out_of_its_bounds_is_found() -> None:
    node = trajectories()
    node.at += 5.0
    node.stands(j1=1.95, j2=0.0)
    node.course((1.98, 0.0), (2.02, 0.0))
    assert only(node) == {"bounds"}


def test_a_stop_that_leads_a_trajectory_back_is_found() -> None:
    node = trajectories()
    node.course(*line(0.0, 0.05, 8), lead=0.0, periods=4)
    node.course((0.15, 0.0), kind=STOP, lead=None)
    assert only(node) == {"stop"}


def test_a_trajectory_that_outlives_its_command_is_found() -> None:
    node = trajectories()
    node.course(*line(0.0, 0.02, 8), valid_s=0.45)
    assert only(node) == set()
    node = trajectories()
    node.course(*line(0.0, 0.02, 10), valid_s=0.45)
    assert only(node) == {"valid_until"}
    node = trajectories(**JERKY)  # what brakes may end later
    node.course(*[(x, 0.0) for x in (0.01, 0.03, 0.05, 0.06, 0.06)], valid_s=0.17)
    assert only(node) == set()


def test_a_trajectory_that_runs_away_from_an_arm_that_stands_is_found() -> None:
    node = trajectories()
    for i in range(8):
        node.stands(j1=0.0, j2=0.0)
        node.course(*line(0.08 * i, 0.04, 6), lead=0.0, periods=2)
    assert only(node) == {"leash"}


def test_points_whose_times_do_not_rise_are_found() -> None:
    node = trajectories()
    node.course((0.0, 0.0), (0.0, 0.0), each=0.0)
    assert only(node) == {"times"}


def test_an_output_that_says_nothing_while_actions_are_commanded_is_found() -> None:
    node = Node(JOINTS, outputs=["positions", "trajectory"])
    for _ in range(30):
        node.go(0.0, 0.0)
    assert not node.lines, "not yet"
    for _ in range(50):
        node.go(0.0, 0.0)
    assert node.rules == {("joint_trajectory", "silent")}
    assert node.judge.breaks["joint_trajectory", "silent"] == 1


def test_two_writers_on_an_output_are_found_and_a_restart_is_none() -> None:
    for writers, found in (("aabb", set()), ("abab", {("positions", "writers")})):
        node = Node(JOINTS)
        for writer in writers:
            message = SimpleNamespace(data=[0.0, 0.0])
            node.judge.hear("positions", message, ns(node.at), None, writer)
            node.at += T
        assert node.rules == found


@pytest.mark.parametrize(
    ("kinds", "values", "more"),
    [
        ([STOP], [1.0], {}),
        ([POLICY, STOP], [0.5, 1.0], {}),
        ([POLICY, HELD], [0.5, 0.4], {}),
        ([POLICY, TAKEOVER, STOP], [0.5, 0.2, 0.5], {}),
        ([POLICY], [1.0], {"policy": "zero"}),
        ([TAKEOVER, POLICY], [0.5, 1.0], {"policy": "zero"}),
        ([POLICY], [1.2], {}),
    ],
)
def test_a_gripper_that_nobody_has_commanded_is_found(
    kinds: list[int], values: list[float], more: Any
) -> None:
    node = Node(JOINTS, **more)
    node.stands(j1=0.0, j2=0.0, g=0.6)  # 0.25 open
    for kind, value in zip(kinds, values, strict=True):
        node.act(0.0, 0.0, kind=kind, gripper=value)
        node.output("gripper_positions", SimpleNamespace(data=[0.8 * (1 - value)]))
        node.at += T
    assert node.rules == {("action", "gripper"), ("gripper_positions", "gripper")}, node.lines


def test_a_gripper_s_own_output_is_never_without_a_number() -> None:
    node = Node(HAND)
    node.output("gripper", SimpleNamespace(data=math.nan))
    assert node.rules == {("gripper", "gripper")}


def test_what_a_listener_has_not_heard_from_the_beginning_it_does_not_judge() -> None:
    node = Node(JOINTS)
    node.sequence = 17
    node.act(0.3, 0.0, kind=STOP, gripper=1.0)
    node.at += T
    node.act(0.3, 0.0, kind=STOP, gripper=1.0)
    assert not node.lines


# Its arithmetic


def matrix(axis_angle: Any) -> Any:
    """By Rodrigues' formula."""
    angle = np.linalg.norm(axis_angle)
    x, y, z = axis_angle / angle if angle else axis_angle
    across = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * across + (1 - np.cos(angle)) * across @ across


vectors = st.lists(st.floats(-3.0, 3.0), min_size=3, max_size=3).map(np.array)


@given(vectors, vectors)
def test_a_rotation_between_two_is_the_way_from_one_to_the_other(a: Any, b: Any) -> None:
    found = rotation_between(a, b)
    assert matrix(a) @ matrix(found) == pytest.approx(matrix(b), abs=1e-9)
    assert np.linalg.norm(found) <= math.pi + 1e-9


@given(st.data())
def test_wrong_readings_in_the_minority_are_not_where_a_joint_is(data: st.DataObject) -> None:
    readings, true = Readings(), 0.0
    for i in range(30):
        true += 0.01
        wrong = i % 3 == 2 and data.draw(st.booleans())
        readings.add(0.01 * i, "j1", data.draw(st.sampled_from([-3.0, 1.7])) if wrong else true)
        found = readings.at("j1", 0.01 * i, 1.0)
        if i >= 2 and found is not None:
            assert abs(found.value - true) <= 0.011


def test_readings_that_contradict_each_other_are_none() -> None:
    readings = Readings()
    for i in range(20):
        readings.add(0.01 * i, "j1", float(i % 2))
    assert readings.at("j1", 0.2, 0.5) is None


def test_parameters_that_describe_no_motion_are_no_limits() -> None:
    assert Limits.of({}) is None
    assert Limits.of(JOINTS | {"bounds_low": [0.0]}) is None
    twice = {"arms": ["left_", "right_"], "bounds_low": [-1.0] * 12, "bounds_high": [1.0] * 12}
    found = Limits.of(HAND | twice | {"velocity_limits": [1.0] * 12})
    assert found is not None and found.of_arm("right_") == list(range(6, 12))
    assert found.grippers == (6, 13) and found.acceleration is None
