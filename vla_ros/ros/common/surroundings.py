"""What a process of ROS needs around it, looked at before ROS is: ROS's own lines name no cause."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from vla_ros.core.errors import UserError

MOST_DOMAIN = 232  # of DDS: a higher one's ports are above 65535
_MIDDLEWARES = Path("share/ament_index/resource_index/rmw_typesupport_cpp")


def missing(environment: Mapping[str, str]) -> str:
    """What is wrong in an environment, one line with what to do; "" where nothing is."""
    if not any(environment.get(name) for name in ("HOME", "ROS_HOME", "ROS_LOG_DIR")):
        return (
            "HOME is not set, and ROS writes its logs below it: set HOME, or ROS_LOG_DIR to a"
            " folder that may be written to"
        )
    domain = environment.get("ROS_DOMAIN_ID", "")
    if domain and not (domain.strip().isdecimal() and int(domain) <= MOST_DOMAIN):
        return f"ROS_DOMAIN_ID is {domain!r}: give a whole number from 0 to {MOST_DOMAIN}"
    wanted, there = environment.get("RMW_IMPLEMENTATION", ""), middlewares(environment)
    if wanted and there and wanted not in there:
        return (
            f"RMW_IMPLEMENTATION is {wanted}, which is not installed here ({', '.join(there)} is):"
            " unset it, or install that middleware"
        )
    return ""


def middlewares(environment: Mapping[str, str]) -> list[str]:
    """Names of the middlewares that are installed."""
    prefixes = environment.get("AMENT_PREFIX_PATH", "").split(os.pathsep)
    found: set[str] = set()
    for prefix in filter(None, (*prefixes, sys.prefix)):
        folder = Path(prefix) / _MIDDLEWARES
        if folder.is_dir():
            found |= {entry.name for entry in folder.iterdir()}
    return sorted(found)


def check_surroundings() -> None:
    """Raise UserError for what is missing around this process."""
    if line := missing(os.environ):
        raise UserError(line)
