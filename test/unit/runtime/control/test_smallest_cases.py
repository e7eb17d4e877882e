"""The edges of the control loop's parts: what lies exactly between two cases.

Each of these was found as a change of the code that no other test saw (`make mutants`).
"""

import math

import numpy as np
import pytest

from unit.runtime.control.bench import Recorder
from vla_ros.core.action_space import ActionKind, end_effectors
from vla_ros.core.action_space import joints as joints_of
from vla_ros.core.clock import MS, SECOND, ManualClock, Moment
from vla_ros.core.types import STAGES, Inference, Observation, PolicyInfo, Pose, Timeline
from vla_ros.runtime.control.drivers import make_control, shift_ns
from vla_ros.runtime.control.gate import answer_ms, since_ms
from vla_ros.runtime.control.goals import (
    MAX_INSTRUCTION,
    EpisodeTracker,
    Goal,
    GoalTracker,
    StopLatch,
    check_goal,
    check_instruction,
)
from vla_ros.runtime.control.joints import Joints, MeasuredState
from vla_ros.runtime.control.observation import (
    FrameCheck,
    axis_angle,
    between,
)
from vla_ros.runtime.control.queue import Chunking, Execution, PolicyAnswer
from vla_ros.runtime.control.state import JointOutputs
from vla_ros.runtime.safety import Limits

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


def test_a_quaternion_that_is_a_little_too_long_turns_nowhere():
    still = Pose((0.0, 0.0, 0.0), (0.0, 0.0, 0.6, 0.8 + 1e-12))
    np.testing.assert_allclose(between(still, still, 0.3).quaternion, still.quaternion)


def test_the_longest_instruction_is_taken_and_none_with_an_invisible_character():
    assert check_instruction("a" * MAX_INSTRUCTION)
    for bad, says in (
        ("a" * (MAX_INSTRUCTION + 1), f"{MAX_INSTRUCTION + 1} characters, at most 1000"),
        ("a\u200eb", r"the control character U\+200E"),
        ("a\ud800b", r"the control character U\+D800"),
        ("a\x07b", r"the control character U\+0007"),
    ):
        with pytest.raises(ValueError, match=f"^instruction has {says}$"):
            check_instruction(bad)


def test_pixels_count_as_frozen_from_the_third_frame_on():
    check, limits = FrameCheck(sim_time=True, detect_frozen=True), Limits()
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    seen = []
    for number in range(1, 5):
        now = number * limits.period_ns
        frame = Observation(now, now, now, image)
        assert check.refuse(frame, limits) is None
        seen.append(bool(check.frozen))
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


@pytest.mark.parametrize(
    ("waited", "moved"),
    [(200, 0), (210, -10), (700, -20), (701, 20), (199, 1), (0, 20), (180, 20), (205, -5)],
)
def test_a_tick_moves_by_a_fiftieth_at_most_and_the_shorter_way_round(waited, moved):
    assert shift_ns(1000, waited) == moved


def test_the_smallest_chunking_that_can_be():
    assert Chunking(delay_window=1).delay_window == 1
    assert Chunking(conditioning_delay_steps=0).conditioning_delay_steps == 0
    line = "replan_interval and delay_frames must be 0 or more, delay_window 1 or more"
    for bad, says in (
        ({"delay_window": 0}, line),
        ({"delay_frames": -1}, line),
        ({"replan_interval": -1}, line),
        ({"conditioning_delay_steps": -1}, "conditioning_delay_steps must be 0 or more"),
    ):
        with pytest.raises(ValueError, match=f"^{says}$"):
            Chunking(**bad)


@pytest.mark.parametrize(("length", "counts"), [(1, False), (2, True)])
def test_late_chunks_need_more_room_and_single_actions_do_not(length, counts):
    limits, info = Limits(max_age_s=5.0), PolicyInfo(name="p", chunk_length=length)
    plain = Chunking().least_age_s(limits, info, 0.1, 1)
    late = Chunking(delay_frames=3).least_age_s(limits, info, 0.1, 1)
    assert plain == pytest.approx(0.2), "a frame, an inference, a period"
    assert late - plain == pytest.approx(3 * limits.period_s if counts else 0.0)


