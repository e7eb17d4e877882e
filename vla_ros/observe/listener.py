"""A node that follows a graph from outside, in a ROS context and a thread of its own.

Callbacks run in that thread; what they share with the caller is under :attr:`Listener.bell`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription

from vla_ros.nodes.common.arrivals import ArrivalClock
from vla_ros.nodes.common.listening import listen
from vla_ros.nodes.common.peer import Peer


class Listener(Peer):
    """Joins the graph of ``domain``; use it with `with`.

    A subclass makes its subscriptions with :meth:`listen` and then calls :meth:`start`.
    ``simulated``: the stamps of the graph are simulated time.
    """

    def __init__(self, name: str, domain: int, simulated: bool) -> None:
        super().__init__(name, domain)
        self._subscriptions: list[Subscription] = []
        self.clock = ArrivalClock(self.node, simulated)

    def listen(
        self,
        kind: Any,
        topic: str,
        callback: Callable[..., None],
        profile: QoSProfile,
        with_info: bool = False,
    ) -> None:
        """Subscribe, with a topic that :meth:`connected` counts."""
        found = listen(self.node, kind, topic, callback, profile, with_info=with_info)
        self._subscriptions.append(found)

    def hear(
        self, kind: Any, topic: str, callback: Callable[..., None], profile: QoSProfile
    ) -> None:
        """As :meth:`listen`; the callback is given the bytes as they are."""
        found = self.node.create_subscription(kind, topic, callback, profile, raw=True)
        self._subscriptions.append(found)

    def connected(self) -> bool:
        """Every topic that it follows has its publisher, so that nothing will be missed."""
        return not self.missing()

    def missing(self) -> str:
        """The topics without a publisher."""
        topics = self._subscriptions
        return ", ".join(t.topic_name for t in topics if t.get_publisher_count() == 0)


def deep(profile: QoSProfile, depth: int) -> QoSProfile:
    """The same profile with a longer queue, for a reader that must miss nothing."""
    return QoSProfile(
        history=profile.history,
        depth=depth,
        reliability=profile.reliability,
        durability=profile.durability,
    )
