"""The foxglove node: every topic of the graph for the Foxglove app, as foxglove_bridge does it,
where ROS came with pip.

A spectator: it subscribes to a topic only while a client looks at it, best effort where nothing is
kept for late joiners, and passes the bytes on without decoding them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rclpy.clock import Clock as RclpyClock
from rclpy.clock import ClockType
from rclpy.duration import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from std_msgs.msg import String

from vla_ros.errors import UserError
from vla_ros.nodes.common import spin
from vla_ros.nodes.common.parameters import declare
from vla_ros.nodes.foxglove.parameters import TABLE
from vla_ros.windows.foxglove_server import FoxgloveServer

ADDRESS = "Foxglove connects to "
_SAID_S = 5.0  # a policy that is started later must not be told what was typed long ago
_LIVE = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
_KEPT = QoSProfile(
    depth=10,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)


class FoxgloveNode(Node):
    """See the module's text. ValueError: a bad parameter, or no port to serve on."""

    def __init__(self) -> None:
        super().__init__("foxglove")
        values = declare(self, TABLE)
        os.nice(max(0, values["niceness"] - os.nice(0)))  # whoever started it may be nice too
        self._kinds: dict[str, str] = {}  # of the topics that are offered
        self._unknown: set[tuple[str, str]] = set()
        self._heard: dict[str, Any] = {}  # subscriptions, by topic
        self._bell = self.create_guard_condition(self._fulfil)
        self._instruction = self._speaker() if values["say"] else None
        said = self._instruction.topic_name if self._instruction is not None else ""
        try:
            self._server = FoxgloveServer(values["host"], values["port"], self._bell.trigger, said)
        except (OSError, RuntimeError, UserError) as error:
            raise ValueError(f"{values['host']}:{values['port']}: {error}") from None
        self.get_logger().info(f"{ADDRESS}ws://{values['host']}:{self._server.port}")
        steady = RclpyClock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(values["look_every_s"], self._look, clock=steady)

    def _speaker(self) -> Any:
        said = QoSProfile(
            depth=1,
            reliability=ReliabilityPolicy.RELIABLE,
            durability=DurabilityPolicy.TRANSIENT_LOCAL,
            lifespan=Duration(seconds=_SAID_S),
        )
        return self.create_publisher(String, "instruction", said)

    def _look(self) -> None:
        """Offer what is new, withdraw what is gone."""
        there = {name: kinds[0] for name, kinds in self.get_topic_names_and_types() if kinds}
        for topic in [name for name, kind in self._kinds.items() if there.get(name) != kind]:
            self._forget(topic)
            self._server.withdraw(topic)
            del self._kinds[topic]
        for topic, kind in there.items():
            if topic in self._kinds or (topic, kind) in self._unknown:
                continue
            if _class_of(kind) is not None and self._server.offer(topic, kind):
                self._kinds[topic] = kind
            else:
                self._unknown.add((topic, kind))
                self.get_logger().info(f"{topic} is not offered: {kind} is not known here")

    def _fulfil(self) -> None:
        while (wish := self._server.take()) is not None:
            if wish.text is not None and self._instruction is not None:
                self.get_logger().info(f"said by a client: {wish.text!r}")
                self._instruction.publish(String(data=wish.text))
            elif wish.text is None and wish.wanted:
                self._hear(wish.topic)
            elif wish.text is None:
                self._forget(wish.topic)

    def _hear(self, topic: str) -> None:
        kind = self._kinds.get(topic)
        if kind is None:
            return
        self._forget(topic)  # anew: a client that comes later wants what is kept for it too
        self._heard[topic] = self.create_subscription(
            _class_of(kind), topic, self._passing(topic), self._profile(topic), raw=True
        )

    def _passing(self, topic: str) -> Callable[[bytes], None]:
        return lambda raw: self._server.send(topic, bytes(raw))

    def _profile(self, topic: str) -> QoSProfile:
        """What every publisher of the topic can serve; what is said once needs to be kept."""
        offered = [one.qos_profile for one in self.get_publishers_info_by_topic(topic)]
        kept = DurabilityPolicy.TRANSIENT_LOCAL
        return _KEPT if offered and all(one.durability == kept for one in offered) else _LIVE

    def _forget(self, topic: str) -> None:
        if topic in self._heard:
            self.destroy_subscription(self._heard.pop(topic))

    def close(self) -> None:
        """Let the clients go."""
        self._server.close()


def _class_of(kind: str) -> Any:
    """The class of "sensor_msgs/msg/Image"; None where its package is not installed."""
    package, _, name = kind.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), name)
    except (ImportError, AttributeError):
        return None


def main(args: Sequence[str] | None = None) -> int:
    """Run the node: 0 after SIGINT or SIGTERM, 2 for a bad parameter or no port."""
    return spin.run(
        lambda _: FoxgloveNode(), FoxgloveNode.close, args, executor=SingleThreadedExecutor
    )


if __name__ == "__main__":
    sys.exit(main())
