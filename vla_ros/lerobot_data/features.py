"""Which feature of somebody else's data set is which camera of ours, and which is the action."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vla_ros.core import ACTION_DIM
from vla_ros.errors import UserError
from vla_ros.lerobot_data.read import Info
from vla_ros.lerobot_data.rows import ACTION
from vla_ros.sim.env import AGENTVIEW, WRIST

_HAND = ("wrist", "hand", "gripper")  # in the name of a camera that is there


def cameras_of(info: Info, given: Mapping[str, str], dataset: Path) -> dict[str, str]:
    """Our camera -> feature: those given; else the wrist's by its name and the first other.

    UserError: no image, or a feature that is none.
    """
    there = info.cameras
    if not there:
        raise UserError(f"{dataset} has no images: its features are {', '.join(info.features)}")
    wrists = [name for name in there if any(word in name.lower() for word in _HAND)]
    others = [name for name in there if name not in wrists]
    usual = {"image": (others or wrists)[0]}
    if others and wrists:
        usual["wrist_image"] = wrists[0]
    chosen = usual | {role: name for role, name in given.items() if role != "action"}
    for role, name in chosen.items():
        if name not in there:
            raise UserError(f"-r {role}={name}: {dataset} has the images {', '.join(there)}")
    cameras = {AGENTVIEW: chosen["image"]}
    if "wrist_image" in chosen:
        cameras[WRIST] = chosen["wrist_image"]
    return cameras


def action_of(info: Info, given: Mapping[str, str], dataset: Path) -> str:
    """The action's feature. UserError: it is not there, or not seven numbers."""
    name = given.get("action", ACTION)
    if name not in info.features:
        raise UserError(
            f"{dataset} has no {name}: choose one with -r action=FEATURE; it has"
            f" {', '.join(info.features)}"
        )
    found = info.features[name]
    if found.shape != (ACTION_DIM,):
        said = f" ({' '.join(found.names)})" if found.names else ""
        raise UserError(
            f"{dataset}: {name} is {'x'.join(map(str, found.shape))} numbers{said}; `vla-ros train`"
            " learns seven: an end effector's x y z rx ry rz and a gripper"
        )
    return name
