"""The ticker: its period, its phase, and that nothing stops it."""

import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from vla_ros.control.ticker import Ticker, shift_ns
from vla_ros.timing import MS

PERIOD = 50 * MS


@given(st.integers(0, 49_999_999))
def test_from_any_phase_the_wait_settles_at_a_fifth_of_the_period(wait):
    for _ in range(60):
        shift = shift_ns(PERIOD, wait)
        assert abs(shift) <= PERIOD // 50
        wait = (wait + shift) % PERIOD
    assert wait == PERIOD // 5


def test_ticks_follow_arrivals_and_keep_their_rate():
    waits, ticks, arrived = [], [], [0]
    period = 20 * MS

    def call(_error):
        now = time.monotonic_ns()
        ticks.append(now)
        waits.append(now - arrived[0])

    def failed(error):
        raise AssertionError(error)

    ticker = Ticker(period, call, failed)
    ticker.start()
    due = time.monotonic_ns()
    for _ in range(120):  # the phase at the start is whatever it is
        due += period
        time.sleep(max(0.0, (due - time.monotonic_ns()) / 1e9))
        arrived[0] = time.monotonic_ns()
        ticker.arrived(arrived[0])
    ticker.stop()
    settled = sorted(waits[-40:])[20]
    assert settled < 0.45 * period
    middle = sorted(b - a for a, b in zip(ticks[:-1], ticks[1:], strict=True))[len(ticks) // 2]
    assert abs(middle / period - 1) < 0.1  # single ticks may come late on a busy machine


def test_an_exception_does_not_stop_the_ticks():
    errors, enough = [], threading.Event()

    def call(_error):
        raise RuntimeError("broken")

    def failed(error):
        errors.append(error)
        if len(errors) == 3:
            enough.set()

    ticker = Ticker(5 * MS, call, failed)
    ticker.start()
    assert enough.wait(5.0)
    ticker.stop()


def test_a_tick_that_overruns_makes_the_next_ones_skip():
    ticks, slept = [], threading.Event()

    def call(_error):
        ticks.append(time.monotonic_ns())
        if len(ticks) == 1:
            time.sleep(0.105)
            slept.set()

    ticker = Ticker(20 * MS, call, lambda error: None)
    ticker.start()
    assert slept.wait(5.0)
    time.sleep(0.05)
    ticker.stop()
    assert len(ticks) <= 5, "five ticks were missed and not made up for"
