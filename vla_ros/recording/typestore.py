"""Message types for reading and writing bags without ROS: ROS 2's own and those of vla_ros."""

from __future__ import annotations

from functools import lru_cache

from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from vla_ros.resources import share

PACKAGE = "vla_ros"


def ros_types() -> Typestore:
    """A fresh store of ROS 2's own message types, to register others with."""
    return get_typestore(Stores.ROS2_KILTED)


@lru_cache(maxsize=1)
def typestore() -> Typestore:
    """ROS 2's own message types and those of this version of vla_ros. Do not change it.

    FileNotFoundError: vla_ros is installed without its message definitions.
    """
    store = ros_types()
    folder = share() / "msg"
    files = sorted(folder.glob("*.msg"))
    if not files:
        raise FileNotFoundError(f"no message definitions in {folder}: reinstall vla_ros")
    types = {}
    for file in files:
        text = file.read_text(encoding="utf-8")
        types.update(get_types_from_msg(text, f"{PACKAGE}/msg/{file.stem}"))
    store.register(types)
    return store
