"""The checks of ROS 2: where it comes from, what it can carry, and who else is listening."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

from vla_ros.bringup import security as keys
from vla_ros.bringup import shared_memory
from vla_ros.bringup.environment import PROFILES, profile, profile_name, shipped_profile
from vla_ros.cli.doctor.checks import Check, fail, ok, try_python, warn

ROS_PYTHONS = ((3, 10), (3, 13))  # first and last CPython with ROS 2 wheels


def ros() -> Check:
    """Where ROS 2 comes from."""
    if "ROS_DISTRO" in os.environ:
        return ok("ROS 2", f"{os.environ['ROS_DISTRO']}, sourced")
    try:
        return ok("ROS 2", f"wheels, rclpy {importlib.metadata.version('ros-rclpy')}")
    except importlib.metadata.PackageNotFoundError:
        pass
    here = sys.version_info[:2]
    if platform.machine() == "x86_64" and ROS_PYTHONS[0] <= here <= ROS_PYTHONS[1]:
        advice = "pip install '.[ros]', or source a ROS 2 install"
    else:
        advice = "no wheels for this Python and machine: source /opt/ros/<distro>/setup.bash"
    return fail("ROS 2", "neither wheels nor a sourced install", advice)


def rclpy() -> Check:
    """A node can be made."""
    code = (
        "import rclpy; rclpy.init(); n = rclpy.create_node('vla_ros_doctor');"
        "print(rclpy.get_rmw_implementation_identifier()); n.destroy_node(); rclpy.shutdown()"
    )
    start = time.monotonic()
    good, text = try_python(code, 30.0)
    if not good:
        return fail("rclpy", text, "see the line of ROS 2; in a venv: pip install '.[ros]'")
    return ok("rclpy", f"a node came up in {time.monotonic() - start:.1f} s, {text}")


def messages() -> Check:
    """The interfaces of this package are built and their type support loads."""
    code = (
        "from vla_ros.msg import ActionCommand; from vla_ros.srv import ResetEpisode;"
        "[t.__class__.__import_type_support__() for t in (ActionCommand, ResetEpisode)];"
        "print(ActionCommand.__module__)"
    )
    good, text = try_python(code, 30.0)
    if not good:
        advice = "install the package (pip install .), or in a checkout: make dev"
        return fail("messages", text, advice)
    return ok("messages", "vla_ros.msg and vla_ros.srv load")


def middleware() -> Check:
    """The Fast DDS profile that camera images need."""
    other = os.environ.get("RMW_IMPLEMENTATION", "rmw_fastrtps_cpp")
    if not other.startswith("rmw_fastrtps"):
        return warn(
            "DDS", other, "the shipped profile is for Fast DDS: give large images room there"
        )
    path = profile(os.environ)
    ours = shipped_profile(os.environ)
    name = profile_name(os.environ)
    if not path:
        advice = f"for your own camera node too: export {name}={ours}"
        return ok("DDS", f"vla-ros sets {ours.name}; {advice}")
    try:
        sizes = [
            int(e.text or 0) for e in ElementTree.parse(path).iter() if "segment_size" in e.tag
        ]
    except (OSError, ElementTree.ParseError, ValueError) as error:
        return fail("DDS", f"cannot read {path}: {error}", f"unset {' '.join(PROFILES)}")
    if max(sizes, default=0) < 8 << 20:
        advice = f"640x480 images will be lost; compare {ours}"
        return warn("DDS", f"{path} gives shared memory no segment of 8 MB or more", advice)
    return ok("DDS", f"{path}, shared memory of {max(sizes) >> 20} MB")


def discovery() -> Check:
    """Who can see the graph, and send it commands."""
    domain = os.environ.get("ROS_DOMAIN_ID", "0")
    reach = os.environ.get("ROS_AUTOMATIC_DISCOVERY_RANGE", "")
    if not domain.isdigit() or int(domain) > 232:
        return fail("discovery", f"ROS_DOMAIN_ID={domain}", "set it to a number from 0 to 232")
    if reach not in ("", "LOCALHOST", "OFF"):
        advice = "anybody there can send commands: use LOCALHOST, or SROS2 (ROS_SECURITY_ENABLE)"
        return warn("discovery", f"domain {domain}, {reach}: other machines too", advice)
    return ok("discovery", f"domain {domain}, {reach or 'LOCALHOST (set by vla-ros)'}")


def security() -> Check:
    """Whether SROS 2, where it is asked for, protects anything."""
    if os.environ.get(keys.ENABLE, "") != "true":
        return ok("security", "SROS 2 is off (docs/how-to/secure-the-graph.md)")
    if (strategy := os.environ.get(keys.STRATEGY, "")) != "Enforce":
        advice = f"a node without keys joins all the same: export {keys.STRATEGY}=Enforce"
        return fail("security", f"{keys.STRATEGY} is {strategy or 'not set'}", advice)
    store = os.environ.get(keys.KEYSTORE, "")
    enclaves = sorted(Path(store, "enclaves").rglob("permissions.p7s")) if store else []
    if not enclaves:
        advice = "make one: docs/how-to/secure-the-graph.md"
        return fail("security", f"{keys.KEYSTORE} {store or '(not set)'} holds no enclave", advice)
    if "ROS_DISTRO" not in os.environ:
        advice = "source a ROS 2 of its packages: /opt/ros/<distro>/setup.bash"
        return fail("security", "Fast DDS of the wheels is built without security", advice)
    return ok("security", f"enforced, {len(enclaves)} enclaves in {store}")


def leftovers(clean: bool) -> Check:
    """What killed processes left in /dev/shm."""
    found = shared_memory.find_leftovers()
    size = sum(item.size for item in found)
    text = f"{len(found)} left over by killed processes, {size / 1e6:.0f} MB"
    if clean and found:
        return ok("/dev/shm", f"{text}: removed, {shared_memory.remove(found) / 1e6:.0f} MB freed")
    try:
        free = shutil.disk_usage(shared_memory.SHM).free
    except OSError as error:
        return fail("/dev/shm", str(error), "in a container: --ipc=host or --shm-size=1g")
    if free < 256 << 20:
        advice = "vla-ros doctor --clean; in a container: --ipc=host or --shm-size=1g"
        return fail("/dev/shm", f"{free / 1e6:.0f} MB free; {text}", advice)
    if size > 64e6:
        return warn("/dev/shm", text, "vla-ros doctor --clean")
    return ok("/dev/shm", f"{free / 1e9:.1f} GB free, {len(found)} segments left over")
