"""Which outputs the parameters ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_ros.action_space import ActionKind, ActionSpace
from vla_ros.nodes.policy.outputs.base import Output, Robot
from vla_ros.nodes.policy.outputs.gripper import GripperOutput, control_msgs
from vla_ros.nodes.policy.outputs.positions import GripperPositions, PositionsOutput
from vla_ros.nodes.policy.outputs.trajectory import TrajectoryOutput
from vla_ros.nodes.policy.outputs.twist import TwistOutput

OUTPUTS = ("twist", "trajectory", "positions", "gripper")
_OF_JOINTS = ("trajectory", "positions")


def wanted(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the outputs, each once."""
    older = ("twist",) if values["publish_twist"] else ()
    return tuple(dict.fromkeys((*filter(None, values["outputs"]), *older)))


def check_outputs(values: Mapping[str, Any], space: ActionSpace) -> None:
    """Raise ValueError, in one line, for outputs that cannot say what the action says."""
    names, kind = wanted(values), space.kind
    if strange := [name for name in names if name not in OUTPUTS]:
        raise ValueError(f"outputs has '{strange[0]}', must be of {', '.join(OUTPUTS)}")
    if "twist" in names and kind is not ActionKind.END_EFFECTOR_DELTA:
        raise ValueError(
            "the twist output needs action_space end_effector_delta: nothing else is a velocity"
            " of the end effector"
        )
    for name in _OF_JOINTS:
        if name in names and not kind.joints:
            raise ValueError(
                f"the {name} output needs action_space joint_position or joint_delta: of an end"
                " effector only somebody knows the joints who knows the arm, as MoveIt Servo does"
            )
    if "gripper" in names:
        control_msgs()
        if not space.grippers:
            raise ValueError("the gripper output needs gripper_names: the action has no gripper")
    gripper_ends(values, space)


def gripper_ends(values: Mapping[str, Any], space: ActionSpace) -> tuple[tuple[float, float], ...]:
    """(closed, open) a gripper, in its controller's unit. Raises ValueError."""
    ends, count = list(values["gripper_range"]), len(space.grippers)
    if len(ends) == 2:
        ends *= count
    if len(ends) != 2 * count:
        raise ValueError(
            f"gripper_range needs 2 values, or 2 a gripper, {2 * count}: closed and open"
        )
    return tuple((float(ends[2 * i]), float(ends[2 * i + 1])) for i in range(count))


def make_outputs(values: Mapping[str, Any], robot: Robot) -> list[Output]:
    """What :func:`check_outputs` has passed; the grippers' own topic comes with the joints'."""
    names = wanted(values)
    made: list[Output] = []
    if "twist" in names:
        made.append(TwistOutput(robot))
    if "trajectory" in names:
        made.append(TrajectoryOutput(robot))
    if "positions" in names:
        made.append(PositionsOutput(robot))
    if robot.limits.space.grippers and set(names) & set(_OF_JOINTS):
        made.append(GripperPositions(robot))
    if "gripper" in names:
        made.append(GripperOutput(robot, values["gripper_action"], values["gripper_max_effort"]))
    return made
