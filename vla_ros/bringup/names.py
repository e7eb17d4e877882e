"""Names in ROS that a user gives: namespaces and remappings, refused before anything starts."""

from __future__ import annotations

import re

from vla_ros.errors import UserError

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"  # one part of a name in ROS
_NAMESPACE = re.compile(rf"/?{_NAME}(/{_NAME})*/?")
_TOPIC = re.compile(rf"(~/|/)?({_NAME}/)*{_NAME}")
_RULE = "parts of letters, digits and _, none first a digit, joined by /"


def check_namespace(text: str, said: str = "--namespace") -> None:
    """UserError for what is no namespace of ROS; the empty one is none. ``said``: where."""
    if text and not _NAMESPACE.fullmatch(text):
        raise UserError(f"{said} {text}: {_RULE}, such as arm_left or lab/arm_left")


def remapping(item: str) -> tuple[str, str, str]:
    """The node ("": every one), old and new name of "[NODE:]FROM=TO". UserError."""
    where, equals, new = item.replace(":=", "=").partition("=")
    node, _, old = where.rpartition(":")
    if not (equals and old and new):
        raise UserError(f"-r {item}: write FROM=TO, such as image=/camera/image_raw")
    for name in (old, new):
        if not _TOPIC.fullmatch(name):
            raise UserError(f"-r {item}: {name!r} is no topic: {_RULE}")
    return node, old, new
