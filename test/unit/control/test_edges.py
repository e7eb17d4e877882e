"""The edges of the control loop's parts: what lies exactly between two cases.

Each of these was found as a change of the code that no other test saw (`make mutants`).
"""

import math

import numpy as np
import pytest

from vla_ros.action_space import ActionKind, end_effectors
from vla_ros.control import check_instruction
from vla_ros.control.goals import GoalRefused, check_goal
from vla_ros.control.intake import MAX_INSTRUCTION, FrameCheck
from vla_ros.control.parts import Joints, between
from vla_ros.control.proprio import axis_angle
from vla_ros.control.ticker import shift_ns
from vla_ros.control.timeline import Chunking, Execution
from vla_ros.control.whereabouts import Whereabouts
from vla_ros.core import Observation, PolicyInfo, Pose
from vla_ros.safety import Limits
from vla_ros.timing import Moment

NAMES = ("a", "b")


def joints(*said: tuple[int, tuple[str, ...], list[float]]) -> Joints:
    found = Joints()
    for stamp, names, values in said:
        found.add(stamp, (names, np.array(values)))
    return found


def test_a_whole_state_between_two_messages_is_between_them():
    found = joints((0, NAMES, [0.0, 1.0]), (100, NAMES, [1.0, 3.0])).at(25, 100)
    assert found.stamp_ns == 0
    assert found.value.tolist() == [0.25, 1.5]
    late = joints((0, NAMES, [0.0, 1.0]), (100, NAMES, [1.0, 3.0])).at(75, 100)
    assert (late.stamp_ns, late.value.tolist()) == (100, [0.75, 2.5])


@pytest.mark.parametrize(
    ("names", "values"), [(("b", "a"), [1.0, 3.0]), (NAMES, [1.0, 3.0, 9.0])],
    ids=["in another order", "of another length"],
)  # fmt: skip
def test_states_that_are_not_of_the_same_joints_are_not_mixed(names, values):
    found = joints((0, NAMES, [0.0, 1.0]), (100, names, values)).at(25, 100)
    assert (found.stamp_ns, found.value.tolist()) == (0, [0.0, 1.0])


def test_a_state_of_one_side_alone_is_taken_as_it_is():
    assert joints((10, NAMES, [0.0, 1.0])).at(5, 100).value.tolist() == [0.0, 1.0]
    assert joints((10, NAMES, [0.0, 1.0])).at(15, 100).stamp_ns == 10


def test_a_joint_that_came_round_is_where_it_was_nearest():
    found = joints((0, NAMES, [3.1, -3.1]), (100, NAMES, [-3.1, -3.0])).at(25, 100)
    np.testing.assert_allclose(found.value, [3.1, -3.075])
    half = joints((0, NAMES, [0.0, 0.0]), (100, NAMES, [math.pi, 0.0])).at(50, 100)
    assert half.value[0] == math.pi / 2  # half a turn itself is a way that can be gone


def quaternion(angle: float) -> tuple[float, float, float, float]:
    return (0.0, 0.0, math.sin(angle / 2), math.cos(angle / 2))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("angle", [1e-7, 0.5, 2.0, 3.0])
def test_a_pose_between_two_is_on_the_shorter_arc_between_them(angle, sign):
    low = Pose((0.0, 2.0, 4.0), quaternion(0.0))
    x, y, z, w = quaternion(angle)
    high = Pose((4.0, 2.0, 0.0), (sign * x, sign * y, sign * z, sign * w))
    mixed = between(low, high, 0.25)
    assert mixed.position == (1.0, 2.0, 3.0)
    np.testing.assert_allclose(mixed.quaternion, quaternion(angle / 4), atol=1e-12)


def test_the_longest_instruction_is_taken_and_none_with_an_invisible_character():
    assert check_instruction("a" * MAX_INSTRUCTION)
    for bad in ("a" * (MAX_INSTRUCTION + 1), "a\u200eb", "a\ud800b", "a\x07b"):
        with pytest.raises(ValueError, match="instruction has"):
            check_instruction(bad)


