"""The action space that the parameters configure, and whether it is the policy's."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from vla_ros.core.action_space import ActionKind, ActionSpace, end_effectors, joints
from vla_ros.core.types import PolicyInfo

KINDS = {kind.name.lower(): kind for kind in ActionKind}
#: Words of earlier releases, and what they mean.
OLDER = {"delta": ActionKind.END_EFFECTOR_DELTA, "absolute": ActionKind.END_EFFECTOR_POSE}
CHOICES = (*KINDS, *OLDER)


def space_of(values: Mapping[str, Any]) -> ActionSpace:
    """The configured action space. Raises ValueError, in one line, for what cannot be."""
    word = values["action_space"]
    kind = OLDER[word] if word in OLDER else KINDS[word]
    if not kind.joints:
        return end_effectors(kind, tuple(values["arms"]))
    names = _given(values["action_names"]) or _given(values["joint_names"])
    if not names:
        raise ValueError(
            f"action_space {word} needs action_names: the joints in the policy's order"
        )
    grippers = _given(values["gripper_names"])
    if strange := sorted(set(grippers) - set(names)):
        raise ValueError(
            f"gripper_names has {', '.join(map(repr, strange))}, which the action has not:"
            f" {', '.join(map(repr, names))}"
        )
    return joints(kind, names, grippers)


def check_space(space: ActionSpace, info: PolicyInfo) -> str:
    """What contradicts the policy's own action space and is done all the same, as one line, or "".

    Raises ValueError, with both side by side, where the policy's actions have another width.
    """
    offered = info.action_space
    if offered.width != space.width:
        raise ValueError(
            f"the policy's actions have {offered.width} numbers, those of the parameters"
            f" {space.width} (action_space, action_names, arms):\n{_beside(offered, space)}"
        )
    if offered.kind is space.kind:
        return ""
    mine, its = space.kind.name.lower(), offered.kind.name.lower()
    return f"action_space is {mine}, the policy says that its actions are {its}"


def _given(names: list[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name)


def _beside(offered: ActionSpace, space: ActionSpace) -> str:
    """A row a number: the policy's, the parameters'."""
    left, right = _said(offered, "policy"), _said(space, "parameters")
    width = max(map(len, left))
    rows = zip_longest(left, right, fillvalue="-")
    return "\n".join(f"  {one:<{width}}  {other}" for one, other in rows)


def _said(space: ActionSpace, head: str) -> list[str]:
    numbers = (f"{n} [{u}]" for n, u in zip(space.names, space.units, strict=True))
    return [f"{head}: {space.kind.name.lower()}", *numbers]
