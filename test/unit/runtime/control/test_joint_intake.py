"""Readings of joints and poses: no single wrong one is where the robot is."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_ros.core.action_space import ActionKind, end_effectors, joints
from vla_ros.core.clock import MS, SECOND, Moment
from vla_ros.core.types import Pose, StaleAction
from vla_ros.runtime.control.joints import (
    CEILING,
    MARGIN,
    JointIntake,
    MeasuredState,
    OutlierFilter,
    pose_reaches,
    speeds_of,
)
from vla_ros.runtime.safety import Limits

TEN = 10 * MS
SLOW = {"j": MARGIN * 0.5}  # rad/s


class Stream:
    """One joint's readings at 100 Hz, and what is accepted of them."""

    def __init__(self, speed=SLOW, turning=(), **given):
        self.intake = JointIntake(**given)
        self.intake.speeds, self.intake.turning = speed, frozenset(turning)
        self.now = SECOND
        self.jumps, self.held = [], []

    def read(self, *positions, every=TEN):
        """What of these is accepted, None for what is not."""
        return [self.at(self._step(every), position) for position in positions]

    def _step(self, every):
        self.now += every
        return self.now

    def at(self, stamp, position):
        found = self.intake.take(stamp, ("j",), np.array([position]))
        self.jumps += found.jumps
        self.held += found.held.values()
        value = float(found.positions[0])
        return None if math.isnan(value) else value


def started(at=1.2, **given):
    stream = Stream(**given)
    assert stream.read(*[at] * 12)[-1] == at
    return stream


def test_the_first_value_is_that_of_three_readings_over_a_tenth_of_a_second():
    assert [value is None for value in Stream().read(*[1.2] * 11)] == [True] * 10 + [False]
    slow = Stream().read(1.2, 1.2, 1.2, every=60 * MS)
    assert slow == [None, None, 1.2]
    assert Stream().read(1.2, 1.2, every=SECOND) == [None, None], "two are few"


@pytest.mark.parametrize("every", [2, 3, 4])
@pytest.mark.parametrize("phase", [0, 1, 2, 3])
def test_wrong_readings_at_the_start_are_not_where_the_robot_is(every, phase):
    """Of the same wrong value each, as of a driver that reports zeros."""
    stream = Stream()
    readings = [0.0 if (i + phase) % every == 0 else 1.2 for i in range(40)]
    accepted = {value for value in stream.read(*readings) if value is not None}
    if every > 2:
        assert accepted == {1.2}
    else:
        assert accepted == set(), "nobody knows which of the two"
        assert "contradict each other, as" in stream.read(*readings) or stream.held
        assert stream.held[-1].startswith("the readings of joint 'j' contradict each other, as ")


def test_a_driver_of_a_thousand_readings_a_second_is_compared_with_them_now_and_then():
    compared = 0

    def reaches(one, other, _):
        nonlocal compared
        compared += 1
        return abs(one - other) < 0.1

    one = OutlierFilter(reaches)
    assert not any(one.take(SECOND + i * MS, float(i % 2)) for i in range(1000))
    assert compared < 100 * 1000
    assert one.contradicts
    assert any(one.take(2 * SECOND + i * MS, 1.0) for i in range(100)), "as soon as one is alone"


def test_every_second_reading_may_be_any():
    dice = random.Random(3)
    stream = Stream()
    readings = [1.2 if i % 2 else dice.uniform(-3.0, 3.0) for i in range(40)]
    found = [value for value in stream.read(*readings) if value is not None]
    assert found
    assert set(np.round(found, 3)) <= {1.2} | {round(r, 3) for r in readings if abs(r - 1.2) < 0.05}


def test_one_wrong_reading_is_held_back_and_named():
    stream = started()
    assert stream.read(0.0, 1.2) == [None, 1.2]
    assert stream.held == [
        "joint 'j' was read at 0.000, 10 ms from 1.200: it does not move so fast"
    ]
    assert stream.jumps == []


def test_a_second_publisher_whose_readings_lie_between_is_never_accepted():
    stream = started()
    assert set(stream.read(*[0.01, 1.2] * 100)) == {None, 1.2}


