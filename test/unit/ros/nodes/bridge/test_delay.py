"""Calls that are made later: in order, not before their time, and not at all once forgotten."""

from __future__ import annotations

import threading
import time

import pytest

from support.timing import judge
from vla_ros.core.clock import MS, SystemClock
from vla_ros.ros.nodes.bridge.node import DelayLine


@pytest.fixture
def line():
    made = []

    def make(delay_ms):
        made.append(DelayLine(delay_ms * MS, SystemClock()))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.timing
def test_calls_are_made_in_order_and_not_before_their_time(line):
    delayed = line(80)
    put, made = [], []
    done = threading.Event()
    for number in range(5):
        put.append(time.monotonic())
        delayed.put(lambda number=number: made.append((number, time.monotonic())))
    delayed.put(done.set)
    # Whoever puts is not held up: five that were would take longer.
    judge("put five", time.monotonic() - put[0], quiet=0.08, loaded=5 * 0.08)
    assert done.wait(5.0)
    assert [number for number, _ in made] == [0, 1, 2, 3, 4]
    assert all(at - begun >= 0.08 for (_, at), begun in zip(made, put, strict=True))


def test_what_is_forgotten_is_not_made_and_what_follows_is(line):
    delayed = line(60)
    made = []
    delayed.put(lambda: made.append("old"))
    delayed.clear()
    done = threading.Event()
    delayed.put(done.set)
    assert done.wait(5.0)
    assert made == []


def test_nothing_is_made_after_the_end(line):
    delayed = line(50)
    made = []
    delayed.put(lambda: made.append("late"))
    delayed.close()
    time.sleep(0.1)
    assert made == []


def test_without_a_delay_the_caller_makes_the_call(line):
    made = []
    line(0).put(lambda: made.append(threading.current_thread()))
    assert made == [threading.current_thread()]
