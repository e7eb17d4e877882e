"""What is recorded: topics, their types, and the QoS to hear everything with."""

from __future__ import annotations

import importlib
from typing import Any

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

from vla_ros.recording.topics import STATUS, TOPICS
from vla_ros.recording.typestore import typestore

__all__ = ["STATUS", "TOPICS", "message_type_of", "parse_topics", "profile_of"]


def profile_of(latched: bool, reliability: ReliabilityPolicy) -> QoSProfile:
    """Deep enough for a burst; latched topics with what was said before."""
    durability = DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST, depth=100, reliability=reliability, durability=durability
    )


def parse_topics(text: str) -> list[tuple[str, str]]:
    """(name, type) of 'NAME TYPE, NAME TYPE'; ValueError for anything else."""
    found = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        words = item.split()
        if len(words) != 2:
            raise ValueError(f"extra_topics: '{item}' is not 'NAME TYPE'")
        name, kind = words
        if kind not in typestore().fielddefs:
            raise ValueError(f"extra_topics: the type '{kind}' cannot be written into a bag")
        found.append((name, kind))
    return found


def message_type_of(kind: str) -> Any:
    """The class of "sensor_msgs/msg/Image"; ValueError when its package is not installed."""
    package, _, name = kind.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), name)
    except (ImportError, AttributeError):
        raise ValueError(f"no message type {kind} is installed") from None
