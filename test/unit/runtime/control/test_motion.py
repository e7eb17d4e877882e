"""Between two actions, and from chunk to chunk, at any ratio of the two rates."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.runtime.control.bench import Bench
from vla_ros.core import rotation
from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionKind, end_effectors, joints
from vla_ros.core.types import CommandKind, Inference, StaleAction, Timeline
from vla_ros.runtime import curve, limiter
from vla_ros.runtime.control.motion import LowPass, Motion
from vla_ros.runtime.control.queue import ChunkAction, Chunking, Execution, PolicyAnswer
from vla_ros.runtime.limiter import Commanded
from vla_ros.runtime.safety import Limits

RATES = [(30.0, 125.0), (15.0, 100.0), (50.0, 20.0), (20.0, 500.0), (20.0, 60.0), (20.0, 20.0)]
FASTER = [rates for rates in RATES if rates[0] < rates[1]]
ARM = joints(ActionKind.JOINT_POSITION, ("a", "b"))
POSES = end_effectors(ActionKind.END_EFFECTOR_POSE)


def limits_of(space, action_hz, control_hz, reach=4.0, **more):
    count = len(space.motion)
    stale = StaleAction.HOLD if space.absolute else StaleAction.ZERO
    return Limits(
        control_rate_hz=control_hz,
        action_rate_hz=action_hz,
        max_age_s=10.0,
        space=space,
        low=(-reach,) * count,
        high=(reach,) * count,
        stale_action=stale,
        **more,
    )


def answer_of(rows, stamp_ns=1):
    return PolicyAnswer(Inference(stamp_ns, np.array(rows, float), Timeline(0)), 1, 1)


class Run:
    """A motion that follows chunks, tick by tick; nothing is limited."""

    def __init__(self, limits, at, blend_s=0.25, step=None):
        self.limits, self.space = limits, limits.space
        self.share = limits.actions_a_period
        self.motion = Motion(limits.space, limits.action_period_s, blend_s)
        self.commanded = Commanded(np.array(at, float), np.zeros(len(at)) if step is None else step)
        self.reach = limiter.action_reach_of(limits)
        self.wishes = []  # of each tick, numbers that move

    def chunk(self, rows, count, first=0, since=0.0):
        """Execute ``count`` actions of a chunk; the wishes of all whole ticks."""
        answer = answer_of(rows)
        rows = answer.inference.actions
        number, begin = first, len(self.wishes)
        while True:
            self.motion.open(self.share)
            while self.motion.wants() and number < first + count:
                part = since if number == first else 0.0
                action = ChunkAction((answer,), number, rows[number:], since=part)
                self.motion.begin(action, self.commanded, self.reach)
                number += 1
            step = self.motion.close(self.limits.period_s)
            if step is None:
                return np.array(self.wishes[begin:])
            moving = step.wish[list(self.space.motion)]
            self.wishes.append(moving)
            if self.space.absolute:
                by = curve.difference(self.commanded.at, moving, self.reach.turns)
                self.commanded = Commanded(moving, by / (step.share / self.share))
            else:
                self.commanded = Commanded(moving / (step.share / self.share))
            if self.motion.made < self.share - 1e-6:
                return np.array(self.wishes[begin:])


def velocities(wishes, at, share):
    """Mean velocity of each tick, per action."""
    return np.diff(np.concatenate((np.array(at, float)[None], wishes)), axis=0) / share


chunks = st.lists(
    st.tuples(st.floats(-0.3, 0.3), st.floats(-0.3, 0.3)), min_size=3, max_size=12
).map(lambda steps: np.cumsum(np.array(steps), 0))


# Targets


@settings(max_examples=60, deadline=None)
@given(chunks, st.sampled_from([3, 5, 25]), st.floats(-0.1, 0.1))
def test_at_an_actions_time_the_command_is_the_action_once_the_offset_has_faded(rows, ratio, off):
    """At ratios of whole numbers some tick ends where the action does."""
    run = Run(limits_of(ARM, 20.0, 20.0 * ratio), rows[0] + off, blend_s=0.0)
    wishes = run.chunk(rows, len(rows))
    assert len(wishes) == ratio * len(rows)
    np.testing.assert_allclose(wishes[ratio - 1 :: ratio], rows, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(chunks, st.sampled_from(FASTER), st.floats(-0.1, 0.1))
def test_nothing_overshoots_two_neighbours_once_the_offset_has_faded(rows, rates, off):
    run = Run(limits_of(ARM, *rates), rows[0] + off, blend_s=0.0)
    wishes = run.chunk(rows, len(rows))
    for tick, wish in enumerate(wishes, 1):
        time = tick * run.share
        if not 1.0 <= time <= len(rows):
            continue
        before, after = rows[int(time) - 1], rows[min(int(time), len(rows) - 1)]
        low, high = np.minimum(before, after), np.maximum(before, after)
        assert (wish >= low - 1e-9).all() and (wish <= high + 1e-9).all()


@settings(max_examples=60, deadline=None)
@given(chunks, chunks, st.integers(0, 2), st.floats(0.0, 0.9), st.floats(-0.07, 0.07))
def test_a_new_chunk_is_met_in_position_and_velocity(first, second, index, since, off):
    """At 500 Hz no tick's velocity differs from the one before by more than the curves bend."""
    index = min(index, len(second) - 1)
    limits = limits_of(ARM, 20.0, 500.0)
    run = Run(limits, first[0])
    before = run.chunk(first, 2)
    after = run.chunk(second - second[0] + first[1] + off, 1, first=index, since=since)
    assert np.abs(after[0] - before[-1]).max() < 0.06, "a tick's way"
    speeds = velocities(np.concatenate((before, after)), first[0], run.share)
    bend = np.abs(np.diff(speeds, axis=0)).max(1)
    joint = len(before) - 1
    assert bend[joint] <= 0.04 * 6 * 4 * 0.6 + 1e-6  # 6 times the largest step, a tick's share


