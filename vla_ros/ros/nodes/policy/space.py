"""Action space of the parameters, and its comparison with the policy's."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from vla_ros.core.action_space import KINDS, ActionSpace, end_effectors, joints
from vla_ros.core.types import PolicyInfo

CHOICES = tuple(KINDS)


def space_of(values: Mapping[str, Any]) -> ActionSpace:
    """Action space of the parameters. Raises ValueError, in one line, for one that cannot be."""
    word = values["action_space"]
    kind = KINDS[word]
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


def check_space(space: ActionSpace, info: PolicyInfo, override: bool = False) -> str:
    """Contradiction to the policy's own action space that ``override`` permits, as one line, or "".

    Raises ValueError, with both side by side, where the policy's actions have another width; and,
    without ``override``, another kind, another order of names, or a gripper that is none here: run
    so, they would be other motions.
    """
    offered = info.action_space
    if offered.width != space.width:
        raise ValueError(
            f"the policy's actions have {offered.width} numbers, those of the parameters"
            f" {space.width} (action_space, action_names, arms):\n{_beside(offered, space)}"
        )
    wrong = _contradiction(space, offered)
    if wrong and not override:
        raise ValueError(
            f"{wrong} (action_space_override: true where that is meant):\n{_beside(offered, space)}"
        )
    return wrong


def _contradiction(space: ActionSpace, offered: ActionSpace) -> str:
    if offered.kind is not space.kind:
        mine, its = space.kind.name.lower(), offered.kind.name.lower()
        return f"action_space is {mine}, the policy's actions are {its}"
    if offered.names == tuple(f"joint_{i}" for i in range(offered.width)):
        return ""  # the checkpoint names nothing
    moved = [n for i, n in enumerate(space.names) if n in offered.names and offered.names[i] != n]
    if moved:
        return f"action_names has {', '.join(map(repr, moved))} at another place than the policy"
    lacking = [offered.names[index] for index in offered.grippers if index not in space.grippers]
    if lacking:
        return f"gripper_names lacks {', '.join(map(repr, lacking))}, a gripper of the policy's"
    return ""


def _given(names: list[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name)


def _beside(offered: ActionSpace, space: ActionSpace) -> str:
    """Table of two columns, a row a number: the policy's, the parameters'."""
    left, right = _column(offered, "policy"), _column(space, "parameters")
    width = max(map(len, left))
    rows = zip_longest(left, right, fillvalue="-")
    return "\n".join(f"  {one:<{width}}  {other}" for one, other in rows)


def _column(space: ActionSpace, head: str) -> list[str]:
    numbers = (f"{n} [{u}]" for n, u in zip(space.names, space.units, strict=True))
    return [f"{head}: {space.kind.name.lower()}", *numbers]