def test_a_joint_that_was_moved_is_accepted_and_said_once():
    stream = started()
    found = stream.read(*[0.01] * 20)
    assert found[:10] == [None] * 10
    assert found[10:] == [0.01] * 10
    assert stream.jumps == ["joint 'j' jumped from 1.200 to 0.010: 11 readings agree"]


def test_a_silence_allows_no_jump():
    stream = started()
    assert stream.read(0.0, every=60 * SECOND) == [None]
    assert stream.read(1.2) == [1.2]


def test_a_joint_may_move_as_fast_as_it_can_and_more():
    stream = started(at=0.0)
    assert None not in stream.read(*[2.4 * 0.01 * i for i in range(50)])
    unknown = started(at=0.0, speed={})
    assert None not in unknown.read(*[12.0 * 0.01 * i for i in range(50)])
    assert unknown.read(9.0) == [None]


def test_numbers_that_are_none_never_enter():
    for stream in (started(), Stream(trusting=True)):
        assert stream.read(math.nan, math.inf, -math.inf) == [None] * 3


def test_a_simulation_of_one_message_a_step_is_trusted():
    assert Stream(trusting=True).read(1.2, 0.0, every=50 * MS) == [1.2, 0.0]
    assert Stream(on_change=("j",)).read(0.04) == [0.04]
    assert Stream(on_change=("k",)).read(0.04) == [None]


def test_after_forgetting_nothing_is_accepted_yet():
    stream = started()
    stream.intake.forget()
    assert stream.read(1.2) == [None]
    assert stream.read(*[0.3] * 12)[-1] == 0.3
    assert stream.jumps == []


def test_a_clock_that_was_set_back_is_followed():
    stream = started()
    stream.now -= 5 * SECOND
    assert stream.read(*[1.2] * 12)[-1] == 1.2


def test_a_robot_that_makes_up_names_fills_no_memory():
    intake = JointIntake()
    for number in range(3000):
        intake.take(number, (f"n{number}",), np.zeros(1))
    assert len(intake._filters) <= 1024
    one = OutlierFilter(lambda *_: False)
    for number in range(3000):
        one.take(1, float(number))
    assert len(one._held) <= 1024


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_single_wrong_reading_of_a_stream_is_ever_accepted(data):
    """Late, doubled, out of order: what is accepted is near where the joint was at its stamp."""
    dice = random.Random(data.draw(st.integers(0, 10**6)))
    rate = dice.choice([20, 50, 100, 200, 500])
    every = SECOND // rate
    turning = dice.random() < 0.3
    speed, phase = dice.uniform(0.0, 0.5), dice.uniform(0.0, 6.0)

    def truth(stamp):
        return phase + speed * stamp / SECOND

    def driver(value):
        return math.remainder(value, 2 * math.pi) if turning else value

    # Two in a row would be the same motion by the margin.
    wrong = {i for i in range(0, 3 * rate, 4) if dice.random() < 0.5}
    messages = []
    for i in range(3 * rate):
        stamp = SECOND + i * every
        error = dice.choice([-1, 1]) * dice.uniform(0.6, 2.5) if i in wrong else 0.0
        late = dice.choice([0, 0, 0, 1.5]) * every
        copies = dice.choice([1, 1, 1, 2])
        messages += [(stamp + late + 1e-3 * c, stamp, error) for c in range(copies)]
    stream = Stream(turning=("j",) if turning else ())
    count = 0
    for _, stamp, error in sorted(messages):
        value = stream.at(stamp, driver(truth(stamp) + error))
        if value is None:
            continue
        count += 1
        off = value - truth(stamp)
        off = math.remainder(off, 2 * math.pi) if turning else off
        assert abs(off) < 0.05, (stamp, error)
    assert count > rate


# Without end


@pytest.mark.parametrize("way", [1.0, -1.0])
def test_a_joint_that_turns_without_end_goes_on_through_pi(way):
    stream = Stream(turning=("j",))
    truth = [way * (3.0 + 0.005 * i) for i in range(2000)]
    found = stream.read(*[math.remainder(angle, 2 * math.pi) for angle in truth])
    np.testing.assert_allclose(found[10:], truth[10:], atol=1e-9)
    assert stream.held == []