@pytest.mark.parametrize("off", [0.02, 0.045, 0.07])
@pytest.mark.parametrize("phase", np.linspace(0.0, 2 * np.pi, 9)[:-1])
def test_an_offset_between_chunks_is_no_acceleration_beyond_the_chunks_own(off, phase):
    """Chunks five times a second that begin where a lagging arm was measured (20 to 70 mrad behind
    what was commanded): no acceleration above that within a chunk by more than a tenth."""
    limits = limits_of(ARM, 20.0, 500.0)

    def wave(actions):
        times = np.asarray(actions) / 20.0
        return np.stack((0.5 * np.sin(3 * times + phase), 0.4 * np.cos(2 * times + phase)), 1)

    begin, way = wave([0])[0], (wave([0.01]) - wave([-0.01]))[0] / 0.02 / 25
    within = Run(limits, begin, step=way).chunk(wave(np.arange(1, 33)), 32)
    own = np.abs(np.diff(within[25:], n=2, axis=0)).max(0)
    run = Run(limits, begin, step=way)
    found = [run.chunk(wave(np.arange(1, 13)), 4)]
    for number in range(1, 8):  # each two actions late
        rows = wave(4 * number - 1 + np.arange(12)) - off
        found.append(run.chunk(rows, 4, first=2))
    most = np.abs(np.diff(np.concatenate(found)[90:], n=2, axis=0)).max(0)  # from the first change
    assert (most <= 1.1 * own + 1e-9).all(), most / own


def test_an_offset_has_faded_after_the_named_time_and_is_not_pulled_at_once():
    limits = limits_of(ARM, 20.0, 100.0)
    rows = np.zeros((20, 2))
    rows[:, 1] = 0.3 * np.sin(np.arange(20))  # it accelerates enough by itself
    rows[:, 0] = 0.3 * np.sin(np.arange(20))
    begin, way = 2 * rows[0] - rows[1], (rows[1] - rows[0]) * limits.actions_a_period
    wishes, plain = (
        run.chunk(rows, 20) for run in (Run(limits, begin + off, 0.2, way) for off in (0.05, 0.0))
    )
    off = (wishes - plain)[:, 0]
    assert abs(off[19] - off[-1]) < 1e-9 and abs(off[-1]) < 1e-9, "0.2 s at 100 Hz"
    assert abs(off[0]) > 0.04


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=2, max_size=8),
    st.sampled_from(FASTER),
    st.booleans(),
)
def test_a_curve_stays_within_the_bounds_that_its_actions_are_in(rows, rates, chunked):
    """Also where it was fast, and where an offset fades."""
    run = Run(limits_of(ARM, *rates, reach=1.0), rows[0])
    rows = np.array(rows)
    if chunked:
        run.chunk(rows[::-1], 1)
        run.chunk(rows, len(rows))
    else:
        for row in rows:
            run.chunk(row[None], 1)
    assert np.abs(run.wishes).max() <= 1.0 + 1e-9


def test_a_continuous_joint_turns_the_shorter_way():
    limits = limits_of(ARM, 20.0, 100.0)
    run = Run(limits, [3.1, 0.0], blend_s=0.0)
    run.reach = limiter.action_reach_of(limits, (0,))
    rows = np.array([[-3.13, 0.0], [-3.08, 0.0], [-3.03, 0.0]])
    wishes = run.chunk(rows, 3)[:, 0]
    assert (np.diff(wishes) > 0.0).all() and wishes[-1] == pytest.approx(2 * np.pi - 3.03)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*[st.floats(-0.2, 0.2)] * 3), min_size=3, max_size=6))
