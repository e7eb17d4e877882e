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
        self.sequence = self.index = 0
        self.phase = 0.0
        self.period = 1 / self.values["control_rate_hz"]
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
            observation_stamp=stamp(0.5),
            epoch=1,
            chunk_index=self.index,
            action_phase=self.phase,
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
        self.at += self.period

    def turn(self, *rate: float, kind: int = POLICY, gripper: float = math.nan) -> None:
        """A period: a displacement, and the twist of it."""
        six = [*rate, *[0.0] * (6 - len(rate))]
        self.act(*(self.period * x for x in six), kind=kind, gripper=gripper)
        linear, angular = (dict(zip("xyz", part, strict=True)) for part in (six[:3], six[3:]))
        twist = SimpleNamespace(
            linear=SimpleNamespace(**linear), angular=SimpleNamespace(**angular)
        )
        header = SimpleNamespace(stamp=stamp(self.at))
        self.output("twist", SimpleNamespace(twist=twist, header=header))
        self.at += self.period

    def course(
        self,
        *points: tuple[float, ...],
        kind: int = POLICY,
        lead: float | None = 0.02,
        periods: float = 1.0,
        valid_s: float = 0.45,
        each: float = T,
    ) -> None:
        """A trajectory for so many ``periods``: position and velocity of j1 at each point, which is
        a period after the one before, or its third number after the begin."""
        self.act(points[0][0], 0.0, kind=kind, valid_s=valid_s)
        times = [more[0] if more else (i + 1) * each for i, (_, _, *more) in enumerate(points)]
        message = SimpleNamespace(
            header=SimpleNamespace(
                stamp=SimpleNamespace(sec=0, nanosec=0) if lead is None else stamp(self.at + lead)
            ),
            joint_names=["j1", "j2"],
            points=[
                SimpleNamespace(
                    positions=[x, 0.0],
                    velocities=[v, 0.0],
                    time_from_start=SimpleNamespace(sec=0, nanosec=round(at * 1e9)),
                )
                for (x, v, *_), at in zip(points, times, strict=True)
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
        if kind == HELD and node.sequence == 0:
            kind = POLICY  # nothing is held yet
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
            (rest,) = braking(position, rate, acceleration, 0.0)
            node.course(rest, kind=STOP, lead=None, periods=math.ceil(rest[2] / T) + 1)
            position, rate = rest[0], 0.0
            continue
        changes, at, speed = [], position, rate
        for _ in range(6):
            wish = bounded(goal, at, speed, 1.0, acceleration, T)
            changes.append((wish - speed) / T)
            at, speed = ride(at, speed, changes[-1])[-1]
        rows = ride(position, rate, *changes)
        position, rate = rows[2]  # where the next one takes over
        node.course(*rows, *braking(at, speed, acceleration), lead=0.0, periods=3, valid_s=0.3)
        for k in range(3):
            node.measure(node.at - 0.01 * (3 - k), j1=rows[2][0], j2=0.0)
    assert not only(node), node.lines


def ride(at: float, speed: float, *changes: float) -> list[tuple[float, ...]]:
    """Positions and velocities after periods of these accelerations."""
    rows = []
    for change in changes:
        at, speed = at + speed * T + change * T * T / 2, speed + change * T
        rows.append((at, speed))
    return rows


def braking(
    at: float, speed: float, acceleration: float, after: float = 6 * T
) -> list[tuple[float, ...]]:
    """To rest at once, so many seconds after the begin."""
    time = max(abs(speed) / acceleration, 1e-3)
    return [(at + speed * time / 2, 0.0, after + time)]


def test_how_a_trajectory_begins_that_was_not_heard_from_its_begin_is_not_known_at_once() -> None:
    """From where the robot is measured, a reading away from where the node has it."""
    node = trajectories(**JERKY)
    node.course((0.0, 0.0), periods=0.5)  # it comes from 0.004, is at 0.002 and as fast as -0.12
    later = ride(0.002, -0.12, 4.0)
    node.course(*later, (later[-1][0] + later[-1][1] * T / 2, 0.0), periods=3)
    assert not only(node), node.lines
    node.course((-0.06, 0.0))
    assert only(node) == {"acceleration", "speed"}


def test_a_late_message_of_a_trajectory_s_stop_is_where_the_motion_is_by_then() -> None:
    node = Node(JOINTS, outputs=["trajectory"])
    node.stands(j1=0.0, j2=0.0)
    rows = [*ride(0.0, 0.0, 10.0, 10.0, *[0.0] * 4)]
    node.course(*rows, (rows[-1][0] + T / 2, 0.0), lead=0.0, periods=2.4)
    rest = rows[1][0] + 0.4 * T + T / 3
    node.course((rest, 0.0), kind=STOP, lead=None, periods=1.7)
    for _ in range(3):
        node.course((rest, 0.0), kind=STOP, lead=None)
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
    inactive = SimpleNamespace(
        state=1, STATE_UNCONFIGURED=0, STATE_INACTIVE=1, action_rate_hz=1 / T
    )
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
                observation_stamp=stamp(0.5), epoch=1, chunk_index=i, action_phase=0.0,
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


def only(node: Node) -> set[str]:
    """Rules that trajectories broke."""
    node.judge.finish()
    return {rule for topic, rule in node.judge.breaks if topic == "joint_trajectory"}


def at_rest(*rows: tuple[float, ...]) -> list[tuple[float, ...]]:
    """They and a period more, in which it comes to rest."""
    at, speed = rows[-1]
    return [*rows, (at + speed * T / 2, 0.0)]


def test_a_trajectory_that_is_too_fast_is_found() -> None:
    node = trajectories()
    node.course(*at_rest(*ride(0.0, 0.0, 10.0, 0.0, 14.0)))
    assert only(node) == {"speed"}
    node = trajectories()
    node.course((0.2, 0.0))
    assert only(node) == {"speed"}, "from where it stands"


def test_a_trajectory_that_is_too_fast_between_two_points_is_found() -> None:
    """Where it is no faster than the limit in the mean, nor at either point."""
    node = trajectories()
    node.course(*ride(0.0, 0.0, 0.0, 0.0), (0.045, 0.0))
    assert only(node) == {"speed"}


def test_a_trajectory_without_velocities_and_one_that_ends_in_motion_are_found() -> None:
    node = trajectories()
    node.course((0.0, math.nan))
    assert only(node) == {"finite"}
    node = trajectories()
    node.course(*ride(0.0, 0.0, 2.0, 0.0))
    assert only(node) == {"rest"}


def test_a_trajectory_that_throws_the_last_one_back_is_found() -> None:
    """It counts from the last command, not from where the plan is by now."""
    node = trajectories()
    rows = ride(0.0, 0.0, *[10.0] * 2, *[0.0] * 5)
    node.course(*at_rest(*rows), periods=5)
    node.course(*at_rest(*((x, v) for x, v in rows[2:])), periods=3)
    assert only(node) == {"speed"}


def test_a_trajectory_that_changes_its_speed_too_much_is_found() -> None:
    for changes in ((4.1,), (1.0, 1.0, 5.0)):
        node = trajectories(**JERKY)
        node.course(*at_rest(*ride(0.0, 0.0, 0.0, *changes, -2.0)))
        assert "acceleration" in only(node)


def test_a_corner_between_two_trajectories_is_found() -> None:
    """The new one counts from rest, and the motion is as fast as 0.6 rad/s."""
    node = trajectories(**JERKY)
    rows = ride(0.0, 0.0, 4.0, 4.0, 4.0, 0.0, 0.0, -4.0, -4.0)
    node.course(*at_rest(*rows), lead=0.0, periods=3)
    node.course((rows[2][0], 0.0), lead=0.0)
    assert "acceleration" in only(node)


def test_a_trajectory_out_of_its_bounds_is_found() -> None:
    node = trajectories()
    node.at += 5.0
    node.stands(j1=1.95, j2=0.0)
    node.course((1.98, 0.0), (2.01, 0.0))
    assert only(node) == {"bounds"}
    node = trajectories()
    node.at += 5.0
    node.stands(j1=1.965, j2=0.0)
    node.course((1.995, 0.6), (1.995, -0.6), (1.98, 0.0))
    assert only(node) == {"bounds"}, "between two points"


def test_a_stop_that_leads_a_trajectory_back_is_found() -> None:
    node = trajectories()
    rows = at_rest(*ride(0.0, 0.0, 10.0, 10.0, *[0.0] * 6))
    node.course(*rows, lead=0.0, periods=4)
    node.course((rows[3][0] - 0.02, 0.0), kind=STOP, lead=None)
    assert only(node) == {"stop"}


def test_a_trajectory_that_outlives_its_command_is_found() -> None:
    rows = ride(0.0, 0.0, 8.0, *[0.0] * 9)
    node = trajectories()
    node.course(*at_rest(*rows[:7]), valid_s=0.45)
    assert only(node) == set()
    node = trajectories()
    node.course(*at_rest(*rows[:9]), valid_s=0.45)
    assert only(node) == {"valid_until"}
    rows = ride(0.0, 0.0, 4.0, 4.0, 4.0)
    node = trajectories(**JERKY)  # what brakes may end later
    node.course(*rows, *braking(*rows[-1], 4.0, 3 * T), valid_s=0.17)
    assert only(node) == set()
    node = trajectories(**JERKY)
    node.course(*rows, *ride(*rows[-1], 0.0, -4.0, -4.0, -4.0), valid_s=0.17)
    assert only(node) == {"valid_until"}


def test_a_trajectory_that_runs_away_from_an_arm_that_stands_is_found() -> None:
    node = trajectories()
    rows = ride(0.0, 0.0, 16.0, *[0.0] * 30)
    for i in range(8):
        node.stands(j1=0.0, j2=0.0)
        node.course(*at_rest(*rows[2 * i : 2 * i + 6]), lead=0.0, periods=2)
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


# Two rates


RATES = [(20.0, 100.0), (30.0, 125.0), (15.0, 100.0), (50.0, 20.0), (20.0, 500.0), (20.0, 20.0)]
DELTAS = JOINTS | {
    "action_space": "joint_delta",
    "bounds_low": [-0.1, -0.2],
    "bounds_high": [0.1, 0.2],
    "velocity_limits": [0.0],
}


def with_status(parameters: dict[str, Any], action: float, control: float, **more: Any) -> Node:
    """The node's parameter is 0: its status has the rate of the data."""
    node = Node(parameters, control_rate_hz=control, action_rate_hz=0.0, **more)
    status = SimpleNamespace(
        state=5, STATE_UNCONFIGURED=0, STATE_INACTIVE=1, action_rate_hz=action,
        control_rate_hz=control,
    )  # fmt: skip
    node.judge.hear("status", status, ns(node.at - 0.1))
    return node


def with_parameter(parameters: dict[str, Any], action: float, control: float, **more: Any) -> Node:
    return Node(parameters, control_rate_hz=control, action_rate_hz=action, **more)


both_sources = pytest.mark.parametrize("of", [with_status, with_parameter])


@both_sources
@pytest.mark.parametrize(("action", "control"), RATES)
def test_a_displacement_is_within_its_part_of_an_action_s_bounds(
    of: Any, action: float, control: float
) -> None:
    """0.1 an action, however many commands make it, or it is a part of."""
    fastest = 0.1 * action
    for rate, broken in ((0.99 * fastest, set()), (1.01 * fastest, {"bounds"})):
        node = of(HAND, action, control, velocity_limits=[0.0])
        for sign in (1, 1, -1, 1):
            node.turn(0.0, sign * rate)
            node.index += 1 if action >= control else 0
        assert node.rules == set(itertools.product(("action", "twist"), broken)), node.lines


@both_sources
@pytest.mark.parametrize(("action", "control"), RATES)
def test_positions_that_displacements_lead_to_go_no_faster_than_actions_may(
    of: Any, action: float, control: float
) -> None:
    part = action / control
    for share, broken in ((0.99, set()), (1.01, {("positions", "bounds")})):
        node = of(DELTAS, action, control)
        for i in range(4):
            node.act(share * 0.1 * part * min(1.0, 0.99 / share), 0.0)  # the command is right
            data = [share * 0.1 * part * i, -share * 0.2 * part * i]
            node.output("positions", SimpleNamespace(data=data))
            node.at += node.period
        assert node.rules == broken, node.lines


@pytest.mark.parametrize(("action", "control"), RATES)
def test_velocity_and_acceleration_are_per_second_at_any_rates(
    action: float, control: float
) -> None:
    T = 1 / control
    for faster, broken in ((1.0, set()), (1.02, both("speed"))):
        node = with_parameter(JOINTS, action, control)
        for i in range(4):
            node.go(faster * T * i, 0.0)
        assert node.rules == broken, node.lines
    much = 1.1 if T > 0.02 else 1.5 if T > 0.005 else 3.0  # two clocks differ by 2 ms at any rate
    for harder, broken in ((1.0, set()), (much, both("acceleration"))):
        node = with_parameter(JOINTS, action, control, acceleration_limits=[4.0, 4.0])
        for i in range(4):
            node.go(harder * 4.0 * T * T * i * (i + 1) / 2, 0.0)
        assert node.rules == broken, node.lines


@pytest.mark.parametrize(("action", "control"), RATES)
def test_a_jump_is_one_from_action_to_action(action: float, control: float) -> None:
    """A tenth of the range of 4 rad an action; a command may go its part of it."""
    part = action / control
    for share, broken in ((0.99, set()), (1.02, both("jump"))):
        node = with_parameter(
            JOINTS, action, control, velocity_limits=[0.0], jump_limit=0.1, max_age_s=5.0
        )
        for i in range(4):
            node.go(share * 0.4 * part * i - 1.9, 0.0)
        assert node.rules == broken, node.lines


@both_sources
@pytest.mark.parametrize(("action", "control"), RATES)
def test_actions_are_executed_at_the_rate_of_their_data(
    of: Any, action: float, control: float
) -> None:
    """An action an action period, not one a command: a chunk would run five times too fast."""
    part = action / control
    for faster, broken in ((1.0, False), (max(2.0, 1 / part), True)):
        node = of(JOINTS, action, control)
        for i in range(8):
            index, node.phase = divmod(part * faster * i + 1e-9, 1.0)
            node.index = int(index)
            node.go(0.0, 0.0)
        assert node.rules == ({("action", "pace")} if broken else set()), node.lines


def test_actions_that_a_late_tick_or_a_stop_skips_are_not_too_fast() -> None:
    node = with_parameter(JOINTS, 20.0, 100.0)
    for index, gap in ((0, 0.01), (1, 0.05), (4, 0.15), (5, 0.05)):
        node.at += gap - node.period
        node.index = index
        node.go(0.0, 0.0)
    node.index = 9
    node.go(0.0, 0.0, kind=HELD)  # it says nothing of a chunk
    assert not node.lines


def test_another_rate_of_the_data_counts_from_its_status_on() -> None:
    node = with_status(HAND, 20.0, 100.0, velocity_limits=[0.0])
    node.turn(1.9)
    status = SimpleNamespace(
        state=1, STATE_UNCONFIGURED=0, STATE_INACTIVE=1, action_rate_hz=10.0, control_rate_hz=100.0
    )
    node.judge.hear("status", status, ns(node.at))
    node.at += 0.5
    node.turn(0.9)
    assert not node.lines
    node.turn(1.9)
    assert node.rules == {("action", "bounds"), ("twist", "bounds")}


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