def test_pixels_count_as_frozen_from_the_third_frame_on():
    check, limits = FrameCheck(sim_time=True, detect_frozen=True), Limits()
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    seen = []
    for number in range(1, 5):
        now = number * limits.period_ns
        frame = Observation(now, now, now, image)
        assert check.refuse(frame, limits) is None
        seen.append(check.looks_frozen)
    assert seen == [False, False, True, True]


@pytest.mark.parametrize(("w", "length"), [(1.0 + 1e-12, 0.0), (-1.0 - 1e-12, 0.0), (0.0, math.pi)])
def test_a_rotation_of_a_quaternion_that_is_not_quite_one(w, length):
    x = 1.0 if w == 0.0 else 0.0
    found = axis_angle((x, 0.0, 0.0, w))
    assert found.shape == (3,)
    assert np.linalg.norm(found) == pytest.approx(length)


def test_a_goal_may_have_no_limit_or_a_short_one():
    assert check_goal("lift", 0.0).time_limit_s == 0.0
    assert check_goal("lift", 0.25).time_limit_s == 0.25
    for bad in (-0.1, math.inf, math.nan):
        with pytest.raises(GoalRefused, match="time_limit_s"):
            check_goal("lift", bad)


@pytest.mark.parametrize(
    ("waited", "moved"),
    [(200, 0), (210, -10), (700, -20), (701, 20), (199, 1), (0, 20), (180, 20), (205, -5)],
)
def test_a_tick_moves_by_a_fiftieth_at_most_and_the_shorter_way_round(waited, moved):
    assert shift_ns(1000, waited) == moved


def test_the_smallest_chunking_that_can_be():
    assert Chunking(delay_window=1).delay_window == 1
    assert Chunking(told_delay=0).told_delay == 0
    for bad in ({"delay_window": 0}, {"told_delay": -1}, {"delay_frames": -1}):
        with pytest.raises(ValueError, match="must be 0 or more"):
            Chunking(**bad)


@pytest.mark.parametrize(("length", "counts"), [(1, False), (2, True)])
def test_late_chunks_need_more_room_and_single_actions_do_not(length, counts):
    limits, info = Limits(max_age_s=5.0), PolicyInfo(name="p", chunk_length=length)
    plain = Chunking().least_age_s(limits, info, 0.1, 1)
    late = Chunking(delay_frames=3).least_age_s(limits, info, 0.1, 1)
    assert late - plain == pytest.approx(3 * limits.period_s if counts else 0.0)


def test_an_ensemble_asks_anew_after_each_action_unless_told_otherwise():
    assert Chunking(Execution.ENSEMBLE).executed_of(8) == 1
    assert Chunking(Execution.ENSEMBLE, replan_interval=3).executed_of(8) == 3
    assert Chunking(replan_interval=4).reach(8, 7) == 1


def test_of_two_measurements_of_one_moment_the_first_stays():
    space = end_effectors(ActionKind.END_EFFECTOR_POSE)
    where, now = Whereabouts(space, sim_time=False), Moment(10, 10)
    assert where.lacks(now, 100) == "nothing fresh on measured_pose"
    where.tell(range(6), np.full(6, 1.0), 5, 5)
    where.tell(range(6), np.full(6, 2.0), 5, 6)
    assert where.at(now, 100)[:6].tolist() == [1.0] * 6
    with pytest.raises(ValueError, match="argument"):
        where.tell(range(6), np.zeros(5), 7, 7)


def test_of_two_arms_it_is_said_which_is_silent():
    space = end_effectors(ActionKind.END_EFFECTOR_POSE, ("left_", "right_"))
    where, now = Whereabouts(space, sim_time=False), Moment(10, 10)
    where.tell(range(6), np.zeros(6), 5, 5)
    assert where.lacks(now, 100).startswith("nothing fresh on measured_pose: right_x")
