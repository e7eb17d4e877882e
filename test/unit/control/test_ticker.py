"""The ticker: its period, its phase, and that nothing stops it."""

import os
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.control.ticker import Scheduling, Ticker, shift_ns
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


def may_be_real_time():
    """Whether this process may use SCHED_FIFO: root, or with CAP_SYS_NICE."""
    try:
        Scheduling(priority=1).check()
    except ValueError:
        return False
    return True


def test_the_tick_s_thread_is_scheduled_as_asked_and_no_other_is():
    """Told by the kernel, thread by thread."""
    if not may_be_real_time():
        pytest.skip("this process may not use SCHED_FIFO")
    cpu = max(os.sched_getaffinity(0))
    wanted = Scheduling(priority=7, cpus=(cpu,))
    wanted.check()
    seen, ticked = [], threading.Event()

    def call(_error):
        policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
        seen.append((policy, os.sched_getparam(0).sched_priority, os.sched_getaffinity(0)))
        child = threading.Thread(target=lambda: seen.append(os.sched_getscheduler(0)))
        child.start()
        child.join()
        ticked.set()

    ticker = Ticker(5 * MS, call, seen.append, wanted)
    ticker.start()
    assert ticked.wait(5.0)
    ticker.stop()
    assert seen[:2] == [(os.SCHED_FIFO, 7, {cpu}), os.SCHED_OTHER]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert os.sched_getaffinity(0) >= {cpu}


def unprivileged(call):
    """What ``call`` returns in a process that may do nothing: root gives its rights away."""
    end, other = os.pipe()
    pid = os.fork()
    if pid == 0:
        if os.getuid() == 0:
            os.setuid(65534)
        os.write(other, call().encode())
        os._exit(0)
    os.close(other)
    with os.fdopen(end) as said:
        text = said.read()
    os.waitpid(pid, 0)
    return text


def refusal(scheduling):
    try:
        scheduling.check()
    except ValueError as error:
        return str(error)
    return "allowed"


def test_what_the_system_forbids_is_refused_in_one_line():
    if unprivileged(lambda: refusal(Scheduling(priority=98))) == "allowed":
        pytest.skip("everybody may use SCHED_FIFO here")
    said = unprivileged(lambda: refusal(Scheduling(priority=98)))
    assert said.startswith("tick_priority 98: Operation not permitted: this process needs")
    assert "CAP_SYS_NICE" in said and "\n" not in said
    absent = max(os.sched_getaffinity(0)) + 700
    said = refusal(Scheduling(cpus=(0, absent)))
    assert said.startswith(f"tick_cpus [0, {absent}]: this process may use [")
    assert said.endswith(f"not [{absent}]")
    assert refusal(Scheduling()) == "allowed"
