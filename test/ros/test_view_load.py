"""Who looks at the page costs the robot nothing: the control tick without and with browsers."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("viser", reason="viser is not installed: make view")

from support.timing import judge
from support.wait import wait_until
from support.watchers import watchers
from vla_ros.core.types import PolicyState as State

ROUNDS = 3
WINDOW_S = 3.0
BROWSERS = 10
STUCK = 5  # of them: they never read what they are sent
MORE_MS = 5.0  # a tenth of the period
BUSY_MS = 25.0  # where browsers and robot share the processors with others


def tick_error_ms(rig):
    """Median and 95th percentile over the next window."""
    reports = len(rig.latency)
    wait_until(lambda: len(rig.latency) >= reports + 4, 10.0, "latency reports")
    error = rig.latency.last.tick_error_s
    return 1e3 * error.p50, 1e3 * error.p95


def wait_for_lines(program, text, count):
    wait_until(lambda: program.log.count(text) >= count, 20, f"{text!r}, {count} times")


@pytest.mark.long
@pytest.mark.timing
def test_ten_browsers_half_of_them_stuck_do_not_move_the_control_tick(start_policy, spawn_node):
    """Judged by the median of a few windows of each kind, in turn: what other programs of the
    machine do, they do to both."""
    view = spawn_node("view")
    rig = start_policy(latency_window_s=WINDOW_S)
    rig.bring_up("reach")
    rig.camera(width=320, height=240, rate=20)
    rig.expect(State.RUNNING)
    address = wait_until(lambda: re.search(r"http://\S+", view.log), 30, "an address")[0]
    alone, watched = [], []
    for number in range(ROUNDS):
        alone.append(tick_error_ms(rig))
        with watchers(address, BROWSERS, STUCK) as read:
            wait_for_lines(view, "the page was opened", number + 1)
            watched.append(tick_error_ms(rig))
            drawn = list(read)
        print("tick error p50, p95 ms: alone {:.2f} {:.2f}".format(*alone[-1]),
              "watched {:.2f} {:.2f}".format(*watched[-1]), "bytes", drawn)  # fmt: skip
        assert min(drawn[: BROWSERS - STUCK]) > 10_000  # images and charts were sent to them
        assert not any(drawn[BROWSERS - STUCK :])
        wait_for_lines(view, "nobody looks", number + 1)
    p50, p95 = np.median(watched, axis=0) - np.median(alone, axis=0)
    judge("median tick error more than alone", p50, quiet=MORE_MS, loaded=BUSY_MS, unit="ms")
    judge("95th percentile more than alone", p95, quiet=MORE_MS, loaded=1e3, unit="ms")
    assert view.returncode is None
    rig.check_commands()
