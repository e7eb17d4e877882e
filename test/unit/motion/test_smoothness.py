"""The comparison of motions: its metrics and its servo on signals that are known, and each way of
commanding actions."""

from __future__ import annotations

import numpy as np
import pytest

from motion.recorded import SOURCES, Episode
from motion.smoothness import begun_behind, changed, followed, limits_of, ways_of
from motion.ways import Lines, Ours, Part, Servo, Smoothness, Stairs, commands, within

RATE, START = 100.0, np.zeros(1)


def wave(seconds, rate=RATE, hz=1.0, size=0.1):
    times = np.arange(1, round(seconds * rate) + 1) / rate
    return size * np.sin(2 * np.pi * hz * times)[:, None]


def test_a_sine_has_the_acceleration_and_the_jerk_that_it_has():
    found, omega = Smoothness.of([wave(5.0, 500.0)], 500.0), 2 * np.pi
    assert found.acceleration == pytest.approx(0.1 * omega**2, rel=1e-3)
    assert found.jerk == pytest.approx(0.1 * omega**3 / np.sqrt(2), rel=0.01)


def test_the_largest_acceleration_is_that_of_all_runs_and_numbers():
    still, steady = np.zeros((10, 2)), np.arange(10)[:, None] / RATE * np.ones(2)
    assert Smoothness.of([still, steady], RATE).acceleration == pytest.approx(0.0, abs=1e-9)
    steady[5:, 1] += 0.001
    assert Smoothness.of([still, steady], RATE).acceleration == pytest.approx(0.001 * RATE**2)


def executed(servo, rows):
    assert servo.execute(rows)
    return np.array(servo.found)[:, 0]


def test_a_servo_comes_to_a_step_late_without_overshoot_and_lags_a_ramp_by_what_it_must():
    step = executed(Servo(START, RATE), np.ones((100, 1)))
    assert (step[:2] == 0.0).all() and step[2] > 0.0, "20 ms late"
    assert (np.diff(step) >= 0.0).all() and step[-1] == pytest.approx(1.0, abs=1e-6)
    omega_t = 2 * np.pi * 5.0 * 0.08  # 10 periods after the begin, less what it is late
    assert step[9] == pytest.approx(1 - (1 + omega_t) * np.exp(-omega_t), rel=1e-6)
    ramp = np.arange(1, 501)[:, None] / 500.0
    behind_s = float(ramp[-1, 0]) - executed(Servo(START, 500.0), ramp)[-1]
    assert behind_s == pytest.approx(0.02 + 2 / (2 * np.pi * 5.0), abs=0.003)
    with pytest.raises(ValueError, match="no whole number of milliseconds"):
        Servo(START, 60.0)


def test_stairs_and_lines_are_the_actions_at_their_times():
    actions = wave(1.0, 20.0)
    parts = [Part(actions[i : i + 8], 0, 4) for i in range(0, 20, 4)]
    held, ramps = commands(Stairs(START, 5), parts), commands(Lines(START, 5), parts)
    assert (held.reshape(20, 5) == actions).all() and (ramps[4::5] == actions).all()
    np.testing.assert_allclose(np.diff(ramps[4:10, 0]), (actions[1, 0] - actions[0, 0]) / 5)


def test_a_period_that_two_actions_share_belongs_to_the_one_that_it_begins_in():
    actions = np.arange(1.0, 7.0)[:, None]
    parts = [Part(actions[i : i + 1], 0, 1) for i in range(6)]
    found = commands(Stairs(START, 2.5), parts)[:, 0]
    assert found.tolist() == [1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 5, 5, 6, 6]


@pytest.mark.parametrize("ratio", [5, 12.5])
def test_ours_is_smoother_than_lines_and_those_than_stairs(ratio):
    actions = wave(2.0, 20.0)
    parts = [Part(actions[i : i + 8], 0, 4) for i in range(0, 40, 4)]
    mine = commands(Ours(START, limits_of(1, True, ratio), 0.25), parts)
    assert len(mine) == 40 * ratio
    ways = [commands(way, parts) for way in (Lines(START, round(ratio)), Stairs(START, ratio))]
    most = [
        Smoothness.of([made[round(4 * ratio) :]], 20.0 * ratio).acceleration
        for made in (mine, *ways)
    ]
    assert most[0] < 0.7 * most[1] < 0.7 * most[2]


@pytest.mark.parametrize("ratio", [5, 12.5])
def test_displacements_sum_to_their_actions(ratio):
    steps = wave(1.0, 20.0, size=0.04) * np.ones(6)
    parts = [Part(steps[i : i + 8], 0, 4) for i in range(0, 20, 4)]
    mine = commands(ways_of(np.zeros(6), False, ratio)["vla_ros"](), parts)
    np.testing.assert_allclose(mine.sum(0), steps.sum(0), atol=1e-12)


def test_a_chunk_begins_where_the_arm_is_and_its_offset_is_the_arms_lag():
    """A servo is 20 ms and two time constants behind."""
    episode = Episode(SOURCES[2], "lift_cube", 0)
    for number in range(60):
        row = np.array([0.025 * (number + 1), 0, 0, 0, 0, 1.0])
        episode.seen[number], episode.executed = np.zeros(5), [*episode.executed, (number, 0, row)]
    assert [part.count for part in episode.targets()] == [4] * 15
    start, limits = np.zeros(5), limits_of(5, True, 5)
    run = followed(episode, Ours(start, limits, 0.25), Servo(start, RATE), start, 5)
    speed = (run.commanded[-1, 0] - run.commanded[-21, 0]) / 0.2
    lag_s = 0.02 + 2 / (2 * np.pi * 5.0)
    assert 0.3 < speed < 0.5, "it is pulled back at each change"
    assert run.offsets[-1] == pytest.approx(speed * lag_s, rel=0.1)
    held = followed(episode, Stairs(start, 5), Servo(start, RATE), start, 5)
    assert (held.off == 0.0).all() and run.off.max() > 0.5 * speed * lag_s
    assert run.way[0] == pytest.approx(run.executed[-1, 0]), "it never turns back"


def test_a_chunk_that_begins_behind_is_a_corner_to_lines_and_none_to_ours():
    actions = wave(6.0, 20.0, 0.5, 0.5)
    parts = [Part(actions[i : i + 12], 0, 4) for i in range(0, 100, 4)]
    assert begun_behind(parts[1], np.array([10.0]), 0, 0.25).begin == pytest.approx([9.75])
    assert begun_behind(parts[3], np.array([0.0]), 0, 0.25).begin == pytest.approx([0.25])
    own = within(parts, limits_of(1, True, 5))
    assert 0.5 * np.pi**2 <= own[0] < 7.5, "that of the wave, and what a cubic makes of it"
    runs = changed(parts, 0, 0.045)
    assert [len(run) for run in runs.values()] == [2 + 24 * 20] * 3, "from the first change on"
    peaks = [Smoothness.of([run], RATE).acceleration for run in runs.values()]
    assert peaks[0] < 1.5 * own[0] < 0.3 * peaks[1] < peaks[2]
