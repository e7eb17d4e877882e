"""The rules of the gate and the states, each by itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from golden.gate import gate
from vla_ros.core.clock import SECOND
from vla_ros.core.types import GRIPPER, PolicyState
from vla_ros.runtime import safety
from vla_ros.runtime.safety import ActionRefused, Gripper, Limits, Safety

LIMITS = Limits()
ACTIONS = arrays(np.float64, 7, elements=st.floats(allow_nan=True, allow_infinity=True, width=64))
STATES = st.sampled_from(list(PolicyState))


@given(ACTIONS, st.lists(ACTIONS.filter(lambda a: bool(np.isfinite(a).all())), max_size=2))
def test_gate_lets_only_bounded_finite_actions_through(action, before):
    before = [np.clip(b, -0.05, 0.05) for b in before]
    if not np.isfinite(action).all():
        with pytest.raises(ActionRefused, match="not finite"):
            gate(action, tuple(before), LIMITS)
        return
    gated = gate(action, tuple(before), LIMITS)
    assert np.isfinite(gated.action).all()
    assert (gated.action[:6] >= np.array(LIMITS.low) - 1e-12).all()
    assert (gated.action[:6] <= np.array(LIMITS.high) + 1e-12).all()
    assert 0.0 <= gated.action[GRIPPER] <= 1.0


def test_gate_leaves_what_is_within_the_limits_alone():
    action = np.array([0.05, -0.05, 0.0, 0.5, 0.0, -0.5, 1.0])
    gated = gate(action, (np.zeros(7),), LIMITS)
    assert gated.clamped == ""
    assert (gated.action == action).all()


def test_a_little_beyond_the_bounds_is_clamped_and_does_not_count():
    for x, far in ((0.051, False), (-0.0549, False), (0.0551, True), (-0.2, True)):
        gated = gate(np.array([x] + [0.0] * 6), (), LIMITS)
        assert (gated.clamped, gated.far) == ("bounds", far)
        assert abs(gated.action[0]) == 0.05
    assert gate(np.array([0.051] + [0.0] * 6), (), Limits(clamp_tolerance=0.0)).far


@pytest.mark.parametrize("shape", [(), (6,), (8,), (1, 7)])
def test_gate_refuses_other_shapes(shape):
    with pytest.raises(ActionRefused) as refused:
        gate(np.zeros(shape), (), LIMITS)
    assert str(refused.value) == f"action has shape {shape}, not (7,)"


def test_jump_and_jerk_are_confined():
    limits = Limits(jump=0.1, jerk=2.0)
    gated = gate(np.array([0.05] + [0.0] * 6), (np.zeros(7),), limits)
    assert (gated.clamped, gated.far) == ("jump", True)
    assert gated.action[0] == pytest.approx(0.01)  # a tenth of the range of 0.1 m
    limits = Limits(jump=1.0, jerk=0.1)
    rising = (np.array([0.02] + [0.0] * 6), np.array([0.01] + [0.0] * 6))
    gated = gate(np.array([-0.05] + [0.0] * 6), rising, limits)
    assert (gated.clamped, gated.far) == ("jerk", True)
    assert gated.action[0] == pytest.approx(0.03 - 0.01)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_gripper_changes_sides_no_faster_than_its_dwell(wanted):
    gripper, switches = Gripper(), []
    for tick, value in enumerate(wanted):
        after = safety.steady_gripper(gripper, value, tick * LIMITS.period_ns, LIMITS)
        if (after.value > 0.5) != (gripper.value > 0.5):
            switches.append(tick * LIMITS.period_s)
        held = after.value == gripper.value or abs(after.value - gripper.value) >= 0.05
        held |= after.value in (0.0, 1.0)
        assert held if gripper.known else after.value == value
        gripper = after
    assert all(b - a >= LIMITS.gripper_dwell_s - 1e-9 for a, b in zip(switches, switches[1:]))  # noqa: B905


_NEAR_AN_END = st.one_of(st.floats(0, 0.1), st.floats(0.9, 1), st.floats(0, 1))


@given(st.lists(_NEAR_AN_END, max_size=40), st.sampled_from([0.0, 1.0]), st.integers(0, 8))
def test_a_gripper_that_is_to_be_closed_or_open_gets_there_and_stays(wanted, end, ripples):
    """Wherever it was: within its dwell it is at the end itself, and what moves by less than the
    hysteresis does not take it away from there again."""
    gripper, periods = Gripper(), round(LIMITS.gripper_dwell_s / LIMITS.period_s) + 1
    ripple = abs(end - 0.049)
    told = [*wanted, *[end] * periods, *[ripple, end] * ripples]
    values = []
    for tick, value in enumerate(told):
        gripper = safety.steady_gripper(gripper, value, tick * LIMITS.period_ns, LIMITS)
        values.append(gripper.value)
    there = len(wanted) + periods - 1
    assert set(values[there:]) == {end}


def test_age_is_the_larger_of_stamp_and_receipt_but_only_the_stamp_in_simulation():
    second = SECOND
    assert safety.age_ns(10 * second, 9 * second, 5 * second, 3 * second, sim=False) == 2 * second
    assert safety.age_ns(10 * second, 7 * second, 5 * second, 3 * second, sim=False) == 3 * second
    assert safety.age_ns(10 * second, 10 * second, 99 * second, 0, sim=True) == 0


def test_least_max_age_is_the_formula():
    # Tc 50 ms + (7 - 1) * 50 ms + L 40 ms + T 50 ms
    assert safety.least_max_age_s(LIMITS, 7, 0.04) == pytest.approx(0.05 + 0.3 + 0.04 + 0.05)
    assert safety.least_max_age_s(LIMITS, 1, 0.0, kept=8) == pytest.approx(0.05 + 0.05 + 7 * 0.05)
    smooth = Limits(smoothing_hz=5.0, control_rate_hz=100.0, action_rate_hz=20.0)
    assert safety.least_max_age_s(smooth, 1, 0.04) == pytest.approx(
        0.05 + 0.04 + 0.05 + 0.0637, abs=1e-4
    )


def test_waiting_runs_after_one_valid_action_and_hold_after_three():
    waiting = Safety(PolicyState.WAITING, "", 0)
    running = safety.after_valid(waiting, LIMITS, False, 1)
    assert running.state is PolicyState.RUNNING
    held = safety.hold(running, "old", 2)
    assert held.state is PolicyState.HOLD
    for _ in range(2):
        held = safety.after_valid(held, LIMITS, False, 3)
        assert held.state is PolicyState.HOLD
    assert safety.after_valid(held, LIMITS, False, 3).state is PolicyState.RUNNING


def test_as_many_far_actions_as_end_running_begin_the_count_of_clean_ones_anew():
    """Fewer do not: what may run must be able to begin."""
    held = Safety(PolicyState.HOLD, "", 0, fresh=2)
    for number in range(1, LIMITS.clamp_limit + 1):
        held = safety.after_valid(held, LIMITS, True, 1, "jump")
        assert held.fresh == (2 if number < LIMITS.clamp_limit else 0)
    assert held.said.endswith("it stays: 3 clean actions are needed, the last exceeded its jump")
    held = Safety(PolicyState.HOLD, "", 0, fresh=2)
    assert safety.after_invalid(held, LIMITS, "NaN", 1).fresh == 0


def test_five_clamped_actions_in_a_row_hold():
    state = Safety(PolicyState.RUNNING, "", 0)
    for _ in range(LIMITS.clamp_limit - 1):
        state = safety.after_valid(state, LIMITS, True, 1)
        assert state.state is PolicyState.RUNNING
    assert safety.after_valid(state, LIMITS, True, 1).state is PolicyState.HOLD


def test_three_invalid_in_a_row_fault_and_a_valid_one_between_does_not():
    state = Safety(PolicyState.RUNNING, "", 0)
    for _ in range(2):
        state = safety.after_invalid(state, LIMITS, "NaN", 1)
    state = safety.after_valid(state, LIMITS, False, 2)
    for _ in range(2):
        state = safety.after_invalid(state, LIMITS, "NaN", 3)
    assert state.state is PolicyState.RUNNING
    state = safety.after_invalid(state, LIMITS, "NaN", 4)
    assert state.state is PolicyState.FAULT
    assert "NaN" in state.reason


@given(st.lists(st.sampled_from(["valid", "invalid", "old"]), max_size=40))
def test_three_invalid_in_a_row_fault_whatever_held_the_robot_meanwhile(events):
    """An observation that grows old because nothing valid comes is the same trouble, not its
    end."""
    state, row = Safety(PolicyState.RUNNING, "", 0), 0
    for now, event in enumerate(events):
        before = state.state
        match event:
            case "valid":
                state, row = safety.after_valid(state, LIMITS, False, now), 0
            case "invalid":
                state, row = safety.after_invalid(state, LIMITS, "NaN", now), row + 1
            case "old":
                state = safety.hold(state, "observation is old", now)
        if row >= LIMITS.invalid_limit:
            assert state.state is PolicyState.FAULT
            return
        assert state.state is not PolicyState.FAULT
        if before is PolicyState.HOLD and state.state is PolicyState.RUNNING:
            recent = [one for one in events[: now + 1] if one != "old"][-LIMITS.fresh_needed :]
            assert recent == ["valid"] * LIMITS.fresh_needed


def test_a_policy_that_alternates_never_moves_the_robot_out_of_hold():
    """Two invalid ones and two valid ones, for ever: no fault, and no motion either."""
    state = Safety(PolicyState.HOLD, "", 0)
    for _ in range(100):
        for _ in range(2):
            state = safety.after_invalid(state, LIMITS, "NaN", 1)
        for _ in range(2):
            state = safety.after_valid(state, LIMITS, False, 2)
        assert state.state is PolicyState.HOLD


@given(
    st.lists(
        st.sampled_from(["valid", "clamped", "invalid", "hold", "wait", "run"]),
        max_size=40,
    )
)
def test_fault_is_latched_whatever_comes(events):
    state = Safety(PolicyState.FAULT, "out of memory", 0)
    for now, event in enumerate(events):
        match event:
            case "valid":
                state = safety.after_valid(state, LIMITS, False, now)
            case "clamped":
                state = safety.after_valid(state, LIMITS, True, now)
            case "invalid":
                state = safety.after_invalid(state, LIMITS, "NaN", now)
            case "hold":
                state = safety.hold(state, "old", now)
            case "wait":
                state = safety.enter(state, PolicyState.WAITING, "", now)
            case "run":
                state = safety.enter(state, PolicyState.RUNNING, "", now)
        assert state.state is PolicyState.FAULT
    assert safety.recover(state, 99).state is PolicyState.WAITING


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"control_rate_hz": 0.5}, "control_rate_hz"),
        ({"control_rate_hz": 600.0}, "control_rate_hz"),
        ({"camera_rate_hz": 0.0}, "camera_rate_hz"),
        ({"max_age_s": 0.04}, "max_age_s"),
    ],
)
def test_limits_that_cannot_be_are_refused_by_name(change, says):
    with pytest.raises(ValueError, match=says):
        Limits(**change)


def test_what_is_clamped_is_at_its_bound_to_the_last_bit():
    high = (0.0003, 0.1, 0.3, 0.7, 0.0002, 0.0002)
    limits = Limits(low=tuple(-x for x in high), high=high)
    gated = gate(np.array([1.0, 1.0, -1.0, 1.0, -1.0, -1.0, 1.0]), (), limits)
    assert gated.action[:6].tolist() == [0.0003, 0.1, -0.3, 0.7, -0.0002, -0.0002]
