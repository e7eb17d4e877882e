"""How long a worker may be silent before it is killed: killing must gain more than waiting."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from vla_ros.ros.nodes.policy.runtime import hang_timeout_s
from vla_ros.runtime.safety import Limits


@pytest.mark.parametrize(("age_s", "rate_hz"), [(0.5, 20.0), (0.2, 50.0)])
def test_one_slow_answer_is_waited_for(age_s: float, rate_hz: float) -> None:
    """A GPU shared for a moment, a page that is read from the disk: 0.7 s, and no new worker."""
    limits = Limits(max_age_s=age_s, control_rate_hz=rate_hz)
    assert hang_timeout_s(limits, 0.05, load_s=3.0) == pytest.approx(2.0 + limits.period_s)


@pytest.mark.parametrize(("load_s", "patience_s"), [(1.0, 2.0), (60.0, 15.0), (600.0, 30.0)])
def test_a_worker_that_loads_long_is_given_long(load_s: float, patience_s: float) -> None:
    assert hang_timeout_s(Limits(), 0.05, load_s) == pytest.approx(patience_s + 0.05)


def test_actions_count_where_they_are_slower_than_commands() -> None:
    limits = Limits(max_age_s=2.0, control_rate_hz=100.0, action_rate_hz=1.0)
    assert hang_timeout_s(limits, 0.05, 1.0) == pytest.approx(5.0 + 1.0)


def test_a_slow_policy_or_a_large_limit_counts_more() -> None:
    assert hang_timeout_s(Limits(), 2.0, 1.0) == pytest.approx(6.05)
    assert hang_timeout_s(Limits(max_age_s=9.0), 0.1, 1.0) == pytest.approx(9.05)
