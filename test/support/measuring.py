"""A measurement that another process can import."""

from __future__ import annotations

import os
import signal

from vla_ros.core.console import Report
from vla_ros.core.errors import UserError


def whose(options: str, report: Report) -> int:
    """What a measurement may do, by its options."""
    report("asked", 1, 2)
    if options == "refuse":
        raise UserError("no such frames")
    if options == "fail":
        raise ValueError("a shape\nof two lines")
    if options == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()
