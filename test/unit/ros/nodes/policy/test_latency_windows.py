"""What the policy node measures of itself: percentiles are found where nobody waits for them."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from vla_ros.core.clock import MS
from vla_ros.ros.nodes.policy.topics import LatencyWindows

SAMPLES = 20_000  # as many as a window keeps


def spent(call) -> float:
    began = time.thread_time()
    call()
    return time.thread_time() - began


def test_what_the_loop_s_lock_is_held_for_is_a_fraction_of_the_percentiles() -> None:
    windows, now = LatencyWindows(600.0), SAMPLES * MS
    for i in range(SAMPLES):
        windows.tick(i % 100 * MS, i * MS)
    whole = min(spent(lambda: windows.message(now)) for _ in range(15))
    held = min(spent(windows.copy) for _ in range(15))
    assert held < whole / 3, f"{1e3 * held:.2f} ms under the lock, {1e3 * whole:.2f} ms in all"


def test_what_comes_later_changes_nothing_of_a_copy() -> None:
    windows = LatencyWindows(10.0)
    windows.tick(3 * MS, 1000 * MS)
    copy = windows.copy()
    windows.tick(9 * MS, 1010 * MS)
    message = copy.message(1010 * MS)
    assert message.tick_error_s.count == 1
    assert message.tick_error_s.max == pytest.approx(0.003)
    assert message.window_s == 10.0
    assert windows.message(1010 * MS).tick_error_s.count == 2
    assert windows.copy().message(11_005 * MS).tick_error_s.count == 1
