"""What a process of ROS needs around it, looked at before ROS is: ROS's own lines name no cause."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

from vla_ros.core.errors import UserError

MOST_DOMAIN = 232  # of DDS: a higher one's ports are above 65535
_FLAGS, _UP = 0x8913, 0x1  # SIOCGIFFLAGS of <linux/sockios.h>, IFF_UP of <net/if.h>
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
    reach = environment.get("ROS_AUTOMATIC_DISCOVERY_RANGE") or "LOCALHOST"
    if reach == "LOCALHOST" and _loopback_is_down():
        return (
            "the loopback interface lo is down, and the nodes of this machine find each other"
            " over it: sudo ip link set lo up"
        )
    return ""


def _loopback_is_down() -> bool:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_one:
            found = fcntl.ioctl(any_one, _FLAGS, struct.pack("256s", b"lo"))
    except OSError:  # nothing is known
        return False
    return not int.from_bytes(found[16:18], sys.byteorder) & _UP


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
