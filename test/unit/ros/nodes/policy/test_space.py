"""What the parameters say of an action's numbers, and what they refuse."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from vla_ros.core.action_space import (
    END_EFFECTOR_DELTA,
    ActionKind,
    ActionSpace,
    end_effectors,
    joints,
)
from vla_ros.core.pixels import BadMessage
from vla_ros.core.types import PolicyInfo, StaleAction
from vla_ros.msg import ActionCommand
from vla_ros.policies.base import PolicyRefused
from vla_ros.ros.nodes.bridge.convert import check_space as check_command_space
from vla_ros.ros.nodes.policy.parameters import TABLE
from vla_ros.ros.nodes.policy.settings import limits_of, spec_of, validate
from vla_ros.ros.nodes.policy.space import check_space, space_of
from vla_ros.sim.so101.world import ACTIONS as SO101

DEFAULTS = {row.name: row.default for row in TABLE}
ARM = {
    "action_space": "joint_position",
    "joint_names": ["a", "b", "claw"],
    "gripper_names": ["claw"],
    "bounds_low": [-1.0, -2.0],
    "bounds_high": [1.0, 2.0],
    "stale_action": "hold",
}


def given(**values: object) -> dict[str, object]:
    return DEFAULTS | values


def test_the_default_is_seven_numbers_of_one_end_effector() -> None:
    assert space_of(DEFAULTS) == END_EFFECTOR_DELTA
    assert limits_of(DEFAULTS).space == END_EFFECTOR_DELTA


def test_poses_are_of_one_end_effector_too() -> None:
    kind = ActionKind.END_EFFECTOR_POSE
    assert space_of(given(action_space="end_effector_pose")) == end_effectors(kind)


def test_joints_are_those_of_the_state_unless_others_are_named() -> None:
    space = joints(ActionKind.JOINT_POSITION, ("a", "b", "claw"), ("claw",))
    limits = limits_of(given(**ARM))
    assert (limits.space, limits.stale_action) == (space, StaleAction.HOLD)
    assert spec_of(given(**ARM)).action_space == space
    other = space_of(given(**ARM | {"action_names": ["claw", "b"]}))
    assert other.names == ("claw", "b")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"action_space": "joint_delta"}, "needs action_names"),
        (ARM | {"gripper_names": ["thumb"]}, "gripper_names has 'thumb', which the action has not"),
        (ARM | {"bounds_low": [-1.0] * 3}, "need 2 values each: a b"),
        ({"arms": ["left_", "right_"]}, "need 12 values each: left_x left_y"),
        (ARM | {"joint_names": list("abcdef"), "gripper_names": [""],
                "bounds_low": DEFAULTS["bounds_low"], "bounds_high": DEFAULTS["bounds_high"]},
         "the defaults are an end effector's"),
        (ARM | {"stale_action": "zero"}, "'zero' needs action_space"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_one_line(values: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        limits_of(given(**values))
    assert "\n" not in str(caught.value)


def info(space: ActionSpace) -> PolicyInfo:
    return PolicyInfo("vla", action_space=space)


def test_another_width_than_the_policy_s_is_refused_with_both_side_by_side() -> None:
    pair = end_effectors(ActionKind.END_EFFECTOR_DELTA, ("left_", "right_"))
    with pytest.raises(ValueError, match="have 14 numbers, those of the parameters 7") as caught:
        check_space(END_EFFECTOR_DELTA, info(pair))
    rows = [line.split() for line in str(caught.value).splitlines()[1:]]
    assert rows[0] == ["policy:", "end_effector_delta", "parameters:", "end_effector_delta"]
    assert rows[7] == ["left_gripper", "[1]", "gripper", "[1]"]
    assert rows[8] == ["right_x", "[m]", "-"]
    assert len(rows) == 15


def test_another_meaning_of_as_many_numbers_is_told() -> None:
    poses = end_effectors(ActionKind.END_EFFECTOR_POSE)
    assert check_space(poses, info(poses)) == ""
    says = "action_space is end_effector_pose, the policy's actions are end_effector_delta"
    with pytest.raises(ValueError, match=says) as caught:
        check_space(poses, info(END_EFFECTOR_DELTA))
    assert "action_space_override: true" in str(caught.value)
    assert check_space(poses, info(END_EFFECTOR_DELTA), override=True) == says


SIX = tuple(f"ur_{number}" for number in range(6))
UR = joints(ActionKind.JOINT_POSITION, (*SIX, "hand"), ("hand",))


@pytest.mark.parametrize(
    ("names", "grippers", "says"),
    [
        ((*SIX[::-1], "hand"), ("hand",), "action_names has 'ur_5', 'ur_4', 'ur_3', 'ur_2'"),
        (("hand", *SIX), ("hand",), "action_names has 'hand', 'ur_0'"),
        ((*SIX, "hand"), (), "gripper_names lacks 'hand'"),
        ((*SIX, "finger"), (), "gripper_names lacks 'hand'"),
        ((*SIX, "finger"), ("finger",), ""),
        ((*SIX, "hand"), ("hand",), ""),
    ],
)
def test_joints_of_another_order_and_a_gripper_that_is_none_are_refused(names, grippers, says):
    mine = joints(ActionKind.JOINT_POSITION, names, grippers)
    if not says:
        assert check_space(mine, info(UR)) == ""
        return
    with pytest.raises(ValueError, match=says) as caught:
        check_space(mine, info(UR))
    assert "policy: joint_position" in str(caught.value), "both lists"
    assert check_space(mine, info(UR), override=True).startswith(says)


def test_a_checkpoint_that_names_nothing_is_believed_in_nothing():
    unnamed = joints(ActionKind.JOINT_POSITION, tuple(f"joint_{number}" for number in range(7)))
    assert check_space(UR, info(unnamed)) == ""


def test_a_simulated_arm_refuses_another_arm_s_commands() -> None:
    message = ActionCommand(action_space=ActionCommand.SPACE_JOINT_POSITION, action=[0.0] * 6)
    with pytest.raises(BadMessage, match="takes end-effector deltas only"):
        check_command_space(message, END_EFFECTOR_DELTA)
    with pytest.raises(
        BadMessage, match=r"its joints are shoulder_lift .*, the simulated arm's sh"
    ):
        message.names = [*SO101.names[1::-1], *SO101.names[2:]]
        check_command_space(message, SO101)
    message.names = list(SO101.names)
    check_command_space(message, SO101)
    with pytest.raises(BadMessage, match="takes joint positions only"):
        check_command_space(ActionCommand(names=list(SO101.names)), SO101)


def test_a_server_is_told_how_late_an_answer_may_be() -> None:
    remote = {"policy": "remote", "checkpoint": "ws://gpu:8000", "max_age_s": 0.4}
    own = validate(given(**remote), sim_time=False)[0].options
    assert own == {"max_age_s": "0.35"}  # the tick after it publishes it
    asked = given(**remote, policy_options=["max_age_s=0.2", "rate_hz=5"])
    assert validate(asked, False)[0].options == {"max_age_s": "0.2", "rate_hz": "5"}
    assert validate(given(**remote), sim_time=True)[0].options == {}


def test_the_adaptation_is_that_of_the_parameters() -> None:
    assert not spec_of(DEFAULTS).adaptation
    values = {"cameras.main.rotate": 180, "action_factor": [1.0] * 6 + [-1.0]}
    assert spec_of(DEFAULTS | values).adaptation.parameters() == values
    with pytest.raises(PolicyRefused, match=r"cameras\.main\.rotate is 45, must be one of 0, 90"):
        spec_of(DEFAULTS | {"cameras.main.rotate": 45})
