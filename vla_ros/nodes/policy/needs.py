"""What a frame has to have: as the parameters ask for it, and as the policy does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vla_ros.core import PolicyInfo


@dataclass(frozen=True, slots=True)
class Needs:
    """The streams that a frame is joined from, beside the main image.

    ``joint_names`` pick and order the joints; empty: as the messages have them, ``size`` values
    (0: any number).
    """

    wrist: bool
    joints: bool
    joint_names: tuple[str, ...]
    size: int
    ground_truth: bool


def needs_of(values: Mapping[str, Any], info: PolicyInfo) -> Needs:
    """Raises ValueError, in one line, where the parameters cannot give what the policy needs."""
    names = tuple(name for name in values["joint_names"] if name)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"joint_names has {', '.join(map(repr, twice))} more than once")
    if info.proprio and names and len(names) != info.proprio:
        raise ValueError(
            f"this checkpoint needs {info.proprio} values of robot state, joint_names has"
            f" {len(names)}"
        )
    return Needs(
        wrist=values["use_wrist_image"] or info.cameras == 2,
        joints=values["use_joint_states"] or bool(names) or info.proprio > 0,
        joint_names=names,
        size=info.proprio,
        ground_truth=info.name == "scripted",
    )