def test_rotations_turn_on_the_sphere_with_a_continuous_velocity(turns):
    """Through pi, where the vectors of neighbours are nearly opposite."""
    limits = limits_of(POSES, 20.0, 500.0)
    vectors = [np.array([3.1, 0.0, 0.1])]
    for turn in turns:
        vectors.append(rotation.turned(vectors[-1], np.array(turn)))
    rows = np.zeros((len(vectors), 7))
    rows[:, 3:6] = vectors
    run = Run(limits, [0, 0, 0, *vectors[0]], blend_s=0.0)
    wishes = run.chunk(rows, len(rows))[:, 3:]
    for number, vector in enumerate(vectors, 1):
        off = rotation.relative(wishes[25 * number - 1], vector)
        assert np.linalg.norm(off) < 1e-6
    speeds = np.array([rotation.relative(a, b) for a, b in pairwise(wishes[24:])]) * 25
    assert np.linalg.norm(np.diff(speeds, axis=0), axis=1).max() < 6 * 0.04 * 0.8


# Displacements


@settings(max_examples=100, deadline=None)
@given(chunks, st.sampled_from(FASTER))
def test_displacements_sum_to_their_actions_and_stay_within_the_bounds(rows, rates):
    space = joints(ActionKind.JOINT_DELTA, ("a", "b"))
    steps = np.clip(rows, -0.3, 0.3)
    limits = limits_of(space, *rates, reach=0.3)
    run = Run(limits, [0.0, 0.0])
    wishes = run.chunk(steps, len(steps))
    np.testing.assert_allclose(wishes.sum(0), steps.sum(0), atol=1e-9)
    made = np.cumsum(wishes, 0)
    for number, total in enumerate(np.cumsum(steps, 0), 1):
        ticks = number / run.share
        if abs(ticks - round(ticks)) < 1e-9:
            np.testing.assert_allclose(made[round(ticks) - 1], total, atol=1e-9)
    whole = wishes[: int(len(steps) / run.share)]
    assert (np.abs(whole) <= 0.3 * run.share + 1e-9).all()


def test_a_twist_is_continuous_where_its_bounds_leave_room():
    space = joints(ActionKind.JOINT_DELTA, ("a", "b"))
    limits = limits_of(space, 20.0, 500.0, reach=1.0)
    steps = 0.1 * np.stack((np.sin(0.5 * np.arange(12)), np.cos(0.4 * np.arange(12))), 1)
    wishes = Run(limits, [0.0, 0.0]).chunk(steps, 12) / limits.actions_a_period
    assert np.abs(np.diff(wishes[25:], axis=0)).max() < 0.2 * 0.05


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1, 1), min_size=4, max_size=4),
    st.floats(-1, 1),
    st.floats(-1, 1),
)
def test_at_the_bound_a_displacement_is_spread_evenly(numbers, begin, end):
    space = joints(ActionKind.JOINT_DELTA, ("a", "b"))
    limits = limits_of(space, 20.0, 500.0, reach=1.0)
    run = Run(limits, [begin, end])
    run.commanded = Commanded(np.array([begin, end]) * run.share)
    wishes = run.chunk(np.array([[1.0, -1.0], numbers[:2], numbers[2:]]), 3)
    assert (np.abs(wishes) <= limits.actions_a_period + 1e-9).all()
    np.testing.assert_allclose(wishes[:25], [[0.04, -0.04]] * 25, atol=1e-12)


# At equal rates


@settings(max_examples=40, deadline=None)
@given(chunks, st.sampled_from([ARM, joints(ActionKind.JOINT_DELTA, ("a", "b"))]))
def test_where_a_command_is_an_action_it_is_that_to_the_bit(rows, space):
    run = Run(limits_of(space, 0.0, 20.0), [0.5, -0.5], blend_s=0.0)
    assert (run.chunk(rows, len(rows)) == rows).all()


# The loop


def loop(action_hz, control_hz, rows, execution=Execution.ASYNC, space=END_EFFECTOR_DELTA, **how):
    limits = limits_of(space, action_hz, control_hz, reach=how.pop("reach", 0.5))
    chunking = Chunking(execution, **how)
    bench = Bench(limits=limits, chunk=len(rows), chunking=chunking)
    bench.ready()
    if space.absolute:
        bench.measure = lambda: bench.control.measure(
            np.zeros(len(space.motion)), bench.clock.now, bench.moment(), list(space.motion)
        )
        bench.measure()
    bench.answer(bench.frame(), rows)
    return bench


@pytest.mark.parametrize(("action_hz", "control_hz"), RATES)
def test_a_second_of_actions_moves_as_far_at_any_control_rate(action_hz, control_hz):
    """The finding: 0.005 an action was 0.1/s at 20 Hz, and 0.5/s at 100 Hz."""
    rows = np.zeros((100, 7))
    rows[:, 0] = 0.005
    bench = loop(action_hz, control_hz, rows)
    ticks = int(control_hz)
    for _ in range(ticks):
        bench.tick(1 / control_hz)
    moved = sum(c.action[0] for c in bench.out.commands)
    assert moved == pytest.approx(0.005 * action_hz, rel=1e-6)


