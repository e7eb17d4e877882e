"""HOLD is left once its cause is over, at any limits, and a robot that stood still begins where
its policy begins."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.runtime.control.bench import Bench
from vla_ros.core.action_space import ActionKind, joints
from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import CommandKind, Observation, PolicyState, StaleAction
from vla_ros.runtime.control.queue import Chunking
from vla_ros.runtime.safety import Limits

POLICY, STOP = CommandKind.POLICY, CommandKind.STOP
SPACE = joints(ActionKind.JOINT_POSITION, ("j1", "g"), ("g",))
LEFT_S = 3.0  # after the end of its cause HOLD is over within this


def small(**more):
    """The numbers of a first try on an arm: 2 cm and 0.1 rad a command."""
    return Limits(low=(-0.02,) * 3 + (-0.1,) * 3, high=(0.02,) * 3 + (0.1,) * 3, **more)


def forward(x):
    return np.array([[x, 0, 0, 0, 0, 0, 1.0]])


def driven(bench, seconds=LEFT_S, action=None):
    """Frames and answers of every period; the commands that moved."""
    said = [c for _ in range(round(20 * seconds)) for c in bench.cycle(action)]
    return [c for c in said if c.kind is POLICY]


class Arm:
    """One joint of 6 rad that is where it was told to be, and a policy that moves it on at a
    speed, by chunks."""

    def __init__(self, speed, lag=1.0, reach=3.0, **limits):
        stale = limits.pop("stale_action", StaleAction.HOLD)
        self.bench = Bench(
            limits=Limits(
                space=SPACE,
                low=(-reach,),
                high=(reach,),
                stale_action=stale,
                max_age_s=1.0,
                **limits,
            ),
            chunk=16,
        )
        self.speed, self.lag = speed, lag
        self.at = self.told = 0.0
        self.steps = []  # from each command to the next
        self.bench.control.activate()
        self.bench.control.set_instruction("turn")

    def measure(self):
        self.at += (self.told - self.at) * self.lag
        here = self.bench.moment()
        self.bench.control.measure(np.array([self.at, 0.0]), here.now_ns, here)

    def period(self, frame=True):
        """One control period; the commands of it."""
        self.bench.clock.advance(0.001)  # what was told just now is not seen by this frame
        self.measure()
        if frame:
            self.bench.frame()
        asked, self.bench.out.submitted = self.bench.out.submitted, []
        for observation, _ in asked:
            rows = np.ones((16, 2))
            rows[:, 0] = self.at + self.speed / 20 * np.arange(1, 17)
            self.bench.answer(observation, rows)
        commands = self.bench.tick(0.049)
        for command in commands:
            self.steps.append(float(command.action[0]) - self.told)
            self.told = float(command.action[0])
        if 2.5 < self.told < 3.0:  # it turns round and round
            self.told, self.at = self.told - 5.0, self.at - 5.0
        return commands

    def run(self, periods, frame=True):
        said = [c for _ in range(periods) for c in self.period(frame)]
        return [c for c in said if c.kind is POLICY]


# H1: leaving HOLD


@pytest.mark.parametrize("jump", [0.02, 0.05, 0.2, 0.5])
@pytest.mark.parametrize("jerk", [0.02, 2.0])
def test_a_hold_is_left_whatever_jump_and_jerk_are_allowed(jump, jerk):
    bench = Bench(limits=small(jump=jump, jerk=jerk)).ready()
    driven(bench, 1.0, forward(0.010))
    for _ in range(24):
        bench.tick()
    assert bench.state is PolicyState.HOLD
    moved = driven(bench, LEFT_S, forward(0.010))
    assert bench.state is PolicyState.RUNNING
    assert moved[-1].action[0] == pytest.approx(0.010), "up to what the policy says"


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    "limits", [{"jump": 0.02}, {"velocity": (2.4,)}, {"jump": 0.02, "jerk": 0.02}]
)
def test_a_joint_at_the_how_to_s_limits_moves_again_after_a_stall(speed, limits):
    arm = Arm(speed, **limits)
    arm.run(8)
    arm.run(40, frame=False)
    assert arm.bench.state is PolicyState.HOLD
    assert arm.run(round(20 * LEFT_S))
    assert arm.bench.state is PolicyState.RUNNING


def test_a_policy_ramps_up_from_rest_and_that_is_no_fault_of_it():
    """12 mm a command, of which 2 mm more are allowed from one to the next."""
    bench = Bench(limits=small(jump=0.05)).ready()
    moved = [c.action[0] for c in driven(bench, 1.0, forward(0.012))]
    assert np.diff([0.0, *moved]).max() <= 0.002 + 1e-12
    assert len(moved) == 20 and moved[-1] == pytest.approx(0.012)


def test_a_policy_that_jumps_to_and_fro_is_held_still():
    bench = Bench(limits=small(jump=0.2)).ready()
    for number in range(40):
        bench.cycle(forward(0.02 * (-1) ** number))
    assert bench.state is PolicyState.HOLD
    assert "the last exceeded its jump" in bench.loop.safety.said


def test_hold_says_what_keeps_it_once_its_first_cause_is_over():
    bench = Bench().running()
    for _ in range(12):
        bench.tick()
    assert "observation age" in bench.loop.safety.said
    bench.cycle(np.full((1, 7), 0.9))
    assert "it stays: 3 clean actions are needed, the last exceeded its bounds" in (
        bench.loop.safety.said
    )
    assert bench.out.states[-1].said == bench.loop.safety.said, "the status is told"


def test_hold_names_the_joints_that_nobody_has_said():
    arm = Arm(0.5)
    arm.run(8)
    arm.run(40, frame=False)
    arm.measure = lambda: None
    arm.bench.clock.advance(2.0)
    arm.run(3)
    assert "nothing fresh on joint_states of 'j1'" in arm.bench.loop.safety.said


# M1: a long HOLD


def test_a_hold_that_lasted_long_is_left_by_resume_alone():
    bench = Bench(limits=Limits(hold_latch_s=10.0)).running()
    for _ in range(20 * 9):
        bench.tick()
    assert driven(bench, 1.0), "not yet"
    for _ in range(20 * 12):
        bench.tick()
    assert "call ~/resume" in bench.loop.safety.said
    assert not driven(bench, 5.0) and bench.state is PolicyState.HOLD
    assert bench.control.set_instruction("reach") is False, "nobody has said anything new"
    assert bench.control.resume() is True
    assert driven(bench, 1.0) and bench.state is PolicyState.RUNNING
    assert bench.control.resume() is False


def test_a_worker_that_took_long_to_come_back_does_not_start_the_robot():
    bench = Bench(limits=Limits(hold_latch_s=10.0)).running()
    bench.control.worker_lost("killed")
    for _ in range(20 * 60):
        bench.tick()
    bench.control.worker_ready()
    assert not driven(bench, 2.0) and bench.state is PolicyState.HOLD
    bench.control.resume()
    assert driven(bench, 1.0)


def test_without_a_latch_any_hold_ends_by_itself():
    bench = Bench(limits=Limits(hold_latch_s=0.0)).running()
    for _ in range(20 * 600):
        bench.tick()
    assert driven(bench, 1.0)


# H6: what is used up


def test_a_chunk_that_was_blocked_for_want_of_joints_begins_at_its_beginning():
    arm = Arm(1.0)
    observation = arm.bench.frame()
    rows = np.ones((16, 2))
    rows[:, 0] = 0.05 * np.arange(1, 17)
    arm.bench.answer(observation, rows)
    for _ in range(12):
        assert arm.bench.tick() == []
    arm.measure()
    (command,) = arm.bench.tick()
    assert (command.chunk_index, command.action[0]) == (0, 0.05)


def test_after_a_hold_a_chunk_begins_at_its_beginning():
    arm = Arm(1.0)
    arm.run(8)
    arm.run(40, frame=False)
    at = arm.at
    first = arm.run(20)[0]
    assert first.chunk_index == 0
    assert first.action[0] - at == pytest.approx(0.05)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(["fine", "no frame", "no joints", "stall", "lost"]), max_size=60),
    st.sampled_from([1, 4, 8]),
)
def test_in_any_order_of_blocks_holds_and_late_joints_no_command_is_farther_than_the_policy_s_step(
    events, kept
):
    """Of a policy that goes on from where the robot is: 1 mrad a command."""
    arm = Arm(0.02, reach=3000.0)
    arm.bench.control.execute_by(Chunking(replan_interval=kept))
    for event in [*events, "fine", "fine", "fine", "fine"]:
        if event == "lost":
            arm.bench.control.worker_lost("killed")
            arm.bench.control.worker_ready()
        if event == "stall":
            arm.run(24, frame=False)
        measure = arm.measure
        if event == "no joints":
            arm.measure = lambda: None
            arm.bench.loop.measured.forget()
        arm.period(frame=event != "no frame")
        arm.measure = measure
    assert arm.steps and max(arm.steps) <= 0.001 + 1e-9


# M2, M8: stopping


def test_a_stop_of_places_leads_from_the_last_command_to_the_measured_place():
    arm = Arm(1.2, lag=0.35, jump=0.02)
    arm.run(40)
    last = arm.told
    arm.bench.control.stop()
    told = [last]
    for _ in range(10):
        told += [c.action[0] for c in arm.period(frame=False)]
    assert len(told) == 11
    assert np.abs(np.diff(told)).max() <= 0.02 * 6 + 1e-9
    assert told[-1] == told[-2], "and stands"


def test_a_reset_while_it_moves_says_stop_and_so_does_the_last_word_after_it():
    bench = Bench().running()
    bench.control.reset()
    assert [c.kind for c in bench.out.commands][-1] is STOP
    bench.cycle()
    bench.control.reset()
    bench.control.shut_down()
    assert [c.kind for c in bench.out.commands][-1] is STOP


def test_a_deactivation_while_it_moves_says_stop_and_nothing_after_it():
    bench = Bench().running()
    bench.control.deactivate()
    kinds = [c.kind for c in bench.out.commands]
    assert kinds == [POLICY, STOP]
    bench.control.shut_down()
    assert len(bench.out.commands) == 2


def test_the_gripper_of_a_stop_after_a_reset_is_the_last_one_that_was_commanded():
    bench = Bench().running()
    bench.cycle(np.array([[0.0] * 6 + [0.0]]))
    bench.control.reset()
    assert bench.out.commands[-1].action[6] == 0.0


def test_in_lockstep_a_reset_answers_no_frame():
    bench = Bench(lockstep=True).running_either()
    said = len(bench.out.commands)
    bench.control.reset()
    bench.control.deactivate()
    assert len(bench.out.commands) == said


# M7, M12: clocks


@pytest.mark.parametrize("rtf", [0.25, 0.5, 1.0, 2.0])
def test_in_simulated_time_the_robot_moves_as_far_in_each_simulated_second(rtf):
    """Chunks of 1 cm a period are 0.2 m/s, however fast the simulation runs."""
    bench = Bench(
        sim_time=True, limits=Limits(max_age_s=1.0), chunk=16, chunking=Chunking(), inference_s=0.1
    ).ready()
    moved, asked, began = 0.0, [], bench.clock.now
    for wall_ms in range(1, 10_001):
        bench.clock.steady += MS
        bench.clock.now += int(rtf * MS)
        if wall_ms % 33 == 0:
            known = len(bench.out.submitted)
            bench.frame()
            asked += [(wall_ms + 20, one) for one, _ in bench.out.submitted[known:]]
        for due, observation in [one for one in asked if one[0] <= wall_ms]:
            asked.remove((due, observation))
            bench.answer(observation, np.repeat(forward(0.01), 16, axis=0))
        if wall_ms % 5 == 0:
            known = len(bench.out.commands)
            bench.control.tick()
            moved += sum(c.action[0] for c in bench.out.commands[known:])
    assert moved / ((bench.clock.now - began) / SECOND) == pytest.approx(0.2, rel=0.08)


@pytest.mark.parametrize("rate", [5, 10, 15, 20, 100])
def test_a_clock_that_is_slewed_as_chrony_does_by_default_voids_nothing(rate):
    bench = Bench(limits=Limits(control_rate_hz=rate, max_age_s=1.0)).ready()
    for _ in range(rate * 6):
        bench.clock.now += int(SECOND / rate * 0.083333)
        bench.answer(bench.frame())
        bench.tick(1 / rate)
    moved = sum(c.kind is POLICY for c in bench.out.commands)
    assert moved >= rate * 6 - 2 and bench.state is PolicyState.RUNNING


def test_how_far_stamps_may_be_ahead_is_a_parameter():
    bench = Bench(limits=Limits(stamp_tolerance_s=0.02)).running()
    bench.frame(bench.clock.now + 15 * MS)
    assert bench.loop.counters.frames_dropped == 0
    bench.frame(bench.clock.now + 25 * MS)
    assert "in the future" in bench.loop.counters.last_drop


# M13: any camera


@pytest.mark.parametrize("camera", ["wrist", "left"])
def test_a_further_camera_that_repeats_its_pixels_is_a_hold(camera):
    bench = Bench(detect_frozen=True).running()
    rng = np.random.default_rng(0)
    still = rng.integers(0, 255, (8, 8, 3), np.uint8)
    for _ in range(30):
        now, moving = bench.clock, rng.integers(0, 255, (8, 8, 3), np.uint8)
        pictures = {"wrist_image": still.copy()} if camera == "wrist" else {}
        more = {} if camera == "wrist" else {"left": still.copy()}
        frame = Observation(now.now, now.now, now.steady, moving, more_images=more, **pictures)
        bench.control.offer(frame)
        bench.answer(frame)
        bench.tick()
    assert bench.state is PolicyState.HOLD
    assert f"the {camera} camera's pixels have not changed" in bench.loop.safety.said


def test_a_further_camera_that_is_slower_than_the_main_one_repeats_nothing():
    bench = Bench(detect_frozen=True).running()
    rng = np.random.default_rng(0)
    for number in range(60):
        if number % 30 == 0:
            slow = rng.integers(0, 255, (8, 8, 3), np.uint8)
        now, moving = bench.clock, rng.integers(0, 255, (8, 8, 3), np.uint8)
        frame = Observation(now.now, now.now, now.steady, moving, wrist_image=slow)
        bench.control.offer(frame)
        bench.answer(frame)
        bench.tick()
    assert bench.state is PolicyState.RUNNING
    assert not [text for kind, text in bench.out.warnings if kind == "frozen"]
