"""The edges of the safety rules: what lies exactly on a limit, and what each transition keeps.

Each of these was found as a change of the code that no other test saw (`make mutants`).
"""

from dataclasses import replace

import numpy as np
import pytest

from golden.gate import gate
from vla_ros.core.action_space import ActionKind, end_effectors, joints
from vla_ros.core.clock import SECOND
from vla_ros.core.types import PolicyState, StaleAction
from vla_ros.runtime import safety
from vla_ros.runtime.safety import ActionRefused, Gripper, Limits, Safety

LIMITS = Limits()
HELD = Safety(PolicyState.HOLD, "no image", 5, fresh=2)
RUNNING = Safety(PolicyState.RUNNING, "running", 5)
DWELL_NS = round(LIMITS.gripper_dwell_s * SECOND)


def test_a_hold_that_goes_on_keeps_its_beginning_and_counts_anew():
    assert safety.hold(HELD, "too old", 9) == Safety(PolicyState.HOLD, "too old", 5)


def test_a_recovery_says_so_and_when():
    assert safety.recover(HELD, 9) == Safety(PolicyState.WAITING, "recovered", 9)


def test_the_first_action_runs_and_a_wild_one_is_counted_already():
    waiting = Safety(PolicyState.WAITING, "waits", 5)
    running = Safety(PolicyState.RUNNING, "running", 9)
    assert safety.after_valid(waiting, LIMITS, False, 9) == running
    assert safety.after_valid(waiting, LIMITS, True, 9) == replace(running, clamped=1)


def test_the_third_clean_action_ends_a_hold_with_all_counts_at_zero():
    after = safety.after_valid(replace(HELD, clamped=3, invalid=1), LIMITS, False, 9)
    assert after == Safety(PolicyState.RUNNING, "running", 9)


def test_a_clean_action_forgets_those_that_were_clamped():
    after = safety.after_valid(replace(RUNNING, clamped=4), LIMITS, False, 9)
    assert after == RUNNING
    after = safety.after_valid(replace(RUNNING, clamped=4), LIMITS, True, 9)
    assert after == Safety(PolicyState.HOLD, "5 actions in a row exceeded their limits", 9)


def test_numbers_that_are_none_are_refused_in_these_words():
    with pytest.raises(ActionRefused, match=r"^action has values that are not finite$"):
        safety.refuse_unless_numbers(np.full(7, np.nan), LIMITS.space)