def test_the_phase_and_the_staleness_of_a_command_are_its_actions():
    rows = np.zeros((8, 7))
    rows[:, 1] = np.arange(8) / 100
    bench = loop(20.0, 100.0, rows)
    for _ in range(10):
        bench.tick(0.01)
    commands = bench.out.commands
    assert [c.chunk_index for c in commands] == [0] * 5 + [1] * 5
    assert [round(c.action_phase, 9) for c in commands] == [0.0, 0.2, 0.4, 0.6, 0.8] * 2
    assert {c.kind for c in commands} == {CommandKind.POLICY}
    assert all(c.staleness_ns == 10_000_000 for c in commands), "a tick after its frame"
    assert all(c.published_ns - c.stamp_ns == (i + 1) * 10_000_000 for i, c in enumerate(commands))


def test_frames_are_asked_about_at_the_action_rate():
    bench = loop(20.0, 100.0, np.zeros((1, 7)))
    for _ in range(100):  # a camera of 100 Hz
        bench.clock.advance(0.01)
        bench.frame()
        bench.control.tick()
    assert 20 <= len(bench.out.submitted) <= 22


def test_what_is_left_of_an_action_is_void_once_its_observation_is_too_old():
    rows = np.full((1, 7), 0.1)
    limits = Limits(control_rate_hz=100.0, action_rate_hz=2.0, max_age_s=0.6)
    bench = Bench(limits=limits)
    bench.ready()
    bench.clock.advance(0.4)
    bench.answer(bench.frame(stamp_ns=bench.clock.now - 400_000_000), rows)
    kinds = [c.kind for _ in range(40) for c in bench.tick(0.01)]
    assert kinds.count(CommandKind.POLICY) == 20
    assert kinds[20] is CommandKind.STOP


@pytest.mark.parametrize("late", [1, 2, 4])
def test_a_late_tick_of_a_motion_is_made_up_for(late):
    rows = np.zeros((20, 7))
    rows[:, 0] = 0.005
    bench = loop(20.0, 100.0, rows)
    for number in range(50):
        bench.tick(0.01 * (late if number == 7 else 1))
    moved = sum(c.action[0] for c in bench.out.commands)
    assert moved == pytest.approx(0.005 * (50 + late - 1) / 5, rel=1e-6)


# The low-pass


@pytest.mark.parametrize("absolute", [True, False])
def test_a_low_pass_is_behind_by_the_delay_that_is_stated(absolute):
    low_pass, limits = LowPass(5.0), Limits(smoothing_hz=5.0)
    out = []
    for tick in range(200):
        wish = np.array([0.01 * tick]) if absolute else np.array([0.01])
        out.append(float(low_pass.pass_on(wish, 0.01, absolute)[0]))
    at = out[-1] if absolute else sum(out)
    goal = 0.01 * 199 if absolute else 0.01 * 200
    behind_s = (goal - at) / 1.0  # it moves by 1 a second
    assert behind_s == pytest.approx(limits.smoothing_delay_ns / 1e9, abs=0.011)


def test_the_delay_of_a_low_pass_is_in_the_age_that_is_stated_and_in_how_long_a_command_is_valid():
    rows, found = np.zeros((4, 7)), []
    for hz in (0.0, 5.0):
        limits = Limits(control_rate_hz=100.0, action_rate_hz=20.0, smoothing_hz=hz)
        bench = Bench(limits=limits, chunk=4)
        bench.ready()
        bench.answer(bench.frame(), rows)
        found += bench.tick(0.01)
    plain, smooth = found
    delay_ns = Limits(smoothing_hz=5.0).smoothing_delay_ns
    assert smooth.total_ms - plain.total_ms == pytest.approx(delay_ns / 1e6)
    assert smooth.staleness_ns - plain.staleness_ns == delay_ns
    assert plain.valid_until_ns - smooth.valid_until_ns == delay_ns
    assert sum(smooth.stages_ms.values()) == pytest.approx(smooth.total_ms)


def test_an_observation_that_the_low_pass_makes_too_old_moves_nothing():
    limits = Limits(control_rate_hz=100.0, action_rate_hz=20.0, max_age_s=0.1, smoothing_hz=5.0)
    bench = Bench(limits=limits, chunk=4)
    bench.ready()
    bench.answer(bench.frame(), np.full((4, 7), 0.01))
    kinds = [c.kind for _ in range(10) for c in bench.tick(0.01)]
    assert kinds.count(CommandKind.POLICY) == 3, "100 ms less 64"
