"""The gate and actions of any width: seven numbers as ever, two arms as two times one, joints."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.gate import NARROW, POSES, actions, gate, gated
from vla_ros.core import rotation
from vla_ros.core.action_space import ActionKind, end_effectors, joints
from vla_ros.core.types import StaleAction
from vla_ros.runtime.safety import ActionRefused, Limits

GOLDEN = Path(__file__).parents[3] / "golden" / "gate7.npz"
ARMS = ("left_", "right_")
JOINTS = joints(ActionKind.JOINT_POSITION, ("a", "claw", "b", "c"), ("claw",))


def joint_limits(**other):
    given = {"low": (-1.0, -2.0, -3.0), "high": (1.0, 2.0, 3.0), "stale_action": StaleAction.HOLD}
    return Limits(space=JOINTS, **(given | other))


def test_seven_numbers_come_out_as_before_to_the_last_bit():
    golden = np.load(GOLDEN)
    out, clamped, far = gated(actions(1, 0.06), NARROW)
    assert out.tobytes() == golden["narrow"].tobytes()
    assert clamped == golden["clamped"].tolist()
    assert far == golden["far"].tolist()
    assert gated(actions(2, 0.06), Limits())[0].tobytes() == golden["wide"].tobytes()


def test_poses_come_out_as_before():
    golden = np.load(GOLDEN)
    out, clamped, _ = gated(actions(3, 0.5), POSES)
    assert clamped == golden["poses_clamped"].tolist()
    np.testing.assert_allclose(out, golden["poses"], rtol=0, atol=1e-12)  # sines are a library's


@pytest.mark.parametrize("kind", [ActionKind.END_EFFECTOR_DELTA, ActionKind.END_EFFECTOR_POSE])
def test_two_arms_are_held_to_their_limits_each_by_itself(kind):
    one = POSES if kind.absolute else NARROW
    two = Limits(
        space=end_effectors(kind, ARMS),
        stale_action=one.stale_action,
        low=one.low * 2,
        high=one.high * 2,
        jump=one.jump,
        jerk=one.jerk,
    )
    left, right = actions(4, 0.3), actions(5, 0.3)
    both, _, _ = gated(np.hstack([left, right]), two)
    alone = [gated(rows, one)[0] for rows in (left, right)]
    assert both.tobytes() == np.hstack(alone).tobytes()


@settings(max_examples=200)
@given(
    st.sampled_from([ActionKind.JOINT_POSITION, ActionKind.JOINT_DELTA]),
    st.sampled_from([5.0, 20.0, 33.0, 200.0]),
    st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=30),
)
def test_limits_per_second_hold_at_any_rate_whatever_the_policy_says(kind, rate_hz, wanted):
    velocity, acceleration = np.array([0.5, 1.5]), np.array([4.0, 30.0])
    limits = Limits(
        control_rate_hz=rate_hz,
        space=joints(kind, ("a", "b")),
        stale_action=StaleAction.HOLD if kind.absolute else StaleAction.ZERO,
        low=(-9.0,) * 2,
        high=(9.0,) * 2,
        velocity=tuple(velocity),
        acceleration=tuple(acceleration),
    )
    said = [np.zeros(2), np.zeros(2)]
    for action in wanted:
        said.append(gate(np.array(action), (said[-1], said[-2]), limits).action)
    speed = (np.diff(said, axis=0) if kind.absolute else np.array(said)) * rate_hz
    assert (np.abs(speed) <= velocity + 1e-6).all()
    assert (np.abs(np.diff(speed, axis=0)) * rate_hz <= acceleration + 1e-4).all()


def test_joints_are_bounded_each_in_its_own_range_and_the_gripper_in_its_opening():
    out = gate(np.array([5.0, 7.0, -5.0, 2.5]), (), joint_limits())
    assert out.action.tolist() == [1.0, 1.0, -2.0, 2.5]
    assert (out.clamped, out.far) == ("bounds", True)


def test_a_joint_may_go_so_far_in_a_period_and_no_angle_wraps():
    here = np.array([0.0, 0.0, 0.0, 3.0])
    out = gate(np.array([0.9, 1.0, 0.0, -3.0]), (here,), joint_limits(jump=0.1))
    assert out.action == pytest.approx([0.2, 1.0, 0.0, 2.4])  # a tenth of each range
    assert out.clamped == "jump"


def test_a_rotation_of_the_second_arm_is_held_by_its_angle():
    space = end_effectors(ActionKind.END_EFFECTOR_POSE, ARMS)
    high = ((1.0,) * 3 + (3.2,) * 3) * 2
    limits = Limits(
        space=space,
        stale_action=StaleAction.HOLD,
        low=tuple(-h for h in high),
        high=high,
        jump=0.02,
    )
    before, wish = np.zeros(14), np.zeros(14)
    before[10], wish[10] = 3.1, -3.1
    out = gate(wish, (before,), limits)
    assert out.clamped == "", "0.083 rad by the shorter way round"
    wish[10] = -2.9
    out = gate(wish, (before,), limits)
    assert np.linalg.norm(rotation.relative(before[10:13], out.action[10:13])) == pytest.approx(
        0.128
    )
    assert not out.action[3:6].any()


@pytest.mark.parametrize("shape", [(3,), (5,), (1, 4)])
def test_another_width_is_refused(shape):
    with pytest.raises(ActionRefused, match=r"not \(4,\)"):
        gate(np.zeros(shape), (), joint_limits())


def test_bounds_are_as_many_as_the_numbers_that_move():
    with pytest.raises(ValueError, match="bounds_high need 3 values each: a b c"):
        joint_limits(low=(-1.0,) * 4, high=(1.0,) * 4)


def test_a_rotation_is_within_half_of_the_widest_of_its_ranges_whatever_its_axis():
    limits = Limits(
        space=end_effectors(ActionKind.END_EFFECTOR_POSE),
        stale_action=StaleAction.HOLD,
        low=(-1.0,) * 3 + (-0.1, -0.5, -0.2),
        high=(1.0,) * 3 + (0.1, 0.5, 0.2),
    )
    out = gate(np.array([0.0, 0.0, 0.0, 0.9, 0.0, 0.0, 1.0]), (), limits)
    assert out.action[3:6] == pytest.approx([0.5, 0.0, 0.0])
