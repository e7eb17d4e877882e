"""Growth of a process: a leak is found, noise is not one, and a successor is another process."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endurance.growth import MemorySample, daily, look, slope


def series(
    rate: float,
    minutes: float = 60.0,
    noise: float = 0.0,
    life: int = 1,
    begin: float = 0.0,
    seed: int = 0,
) -> list[MemorySample]:
    """``rate`` MB/h, a look every 5 s."""
    rng = np.random.default_rng(seed)
    return [
        MemorySample(begin + t, life, 100 + life + rate * t / 3600 + noise * rng.normal(), 20)
        for t in np.arange(0, minutes * 60, 5.0)
    ]


@given(st.floats(-20, 20), st.integers(0, 5))
def test_a_line_is_found(rate, seed):
    found = slope(series(rate, noise=0.1, seed=seed))
    assert found.per_hour == pytest.approx(rate, abs=0.2)
    assert found.low <= found.per_hour <= found.high


def test_a_leak_grows_and_noise_does_not():
    assert slope(series(12.0, noise=0.5)).verdict(5.0) == "grows"
    assert slope(series(0.0, noise=0.5)).verdict(5.0) == "steady"
    assert slope(series(0.0, minutes=3, noise=20.0)).verdict(5.0) == "not shown"


def test_the_first_minute_of_a_life_does_not_count():
    start = [MemorySample(t, 1, 10 + t, 20) for t in range(0, 60, 5)]  # imports
    found = slope([*start, *(MemorySample(s.at_s + 60, 1, s.memory_mb, 20) for s in series(0.0))])
    assert found.per_hour == pytest.approx(0.0, abs=0.01)


def test_a_successor_has_a_height_of_its_own():
    """A worker that begins larger than the one before it has not grown."""
    lives = [s for n in range(6) for s in series(0.0, 20.0, 0.05, life=40 * n, begin=1200.0 * n)]
    assert slope(lives).verdict(5.0) == "steady"
    grown = [s for n in range(6) for s in series(30.0, 20.0, 0.05, life=40 * n, begin=1200.0 * n)]
    assert slope(grown).per_hour == pytest.approx(30.0, abs=1.0)


def test_lives_of_some_minutes_say_nothing():
    """A worker that is killed every few minutes is always young: it grows, and leaks nothing."""
    lives = [s for n in range(9) for s in series(40.0, 7.0, 0.05, life=40 * n, begin=420.0 * n)]
    assert slope(lives).verdict(5.0) == "not shown"


def test_too_little_says_nothing():
    found = slope(series(0.0, minutes=1.0))
    assert math.isnan(found.per_hour)
    assert found.verdict(5.0) == "not shown"


def test_a_process_is_looked_at():
    memory, files = look(os.getpid()) or (0.0, 0)
    assert memory > 5
    assert files >= 3
    assert look(2**22 + 1) is None


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(0, 0.0, 3.689), (1, 0.0253, 5.572), (5, 1.623, 11.668), (40, 28.58, 54.47)],
)
def test_events_a_day_have_the_interval_of_a_poisson_count(count, low, high):
    """Limits from tables of the exact interval."""
    found = daily(count, 24.0)
    assert found[0] == count
    assert found[1:] == (pytest.approx(low, rel=0.02, abs=0.02), pytest.approx(high, rel=0.02))
    assert daily(count, 12.0) == pytest.approx([2 * x for x in found])


def test_no_time_says_nothing():
    assert all(map(math.isnan, daily(0, 0.0)))