def test_an_ensemble_asks_anew_after_each_action_unless_told_otherwise():
    assert Chunking(Execution.ENSEMBLE).executed_of(8) == 1
    assert Chunking(Execution.ENSEMBLE, replan_interval=3).executed_of(8) == 3
    assert Chunking(replan_interval=4).reach(8, 7) == 1


def test_of_two_measurements_of_one_moment_the_first_stays():
    space = end_effectors(ActionKind.END_EFFECTOR_POSE)
    where, now = MeasuredState(space, sim_time=False), Moment(10, 10)
    assert where.lacks(now, 100) == "nothing fresh on measured_pose"
    where.update(range(6), np.full(6, 1.0), 5, 5)
    where.update(range(6), np.full(6, 2.0), 5, 6)
    assert where.at(now, 100)[:6].tolist() == [1.0] * 6
    with pytest.raises(ValueError, match="argument"):
        where.update(range(6), np.zeros(5), 7, 7)


def test_of_two_arms_it_is_said_which_is_silent():
    space = end_effectors(ActionKind.END_EFFECTOR_POSE, ("left_", "right_"))
    where, now = MeasuredState(space, sim_time=False), Moment(10, 10)
    where.update(range(6), np.zeros(6), 5, 5)
    right = " ".join(space.names[place] for place in space.motion[6:])
    assert right.startswith("right_x right_y")
    assert where.lacks(now, 100) == f"nothing fresh on measured_pose: {right}"


def test_of_joints_those_that_are_silent_are_named():
    where = MeasuredState(joints_of(ActionKind.JOINT_POSITION, ("hip", "knee", "toe")), False)
    where.update([1], np.zeros(1), 5, 5)
    assert where.at(Moment(10, 10), 100) is None
    assert where.lacks(Moment(10, 10), 100) == "nothing fresh on joint_states of 'hip', 'toe'"


def test_a_measurement_counts_until_it_is_too_old_and_a_copy_is_handed_out():
    where = MeasuredState(joints_of(ActionKind.JOINT_POSITION, ("hip",)), False)
    where.update([0], np.array([0.5]), 5, 5)
    assert where.at(Moment(105, 105), 100).tolist() == [0.5]
    assert where.at(Moment(106, 105), 100) is None and where.at(Moment(105, 106), 100) is None
    where.at(Moment(10, 10), 100)[0] = 9.0
    assert where.at(Moment(10, 10), 100).tolist() == [0.5]
    where.update([0], np.array([0.7]), 4, 6)
    assert where.at(Moment(10, 10), 100).tolist() == [0.5], "older than what is known"
    where.forget()
    where.update([0], np.array([0.9]), 1, 1)
    assert where.at(Moment(10, 10), 100).tolist() == [0.9], "any is news now"


def test_every_fourth_pixel_is_looked_at():
    check, limits = FrameCheck(sim_time=True, detect_frozen=True), Limits()
    image = np.zeros((16, 16, 3), np.uint8)
    for number in range(1, 5):
        now = number * limits.period_ns
        image[4, 8] = number
        assert check.refuse(Observation(now, now, now, image.copy()), limits) is None
    assert not check.frozen


def test_pixels_are_frozen_for_a_second_from_the_first_of_them_on():
    check, limits = FrameCheck(sim_time=True, detect_frozen=True), Limits()
    for number in range(1, 4):
        frame = Observation(number, number, number, np.zeros((4, 4, 3), np.uint8))
        assert check.refuse(frame, limits) is None
        assert bool(check.frozen_for(SECOND + 1)) is (number == 3)
    assert not check.frozen_for(SECOND)
    check.forget()
    assert not check.frozen


def test_a_stop_that_gave_way_to_a_goal_is_nothing_to_resume():
    latch = StopLatch()
    latch.catch("")
    assert not latch.holds and latch.release() == "", "there was nothing to stop"
    latch.catch("reach")
    assert latch.holds and latch.task == "reach"
    latch.catch("")
    assert latch.task == "reach", "what was stopped before stays so"
    latch.give_way()
    assert not latch.holds and latch.withholds("reach") and not latch.withholds("push")
    assert latch.release() == "reach", "the newest that was withheld"
    assert latch.release() == "" and not latch.withholds("reach")
    latch.close()
    assert latch.holds and latch.withholds("push")
    latch.give_way()
    assert not latch.withholds("pull")