def test_an_action_of_whole_or_short_numbers_is_held_in_long_ones():
    gated = gate(np.array([1, 0, 0, 0, 0, 0, 1]), (), LIMITS)
    assert gated.action.tolist() == [0.05, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert gate(np.zeros(7, np.float32), (), LIMITS).action.dtype == np.float64


def test_a_space_in_which_nothing_moves_has_nothing_to_confine():
    claws = joints(ActionKind.JOINT_DELTA, ("claw",), ("claw",))
    limits = Limits(space=claws, low=(), high=())
    gated = gate(np.array([1.5]), (), limits)
    assert (gated.action.tolist(), gated.clamped, gated.far) == ([1.0], "", False)


def test_far_once_is_far_whatever_the_next_limit_says():
    """Far beyond the bounds; what is left of it is a jump of nothing."""
    limits = Limits(jump=1.0, jerk=0.5)
    before = (np.array([0.05] + [0.0] * 6), np.array([-0.05] + [0.0] * 6))
    gated = gate(np.array([0.2] + [0.0] * 6), before, limits)
    assert gated.far


@pytest.mark.parametrize(("excess", "far"), [(0.005, False), (0.00502, True)])
def test_the_tolerance_is_of_the_range_and_not_of_rounding(excess, far):
    """Exactly 5 % of a range of 0.1 m does not count, though 0.05 + 0.005 is rounded."""
    assert gate(np.array([0.05 + excess] + [0.0] * 6), (), LIMITS).far is far


def test_bounds_that_are_not_about_zero_have_their_own_middle():
    space = end_effectors(ActionKind.END_EFFECTOR_POSE)
    limits = Limits(
        space=space, stale_action=StaleAction.HOLD,
        low=(0.2, 0.2, 0.2, 0.4, -0.1, -0.3), high=(0.6, 0.6, 0.6, 0.8, 0.1, 0.3),
    )  # fmt: skip
    inside = np.array([0.4, 0.4, 0.4, 0.6, 0.0, 0.0, 1.0])
    assert gate(inside, (), limits).clamped == ""
    turned = inside + np.array([0, 0, 0, 0.5, 0, 0, 0])  # 0.3 is half of the widest range
    np.testing.assert_allclose(gate(turned, (), limits).action[3:6], [0.9, 0, 0], atol=1e-9)


def test_a_gripper_that_moves_by_the_hysteresis_itself_moves():
    gripper = Gripper(0.75, 0, known=True)
    limits = Limits(gripper_hysteresis=0.125)
    assert safety.steady_gripper(gripper, 0.875, 1, limits).value == 0.875
    assert safety.steady_gripper(gripper, 0.874, 1, limits) is gripper


def test_a_half_open_gripper_is_on_the_closed_side():
    gripper = Gripper(0.5, 0, known=True)
    assert safety.steady_gripper(gripper, 0.0, 1, LIMITS).value == 0.0
    assert safety.steady_gripper(gripper, 1.0, 1, LIMITS) is gripper  # a change of sides: dwell


def test_the_dwell_begins_at_the_switch_and_ends_on_time():
    gripper = Gripper(0.0, 10, known=True)
    assert safety.steady_gripper(gripper, 1.0, 10, LIMITS) is gripper
    assert safety.steady_gripper(gripper, 1.0, 10 + DWELL_NS - 1, LIMITS) is gripper
    assert safety.steady_gripper(gripper, 1.0, 10 + DWELL_NS, LIMITS).value == 1.0
    assert safety.steady_gripper(gripper, 1.0, 9, LIMITS).value == 1.0  # time began anew


@pytest.mark.parametrize("rate", [1.0, 200.0])
def test_the_slowest_and_the_fastest_rate_are_taken(rate):
    assert Limits(control_rate_hz=rate, max_age_s=2.0).control_rate_hz == rate


def test_a_camera_may_be_slower_than_a_picture_a_second():
    assert Limits(camera_rate_hz=0.5).camera_rate_hz == 0.5


def test_bounds_of_which_one_is_missing_are_refused():
    with pytest.raises(ValueError, match="need 6 values each: x y z rx ry rz"):
        Limits(low=(-0.05,) * 5)
    with pytest.raises(ValueError, match=r"^every value of bounds_low must be below that of"):
        Limits(low=(0.05,) * 6)
    with pytest.raises(ValueError, match=r"^bounds of deltas must contain 0: it is what stopping"):
        Limits(low=(0.01,) * 6)


def test_deltas_of_one_direction_are_bounds_too():
    assert Limits(low=(0.0,) * 6).low == (0.0,) * 6
    assert Limits(high=(0.0,) * 6, low=(-0.1,) * 6).high == (0.0,) * 6


def test_what_cannot_be_a_stale_action_is_refused_in_these_words():
    with pytest.raises(ValueError) as refused:
        Limits(stale_action=StaleAction.HOLD)
    assert str(refused.value) == (
        "stale_action 'hold' needs action_space 'end_effector_pose' or 'joint_position':"
        " repeating a delta is motion; use 'zero' or 'silence'"
    )
    poses = end_effectors(ActionKind.END_EFFECTOR_POSE)
    with pytest.raises(ValueError) as refused:
        Limits(space=poses, stale_action=StaleAction.ZERO)
    assert str(refused.value) == (
        "stale_action 'zero' needs action_space 'end_effector_delta' or 'joint_delta':"
        " a zero pose is a place to go to; use 'hold' or 'silence'"
    )


def test_an_age_of_one_period_is_too_short_to_allow():
    with pytest.raises(ValueError, match=r"max_age_s is 0\.1, must be above"):
        Limits(control_rate_hz=10.0, max_age_s=0.1)


def test_entering_the_state_that_is_there_changes_its_reason_alone():
    assert safety.enter(HELD, PolicyState.HOLD, "too old", 9) == replace(HELD, reason="too old")


def test_a_hold_keeps_the_count_of_invalid_actions():
    assert safety.hold(replace(RUNNING, invalid=1), "no image", 9) == Safety(
        PolicyState.HOLD, "no image", 9, invalid=1
    )


def test_a_fault_began_when_it_was_entered():
    after = replace(RUNNING, invalid=100)
    after = safety.after_invalid(after, LIMITS, "not finite", 9)
    assert (after.state, after.since_ns) == (PolicyState.FAULT, 9)
