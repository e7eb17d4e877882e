"""What a spectator of a whole graph needs: which topics come and go, and how to hear each."""

from __future__ import annotations

import importlib
from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

_LIVE = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
_KEPT = QoSProfile(
    depth=10,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)


class Topics:
    """The topics of the graph, by one look after the other."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._known: dict[str, str] = {}

    def changes(self) -> tuple[dict[str, str], list[str]]:
        """Topics with their types that came since the last look, and those that went; a topic
        whose type has changed did both."""
        found = self._node.get_topic_names_and_types()
        there = {name: kinds[0] for name, kinds in found if kinds}
        gone = [name for name, kind in self._known.items() if there.get(name) != kind]
        new = {name: kind for name, kind in there.items() if self._known.get(name) != kind}
        self._known = there
        return new, gone

    def profile(self, topic: str) -> QoSProfile:
        """What every publisher of the topic can serve, so that nobody waits for us; what is said
        once and kept is asked for."""
        offered = [one.qos_profile for one in self._node.get_publishers_info_by_topic(topic)]
        kept = DurabilityPolicy.TRANSIENT_LOCAL
        return _KEPT if offered and all(one.durability == kept for one in offered) else _LIVE


def class_of(kind: str) -> Any:
    """The class of "sensor_msgs/msg/Image"; None where its package is not installed."""
    package, _, name = kind.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), name)
    except (ImportError, AttributeError):
        return None