def test_the_first_value_is_as_its_driver_has_it():
    assert started(at=-3.13, turning=("j",)).read(3.13) == pytest.approx([3.13 - 2 * math.pi])
    assert started(at=9.0, turning=("j",)).read(9.01) == [9.01]


def test_a_joint_with_ends_does_not_jump_by_a_turn():
    assert started(at=3.1).read(-3.1) == [None]


def test_half_a_turn_of_a_joint_without_end_is_a_wrong_reading_too():
    stream = started(at=3.0, turning=("j",))
    assert stream.read(0.0, 3.0) == [None, 3.0]


# Poses


def pose(x, angle=0.0):
    return Pose((x, 0.0, 0.3), (0.0, 0.0, math.sin(angle / 2), math.cos(angle / 2)))


def poses(every=TEN):
    one = OutlierFilter(pose_reaches)
    stamps = iter(range(SECOND, 100 * SECOND, every))
    return lambda *given: [one.take(next(stamps), p) for p in given]


def test_one_pose_elsewhere_is_held_back():
    take = poses()
    assert take(*[pose(0.4)] * 11) == [False] * 10 + [True]
    assert take(pose(0.7), pose(0.4)) == [False, True]
    assert take(pose(0.4, 0.5), pose(0.4)) == [False, True]
    assert take(*[pose(0.4 + 0.01 * i, 0.1 * i) for i in range(40)]) == [True] * 40, "it moves"
    assert take(*[pose(2.0)] * 11) == [False] * 10 + [True]


def test_a_quaternion_of_the_other_sign_is_the_same_rotation():
    take = poses()
    take(*[pose(0.4, 1.0)] * 11)
    other = Pose((0.4, 0.0, 0.3), tuple(-v for v in pose(0.4, 1.0).quaternion))
    assert take(other) == [True]


# Speeds, openings


def limits(**given):
    space = joints(ActionKind.JOINT_POSITION, ("a", "hand", "b"), ("hand",))
    stale = StaleAction.HOLD
    return Limits(space=space, low=(-1.0,) * 2, high=(1.0,) * 2, stale_action=stale, **given)


def test_speeds_are_those_of_the_owner_before_those_of_the_description():
    described = {"b": 3.0, "wheel": 9.0}
    assert speeds_of(limits(), described) == described
    own = speeds_of(limits(velocity=(0.5, 1.0)), described)
    assert own == {"a": 2.5, "b": 5.0, "wheel": 9.0}
    hand = Limits(velocity=(0.1,) * 6)
    assert hand.space == end_effectors(ActionKind.END_EFFECTOR_DELTA)
    assert speeds_of(hand, described) == described, "of no joint"
    assert 12.0 < CEILING < 13.0


def test_a_gripper_s_opening_is_measured_and_is_no_motion():
    where = MeasuredState(limits().space, sim_time=False)
    now, later = Moment(10, 10), Moment(10 + SECOND, 10 + SECOND)
    where.update([1], np.array([0.7]), 10, 10)
    assert where.openings(now, SECOND) == [0.7]
    assert where.at(now, SECOND) is None
    assert where.lacks(now, SECOND).endswith("of 'a', 'b'")
    where.update([0, 2], np.array([0.1, 0.2]), 10, 10)
    assert where.at(now, SECOND).tolist() == [0.1, 0.0, 0.2]
    assert np.isnan(where.openings(later, SECOND // 2)).all()
    where.lasting = frozenset({1})
    assert where.openings(later, SECOND // 2) == [0.7]
    where.forget()
    assert np.isnan(where.openings(later, SECOND)).all()


def test_what_is_forgotten_is_forgotten_by_what_accepts_readings():
    where, stream = MeasuredState(limits().space, sim_time=False), started()
    where.intakes.append(stream.intake)
    where.update([0, 1, 2], np.zeros(3), 10, 10)
    where.begin_anew()
    assert stream.read(1.2) == [None]
    assert where.at(Moment(10, 10), SECOND) is not None, "a stop still has a place to hold"
