"""Streams that a frame of the policy node is joined from, by parameters and checkpoint."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vla_ros.core.action_space import ActionSpace
from vla_ros.core.pixels import sizes_of
from vla_ros.core.types import PolicyInfo
from vla_ros.ros.nodes.policy.cameras import Camera
from vla_ros.ros.nodes.policy.outputs import gripper_ends
from vla_ros.ros.nodes.policy.parameters import roles_of
from vla_ros.runtime.control.observation import LAYOUTS, ProprioLayout


@dataclass(frozen=True, slots=True)
class FrameStreams:
    """The streams that a frame is joined from.

    ``joint_names`` pick and order the joints; empty: as the messages have them, ``size`` values
    (0: any number). ``more``: further cameras by role. ``end_effector``: the tf2 frame of it, ""
    for the topic, None for neither. ``middle`` of each joint in the policy's data; empty: unknown.
    """

    main: Camera
    wrist: Camera | None
    more: Mapping[str, Camera]
    joints: bool
    joint_names: tuple[str, ...]
    size: int
    layout: ProprioLayout
    end_effector: str | None
    ground_truth: bool
    middle: tuple[float, ...] = ()


def needs_of(values: Mapping[str, Any], info: PolicyInfo) -> FrameStreams:
    """Streams that the policy needs. Raises ValueError, in one line, where the parameters cannot
    give them."""
    names = tuple(name for name in values["joint_names"] if name)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"joint_names has {', '.join(map(repr, twice))} more than once")
    for parameter in ("continuous_joints", "joints_on_change"):
        _check_joints(values, parameter)
    layout = LAYOUTS[values["state_layout"]]
    _check_state(values, info, layout, len(names))
    wrist = values["use_wrist_image"] or info.cameras == 2
    return FrameStreams(
        main=_camera(values, "main", "a policy looks through a main camera"),
        wrist=_camera(values, "wrist", _why_wrist(info)) if wrist else None,
        more={r: _camera(values, r, f"this checkpoint looks at {r}") for r in info.camera_roles},
        joints=values["use_joint_states"] or bool(names) or info.state_dim > 0,
        joint_names=names,
        size=info.state_dim,
        layout=layout,
        end_effector=values["end_effector_frame"] if layout.pose else None,
        ground_truth=info.name == "scripted",
        middle=() if layout.pose else info.state_middle,
    )


def _check_joints(values: Mapping[str, Any], parameter: str) -> None:
    """Raises ValueError for a joint that the parameters name nowhere else."""
    known = {name for name in (*values["joint_names"], *values["action_names"]) if name}
    if known and (strange := sorted({name for name in values[parameter] if name} - known)):
        raise ValueError(
            f"{parameter} has {', '.join(map(repr, strange))}, which neither joint_names nor"
            " action_names have"
        )


def _check_state(
    values: Mapping[str, Any], info: PolicyInfo, layout: ProprioLayout, joints: int
) -> None:
    name = values["state_layout"]
    if layout.joints and joints not in layout.joints:
        wanted = " or ".join(map(str, layout.joints))
        raise ValueError(
            f"state_layout {name} needs {wanted} joint_names, the gripper's fingers, not {joints}"
        )
    gives = layout.size or joints
    if info.state_dim and gives and gives != info.state_dim:
        raise ValueError(
            f"this checkpoint needs {info.state_dim} values of robot state, state_layout {name}"
            f" with {joints} joint_names gives {gives}"
        )
    if layout.pose and values["end_effector_frame"] and not tf2_is_there():
        raise ValueError(
            "end_effector_frame needs tf2_ros, which cannot be imported here: install it, or"
            " publish the pose on end_effector_pose"
        )


def _camera(values: Mapping[str, Any], role: str, why: str) -> Camera:
    topic, transport = values[f"cameras.{role}.topic"], values[f"cameras.{role}.transport"]
    if not topic:
        raise ValueError(f"cameras.{role}.topic is empty, and {why}: name the camera's topic")
    try:
        sizes = sizes_of(values["image_resize"], ("main", "wrist", *roles_of(values)))
    except ValueError as error:
        raise ValueError(f"image_resize has {error}") from None
    size = sizes.get(role) or sizes.get("") or (0, 0)
    if size[0] * size[1] > values["max_image_pixels"]:
        raise ValueError(f"image_resize of {role} is more than max_image_pixels")
    return Camera(
        topic,
        values["image_transport"] if transport == "auto" else transport,
        values[f"cameras.{role}.reliability"],
        size,
    )


def _why_wrist(info: PolicyInfo) -> str:
    if info.cameras == 2:
        return "this checkpoint looks through two cameras, main and wrist"
    return "use_wrist_image is on"


def gripper_ends_of(
    values: Mapping[str, Any], space: ActionSpace
) -> dict[str, tuple[float, float]]:
    """Positions of each gripper's joint when it is closed and open."""
    if not space.kind.joints:
        return {}
    names = (space.names[index] for index in space.grippers)
    ends = zip(names, gripper_ends(values, space), strict=True)
    return {name: (closed, opened) for name, (closed, opened) in ends if closed != opened}


def tf2_is_there() -> bool:
    """True where tf2_ros can be imported."""
    return importlib.util.find_spec("tf2_ros") is not None
