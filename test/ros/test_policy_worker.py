"""What the loss of a worker costs, measured: where another is loaded, where one stands by.

Judged by the node's own stamps, its log and its counts; the figures of a quiet machine are printed
and stand in docs/explanation/safety.md.
"""

from __future__ import annotations

import re
import signal
import time
from itertools import pairwise

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from diagnostic_msgs.msg import DiagnosticArray

from support.processes import alive
from support.timing import judge
from support.wait import wait_until
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.common.convert import stamp_of

T = 0.05
MARGIN = 0.06  # s: a process to reap and one to start
BUSY = 10  # control periods, on a machine whose processor is taken
SMALL = {"policy": "vla", "checkpoint": "shipped:tabletop"}
EITHER = pytest.mark.parametrize(
    "policy", [{}, pytest.param(SMALL, marks=pytest.mark.slow)], ids=["replay", "vla"]
)


class Worker:
    """A policy that runs, every control period of which can be seen."""

    def __init__(self, start_policy, **parameters):
        self.rig = start_policy(silence_after_s=60.0, **parameters)
        self.rig.bring_up("reach")
        self.rig.camera()
        self.rig.expect(State.RUNNING, 60.0)
        self.rig.wait_for(CommandKind.POLICY)

    def loads(self, what):
        """Seconds that each worker of this kind took to load, by the node's log."""
        return [float(s) for s in re.findall(rf"{what}, pid \d+, loaded in ([\d.]+) s", self.log)]

    @property
    def log(self):
        return self.rig.node.log

    def wait_for_spare(self, count):
        """Until so many have stood by."""
        wait_until(lambda: len(self.loads("stands by")) >= count, 60.0, lambda: self.log)

    def kill(self, phase=0.0):
        """SIGKILL to the worker, that share of a period after a command. Returns the numbers of the
        last command before and of the first one after."""
        begin = len(self.rig.commands)
        self.rig.wait_for(CommandKind.POLICY, begin)
        epoch = self.rig.commands.last.epoch
        time.sleep(phase * T)
        self.rig.worker(signal.SIGKILL)
        after = self.first(lambda m: m.kind == CommandKind.POLICY and m.epoch > epoch, begin)
        before = max(
            i for i, m in enumerate(self.rig.commands.messages[:after]) if m.epoch == epoch
            and m.kind == CommandKind.POLICY
        )  # fmt: skip
        return before, after

    def first(self, fits, begin):
        """Number of the first command from ``begin`` on that fits; waits for it."""

        def found():
            messages = self.rig.commands.messages
            return next((i for i in range(begin, len(messages)) if fits(messages[i])), None)

        wait_until(lambda: found() is not None, 60.0, "a command of another epoch")
        return found()

    def seconds(self, before, after):
        """From one command to another, by their stamps."""
        stamps = [stamp_of(self.rig.commands.messages[i].header.stamp) for i in (before, after)]
        return (stamps[1] - stamps[0]) / 1e9


@pytest.mark.timing
@EITHER
def test_a_killed_worker_costs_its_load_time_and_a_period(start_policy, policy):
    worker = Worker(start_policy, **policy)
    rig = worker.rig
    before, after = worker.kill()
    held = rig.expect(lambda s: s.state == State.HOLD and "killed by SIGKILL" in s.reason)
    ready, running = rig.expect(State.WAITING, 60.0), rig.runs_again(1)
    rig.node.wait_for_log("worker is back")
    (load_s,) = worker.loads("worker is back")
    gap_s = worker.seconds(before, after)
    stamps = [stamp_of(status.header.stamp) for status in (held, ready, running)]
    hold_s, first_s = ((b - a) / 1e9 for a, b in pairwise(stamps))
    rest = sum(stamp_of(m.header.stamp) > stamps[1] for m in rig.commands.messages[before:after])
    print(
        f"last command to next {1e3 * gap_s:.0f} ms, of which {1e3 * load_s:.0f} ms loading and"
        f" {1e3 * (hold_s - load_s):.0f} ms before it; RUNNING {1e3 * first_s:.0f} ms and {rest}"
        " commands after the new worker was ready"
    )
    beside = 1e3 * (hold_s + first_s - load_s)
    judge("from the loss to RUNNING, beside loading", beside, quiet=1e3 * (T + MARGIN),
          loaded=1e3 * BUSY * T, unit="ms")  # fmt: skip
    judge("periods without an action after loading", rest, quiet=1, loaded=BUSY, unit="")
    rig.check_commands()


@pytest.mark.timing
@EITHER
def test_a_spare_worker_takes_over_within_three_periods(start_policy, policy):
    times = 3
    worker = Worker(start_policy, warm_spare=True, **policy)
    rig = worker.rig
    found = rig.ros.inbox(DiagnosticArray, "/diagnostics")
    serving = [rig.status.last.worker_pid]
    periods, seconds, taken, ticks, after = [], [], [], [], 0
    for number in range(1, times + 1):
        worker.wait_for_spare(number)
        if number > 1:
            ticks.append(rig.largest_tick_gap_s(after))
        spare = int(re.findall(r"stands by, pid (\d+)", worker.log)[-1])
        wait_until(lambda s=spare: says(found, "spare_worker", f"pid {s}"), 9.0, "/diagnostics")
        before, after = worker.kill((number - 1) / times)
        waiting = rig.expect(State.WAITING)
        assert waiting.reason.endswith("; the spare worker took over")
        running = rig.expect(State.RUNNING)
        assert (running.worker_pid, running.worker_restarts) == (spare, number)
        messages = rig.commands.messages
        assert {m.kind for m in messages[before + 1 : after]} <= {
            CommandKind.STOP,
            CommandKind.HELD,
        }
        assert messages[after].epoch == messages[before].epoch + 1
        periods.append(messages[after].sequence - messages[before].sequence)
        seconds.append(worker.seconds(before, after))
        taken.append(stamp_of(messages[after].header.stamp) - stamp_of(waiting.header.stamp))
        serving.append(spare)
    load_s = worker.loads("stands by")
    print(
        f"last command to next: periods {periods}, ms {[round(1e3 * s) for s in seconds]}; of which"
        f" after the switch ms {[round(ns / 1e6) for ns in taken]};"
        f" spares loaded in {load_s} s; largest tick gap while one loaded"
        f" {[round(1e3 * s) for s in ticks]} ms"
    )
    # What a policy that is late anyway missed before the loss is none of it.
    never = float("inf")
    judge("periods from the last command to the next", max(periods), quiet=2, loaded=never, unit="")
    judge("from the switch to the next command", max(taken) / 1e9, quiet=2 * T, loaded=1.0)
    judge("largest tick gap while a spare loaded", max(ticks), quiet=2.5 * T, loaded=1.0)
    assert sorted(taken)[len(taken) // 2] / 1e9 < min(load_s), "quicker than loading, in one run"
    held = [s.reason for s in rig.status.messages if s.state == State.HOLD]
    assert not any("the worker" in reason for reason in held), "a loss is no HOLD"
    worker.wait_for_spare(times + 1)
    wait_until(lambda: not any(alive(pid) for pid in serving[:-1]), 5.0, "the end of the lost")
    # The fourth loss in ten minutes is a fault, with or without a spare worker.
    rig.worker(signal.SIGKILL)
    assert "3 replacements" in rig.expect(State.FAULT).reason
    rig.check_commands()


def says(found, key, value):
    """Whether the policy's newest diagnostics say so."""
    for array in reversed(found.messages):
        for status in array.status:
            for pair in status.values:
                if pair.key == key:
                    return pair.value == value
    return False
