"""Where the rate of a policy's actions comes from, and what is said about it."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from vla_ros.core.types import PolicyInfo
from vla_ros.ros.nodes.policy.parameters import TABLE
from vla_ros.ros.nodes.policy.rates import settle_rate, slower
from vla_ros.runtime.safety import Limits

DEFAULTS = {row.name: row.default for row in TABLE}
ROBOT = DEFAULTS | {"outputs": ["twist", "gripper"]}
UNKNOWN, KNOWN = PolicyInfo("vla"), PolicyInfo("vla", action_rate_hz=30.0)
TAKEN = "action_rate_hz: nothing says the rate of this policy's data; control_rate_hz 20 is taken"


@pytest.mark.parametrize(
    ("given", "info", "hz", "note", "doubt"),
    [
        (0.0, KNOWN, 30.0, "actions at 30 Hz, the rate of this policy's data; .* at 20 Hz", ""),
        (30.0, KNOWN, 30.0, "", ""),
        (50.0, KNOWN, 50.0, "", "action_rate_hz 50, not the checkpoint's 30"),
        (15.0, UNKNOWN, 15.0, "", ""),
        (0.0, PolicyInfo("vla", action_rate_hz=20.0), 20.0, "", ""),
        (0.0, PolicyInfo("zero"), 20.0, "", ""),
        (0.0, PolicyInfo("scripted"), 20.0, "", ""),
        (0.0, PolicyInfo("replay"), 20.0, "this file of actions says no rate; .* 20 is taken", ""),
        (0.0, PolicyInfo("replay", action_rate_hz=50.0), 50.0, "actions at 50 Hz, .*", ""),
    ],
)
@pytest.mark.parametrize("values", [DEFAULTS, ROBOT])
def test_the_parameter_then_the_data_then_the_control_rate(
    values: dict, given: float, info: PolicyInfo, hz: float, note: str, doubt: str
) -> None:
    limits = Limits(action_rate_hz=given)
    found = settle_rate(limits, info, values, sim_time=False)
    assert found.hz == found.of(limits).action_rate_hz == hz
    assert re.search(note, found.note) if note else not found.note
    assert found.doubt == doubt


@pytest.mark.parametrize(("values", "simulated"), [(DEFAULTS, False), (ROBOT, True)])
def test_where_no_robot_moves_the_control_rate_is_taken_and_said(
    values: dict, simulated: bool
) -> None:
    found = settle_rate(Limits(), UNKNOWN, values, simulated)
    assert (found.hz, found.note) == (20.0, TAKEN)


def test_a_robot_is_not_moved_at_a_guess() -> None:
    with pytest.raises(
        ValueError, match=r"nothing says the rate .* twist, gripper .* set"
    ) as error:
        settle_rate(Limits(), UNKNOWN, ROBOT, sim_time=False)
    assert "\n" not in str(error.value)


def test_a_rate_is_fixed_once_settled() -> None:
    """Another control rate makes no policy faster."""
    found = settle_rate(Limits(), UNKNOWN, DEFAULTS, sim_time=False)
    assert found.of(Limits(control_rate_hz=100.0)).actions_a_period == 0.2


def test_a_rate_that_the_age_limit_excludes_is_refused() -> None:
    found = settle_rate(Limits(), PolicyInfo("vla", action_rate_hz=3.0), DEFAULTS, False)
    with pytest.raises(ValueError, match=r"max_age_s is 0\.3, must be above the action period"):
        found.of(Limits(max_age_s=0.3))


@pytest.mark.parametrize(
    ("action_hz", "control_hz", "chunk", "said"),
    [(50.0, 20.0, 1, True), (50.0, 20.0, 8, False), (20.0, 20.0, 1, False), (20.0, 50.0, 1, False)],
)
def test_single_actions_that_cannot_keep_their_rate_are_warned_about(
    action_hz: float, control_hz: float, chunk: int, said: bool
) -> None:
    limits = Limits(action_rate_hz=action_hz, control_rate_hz=control_hz)
    line = slower(limits, PolicyInfo("vla", chunk_length=chunk))
    assert bool(line) == said and "\n" not in line