def test_a_new_episode_gives_back_what_was_withheld_and_keeps_the_stop():
    latch = StopLatch()
    latch.catch("reach")
    latch.new_episode()
    assert latch.holds and not latch.withholds("reach")
    latch.overrule("")
    assert not latch.withholds(""), "no task is no word"
    for number in range(9):
        latch.overrule(str(number))
        latch.overrule(str(number))
    assert [latch.withholds(str(number)) for number in (0, 1, 8)] == [False, True, True]


def test_ages_of_a_goal_are_of_its_newest_2000_actions_of_ten_minutes():
    clock = ManualClock()
    course = GoalTracker(clock)
    assert (course.progress.actions, course.progress.ages.count) == (0, 0)
    course.acted(1)
    course.begin(Goal("pick", 1.0))
    assert course.progress.actions == 0
    for _ in range(2001):
        course.acted(SECOND // 2)
    assert (course.progress.actions, course.progress.ages.count) == (2001, 2000)
    assert course.progress.ages.max == 0.5
    clock.advance(0.999)
    assert not course.overdue
    clock.advance(0.001)
    assert course.overdue and course.progress.elapsed_s == 1.0
    clock.advance(599.0)
    assert course.progress.ages.count == 2000
    clock.advance(0.001)
    assert course.progress.ages.count == 0


@pytest.mark.parametrize(("lockstep", "counts"), [(True, 0.0), (False, 1.0)])
def test_in_lock_step_inference_takes_no_time(lockstep, counts):
    made = Limits(), PolicyInfo("p"), ManualClock(), Recorder()
    assert make_control(*made, lockstep=lockstep, inference_s=1.0).loop.inference_s == counts


@pytest.mark.parametrize(
    ("options", "early_ms"),
    [({"lockstep": True}, 50), ({}, 5)],
    ids=["lockstep", "realtime"],
)
def test_a_loop_made_by_hand_is_of_a_robot_that_nobody_knows_yet(options, early_ms):
    out, clock = Recorder(), ManualClock()
    control = make_control(Limits(), PolicyInfo("p"), clock, out, **options)
    control.activate()
    control.set_instruction("reach")
    for _ in range(30):
        clock.advance(0.05)
        control.offer(Observation(clock.now, clock.now, clock.steady, np.zeros((8, 8, 3))))
        control.tick()
    loop = control.loop
    assert out.warnings == [] and loop.inference_s == 0.0 and loop.outputs == JointOutputs()
    assert len(out.submitted) == 30 and control.loop.persistent.sequence == len(out.commands)
    assert control.loop.counters.frames_received == 30
    now = clock.now + 20 * MS
    for stamp in (now + early_ms * MS + 1, now + early_ms * MS):
        control.offer(Observation(stamp, now, clock.steady, np.zeros((8, 8, 3))))
        assert control.loop.counters.frames_dropped == 1, "the first lies in the future"
        assert "in the future" in control.loop.counters.last_drop


def test_only_what_is_said_of_a_later_step_can_have_been_said_before_the_end():
    course = EpisodeTracker()
    course.runs(1)
    assert course.ends(1, "solved", True) and course.solved
    assert course.is_echo(1, 1) and not course.is_echo(1, 0) and not course.is_echo(2, 1)
    course.runs(2)
    assert course.ends(2, "too slow") and not course.solved
    course.begin()
    assert not course.is_echo(2, 1) and not course.solved and course.over == ""


def test_what_the_worker_counts_to_the_gate_is_the_gate_s():
    timeline = Timeline(10 * MS).mark("vision", 12 * MS).mark("gate", 15 * MS)
    answer = PolicyAnswer(Inference(0, np.zeros((1, 7)), timeline), MS, 10 * MS)
    spent = answer_ms(answer)
    assert spent["gate"] + since_ms(answer, Moment(20 * MS, 30 * MS)) == 18.0
    assert spent["vision"] == 2.0 and spent["transport"] == 1.0
    assert list(spent) == list(STAGES)


def test_in_a_simulation_a_measurement_is_as_old_as_its_stamp_says():
    for sim_time in (False, True):
        where = MeasuredState(joints_of(ActionKind.JOINT_POSITION, ("hip",)), sim_time)
        where.update([0], np.array([0.5]), 5, 5)
        assert (where.at(Moment(10, SECOND), 100) is not None) is sim_time
