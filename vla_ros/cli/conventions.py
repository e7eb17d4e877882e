"""Flags about what a checkpoint's numbers are, where its files do not say it: of serve and eval."""

from __future__ import annotations

from typing import Any

from vla_ros.core.errors import UserError
from vla_ros.policies.base import Scale


def add_conventions(group: Any) -> None:
    """Units of actions, and which side of a gripper is open."""
    add = group.add_argument
    add("--action-units", default="", metavar="UNITS", help="of its actions: one for all that move,"
        " or one each, joined by commas (deg; deg,deg,0..100; 0.2rad; rad/s)")  # fmt: skip
    add("--action-scale", default="", metavar="SCALE", help="of an end effector: m and rad of one"
        " unit, two numbers or six joined by commas (0.05,0.5)")  # fmt: skip
    add("--gripper", default="", metavar="CLOSED..OPEN", help="what its actions have for a closed"
        " and an open gripper, such as 1..-1; --gripper=-1..1 where closed is below 0")  # fmt: skip


def words_of(text: str) -> tuple[str, ...]:
    """Words that are joined by commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def scale_of(text: str) -> Scale | None:
    """Metres and radians of one unit of x y z rx ry rz; None: as the checkpoint says. UserError."""
    if not text:
        return None
    try:
        numbers = [float(word) for word in words_of(text)]
    except ValueError:
        numbers = []
    if len(numbers) == 2:
        numbers = [*numbers[:1] * 3, *numbers[1:] * 3]
    if len(numbers) != 6:
        raise UserError(f"--action-scale {text}: write two numbers or six, such as 0.05,0.5")
    x, y, z, rx, ry, rz = numbers
    return x, y, z, rx, ry, rz
