"""Text that leaves a node, made fit to be shown: its log, and the texts of its messages for people.

Whoever wrote it (a server, a checkpoint, another node), nothing in it is left that a terminal or a
reader would obey (:mod:`vla_ros.core.text`).
"""

from __future__ import annotations

import os
import sys
from typing import Any

from rclpy.logging import get_logger

from vla_ros.core.console import plain_errors
from vla_ros.core.text import log_text, printable

LONGEST = 1000  # characters of a message's text, an instruction's too
_Logger: Any = type(get_logger("vla_ros"))  # of each node
_log = _Logger.log


def plain_log() -> None:
    """Make all logs of this process so from now on: a node's, its children's, rclpy's own and
    Python's."""
    plain_errors()
    if _Logger.log is _log:
        # rclpy tells calls apart (throttled ones, say) by who made them; that is never this file.
        callers: list[str] = sys.modules[_Logger.__module__]._internal_callers
        callers.append(os.path.realpath(__file__))
        _Logger.log = _plain


def _plain(self: Any, message: Any, *args: Any, **words: Any) -> Any:
    return _log(self, log_text(message), *args, **words)


def make_printable(message: Any) -> None:
    """Replace the texts of a ROS message's own fields."""
    for name, kind in message.get_fields_and_field_types().items():
        if kind == "string":
            setattr(message, name, printable(getattr(message, name), LONGEST))
