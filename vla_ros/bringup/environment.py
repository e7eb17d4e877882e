"""The environment variables that every process of a graph needs.

What the user has set is never changed. Call :func:`prepare` before rclpy is initialised: the
middleware reads these variables once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vla_ros.resources import config_path, share

#: Where Fast DDS is told its profile: version 3 (Kilted on), which complains of the other's name,
#: and version 2 (Jazzy, Humble), which ignores it.
PROFILES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
LOCALHOST = "LOCALHOST"  # the range of discovery that is this machine
_KILTED_RCLPY = 8  # Jazzy has 7, Kilted 9

#: In front of the code of `python -c`: what PYTHONSAFEPATH does, which Python 3.10 ignores.
SAFE_PATH = "" if sys.version_info >= (3, 11) else "import sys; sys.path.remove('')\n"


def defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that ``environment`` lacks."""
    wanted = {
        # Discovery by multicast on every network is slow, and other machines could send commands.
        "ROS_AUTOMATIC_DISCOVERY_RANGE": LOCALHOST,
        profile_name(environment): profile(environment) or str(shipped_profile(environment)),
        "PYTHONUNBUFFERED": "1",
        # A checkout in the working directory must not shadow the installed package (3.11+).
        "PYTHONSAFEPATH": "1",
    }
    if "ROS_DISTRO" not in environment:  # ROS wheels: nobody sourced a setup file
        wanted["AMENT_PREFIX_PATH"] = sys.prefix
    if environment.get("ROS_DISTRO") == "humble":  # where discovery has no range to choose
        wanted.pop("ROS_AUTOMATIC_DISCOVERY_RANGE")
        wanted["ROS_LOCALHOST_ONLY"] = "1"
    missing = {name: value for name, value in wanted.items() if not environment.get(name)}
    if "ROS_LOCALHOST_ONLY" in environment:  # the older way to say it
        missing.pop("ROS_AUTOMATIC_DISCOVERY_RANGE", None)
    return missing


def shipped_profile(environment: Mapping[str, str]) -> Path:
    """Ours that fits how far the graph reaches: bound to the loopback, or to every address.

    Humble binds by itself (``ROS_LOCALHOST_ONLY``).
    """
    older = {"1": LOCALHOST, "0": "SUBNET"}.get(environment.get("ROS_LOCALHOST_ONLY", ""), "")
    reach = older or environment.get("ROS_AUTOMATIC_DISCOVERY_RANGE") or LOCALHOST
    peers = any(environment.get(name) for name in ("ROS_STATIC_PEERS", "ROS_DISCOVERY_SERVER"))
    here = reach == LOCALHOST and not peers and environment.get("ROS_DISTRO") != "humble"
    return config_path("fastdds_localhost.xml" if here else "fastdds_shm.xml")


def profile_name(environment: Mapping[str, str]) -> str:
    """The variable that the Fast DDS of this ROS 2 reads, sourced or from wheels."""
    distro = environment.get("ROS_DISTRO", "")
    if not distro:
        try:
            major = int(version("ros-rclpy").split(".")[0])
        except (PackageNotFoundError, ValueError):
            return PROFILES[0]
        return PROFILES[major < _KILTED_RCLPY]
    return PROFILES[distro in ("humble", "jazzy")]


def profile(environment: Mapping[str, str]) -> str:
    """The Fast DDS profile that the user has set, under either name; "" if none."""
    return next(filter(None, map(environment.get, PROFILES)), "")


def prepare() -> None:
    """Put the missing variables into this process's own environment."""
    os.environ.update(defaults(os.environ))


def python_path(environment: Mapping[str, str]) -> str:
    """PYTHONPATH under which a child finds this very copy of the package."""
    parts = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    root = str(share())
    in_checkout = os.path.isfile(os.path.join(root, "setup.py"))
    return os.pathsep.join(dict.fromkeys([root, *parts] if in_checkout else parts))
