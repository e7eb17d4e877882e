"""The ticker: its period, its phase, and that nothing stops it."""

import os
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.core.clock import MS, SECOND
from vla_ros.runtime.control.drivers import Scheduling, Ticker, shift_ns

PERIOD = 50 * MS


@given(st.integers(0, 49_999_999))
def test_from_any_phase_the_wait_settles_at_a_fifth_of_the_period(wait):
    for _ in range(60):
        shift = shift_ns(PERIOD, wait)
        assert abs(shift) <= PERIOD // 50 and isinstance(shift, int)
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
    """Whether this process may use SCHED_FIFO: root, or with CAP_SYS_NICE. In a fork of it."""
    return forked(lambda: real_time(1)) == "allowed"


def real_time(priority):
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except OSError as error:
        return str(error.strerror)
    return "allowed"


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

    def without_rights():
        if os.getuid() == 0:
            os.setuid(65534)
        return call()

    return forked(without_rights)


def forked(call):
    """The text that ``call`` returns, in a process of its own."""
    end, other = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(other, call().encode())
        finally:  # else this copy of the process would go on testing
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
    absent = max(os.sched_getaffinity(0)) + 700
    said = refusal(Scheduling(cpus=(0, absent)))
    allowed = sorted(os.sched_getaffinity(0))
    assert said == f"tick_cpus [0, {absent}]: this process may use {allowed}, not [{absent}]"
    with pytest.raises(ValueError, match=rf"^tick_cpus \[{absent}\]: Invalid argument$"):
        Scheduling(cpus=(absent,)).apply()
    assert refusal(Scheduling()) == "allowed"
    if unprivileged(lambda: real_time(98)) == "allowed":
        pytest.skip("everybody may use SCHED_FIFO here")
    assert unprivileged(lambda: refusal(Scheduling(priority=98))) == (
        "tick_priority 98: Operation not permitted: this process needs CAP_SYS_NICE or an rtprio"
        " limit of 98 (limits.conf); 0 asks for nothing"
    )


def test_ticks_go_on_without_a_scheduling_that_is_forbidden_and_it_is_said():
    absent = max(os.sched_getaffinity(0)) + 700
    told, ticked = [], threading.Event()
    ticker = Ticker(MS, lambda _: ticked.set(), told.append, Scheduling(cpus=(absent,)))
    ticker.start()
    assert ticked.wait(5.0)
    ticker.stop()
    assert [str(error) for error in told] == [f"tick_cpus [{absent}]: Invalid argument"]


def named(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_the_thread_has_a_name_holds_up_no_exit_and_is_over_after_the_stop():
    ticked = threading.Event()
    ticker = Ticker(MS, lambda _: ticked.set(), lambda error: None)
    ticker.stop()  # it never ran: nothing to wait for
    ticker = Ticker(MS, lambda _: (ticked.set(), time.sleep(0.02)), lambda error: None)
    ticker.start()
    (thread,) = named("control tick")
    assert thread.daemon
    assert ticked.wait(5.0)
    ticker.stop()
    assert named("control tick") == []


def test_a_tick_may_stop_the_ticker():
    ticks, errors = [], []

    def call(_error):
        ticks.append(1)
        ticker.stop()

    ticker = Ticker(MS, call, errors.append)
    ticker.start()
    deadline = time.monotonic() + 5.0
    while named("control tick") and time.monotonic() < deadline:
        time.sleep(0.001)
    assert (len(ticks), errors) == (1, [])


@pytest.mark.parametrize(("period", "turn_s"), [(2 * MS, 2e-4), (MS // 2, 1e-4), (50 * MS, 5e-3)])
def test_a_thread_that_computes_delays_a_tick_by_a_tenth_of_its_period_at_most(period, turn_s):
    """Python's own 5 ms would be two periods of 500 Hz and a half."""
    before, seen, ticked = sys.getswitchinterval(), [], threading.Event()
    assert before == pytest.approx(5e-3)

    def call(_error):
        seen.append(sys.getswitchinterval())
        ticked.set()

    ticker = Ticker(period, call, seen.append)
    ticker.start()
    assert ticked.wait(5.0)
    ticker.stop()
    assert seen[0] == pytest.approx(turn_s) and sys.getswitchinterval() == before


class World:
    """Time that passes only while the ticker waits or its call works."""

    def __init__(self, monkeypatch, ticks):
        self.now, self.left = 10**12, ticks
        self.calls, self.errors = [], []
        fake = SimpleNamespace(Event=lambda: self, Thread=self.thread)
        monkeypatch.setattr("vla_ros.runtime.control.drivers.threading", fake)
        clock = SimpleNamespace(monotonic_ns=lambda: self.now)
        monkeypatch.setattr("vla_ros.runtime.control.drivers.time", clock)

    def thread(self, target, **_how):
        return SimpleNamespace(start=target)

    def wait(self, seconds):
        assert seconds >= 0.0
        self.now += round(seconds * SECOND)
        self.left -= 1
        return self.left < 0

    def run(self, work=lambda number: None, period=1000):
        """When each tick came, from the start on, and how late it was told to be."""

        def call(late):
            self.calls.append((self.now - 10**12, late))
            work(len(self.calls))

        self.ticker = Ticker(period, call, self.errors.append)
        self.ticker.start()
        return self.calls


def test_the_first_tick_comes_after_a_period_and_none_drifts(monkeypatch):
    world = World(monkeypatch, 4)

    def work(number):
        world.now += 300 * number

    assert world.run(work) == [(1000, 0), (2000, 0), (3000, 0), (4000, 0)]


def test_a_tick_is_told_how_late_it_is_and_those_that_were_missed_are_left_out(monkeypatch):
    world = World(monkeypatch, 4)

    def work(number):
        world.now += 2300 if number == 1 else 0

    assert world.run(work) == [(1000, 0), (3300, 1300), (4000, 0), (5000, 0)]
    world = World(monkeypatch, 3)

    def by_one(number):
        world.now += 1999 if number == 1 else 0

    assert world.run(by_one) == [(1000, 0), (2999, 999), (3000, 0)], "just in time"


def test_ticks_are_moved_once_by_each_arrival_and_by_none_that_comes_after(monkeypatch):
    world = World(monkeypatch, 6)

    def work(number):
        if number == 1:
            world.ticker.arrived(world.now + 300)  # it waits 700 of 1000: ticks come earlier
        elif number == 3:
            world.now += 400
            world.ticker.arrived(world.now)  # and this one 600
        elif number == 4:
            world.ticker.arrived(world.now + 5000)

    ticks = [at for at, _ in world.run(work)]
    assert ticks == [1000, 2000, 2980, 3980, 4960, 5960]


def test_an_arrival_is_at_its_tick_s_very_moment_too_soon(monkeypatch):
    world = World(monkeypatch, 3)
    assert [at for at, _ in world.run(lambda n: world.ticker.arrived(1000 * (n + 1) + 10**12))] == [
        1000, 2000, 3020,
    ]  # fmt: skip


def test_whatever_goes_wrong_in_a_tick_is_told(monkeypatch):
    world, wrong = World(monkeypatch, 2), RuntimeError("broken")

    def work(number):
        if number == 1:
            raise wrong

    assert world.run(work) == [(1000, 0), (2000, 0)] and world.errors == [wrong]
