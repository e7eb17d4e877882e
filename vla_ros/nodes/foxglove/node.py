"""The foxglove node: every topic of the graph for the Foxglove app, as foxglove_bridge does it,
where ROS came with pip.

A spectator: it subscribes to a topic only while a client looks at it, best effort where nothing is
kept for late joiners, and passes the bytes on without decoding them.
"""

from __future__ import annotations

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
from vla_ros.nodes.common.spectating import Topics, class_of
from vla_ros.nodes.foxglove.parameters import TABLE
from vla_ros.windows.foxglove_server import FoxgloveServer

ADDRESS = "Foxglove connects to "
_SAID_S = 5.0  # a policy that is started later must not be told what was typed long ago


class FoxgloveNode(Node):
    """See the module's text. ValueError: a bad parameter, or no port to serve on."""

    def __init__(self) -> None:
        super().__init__("foxglove")
        values = declare(self, TABLE)
        os.nice(max(0, values["niceness"] - os.nice(0)))  # whoever started it may be nice too
        self._kinds: dict[str, str] = {}  # of the topics that are offered
        self._topics = Topics(self)
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
        new, gone = self._topics.changes()
        for topic in gone:
            if self._kinds.pop(topic, None) is not None:
                self._forget(topic)
                self._server.withdraw(topic)
        for topic, kind in new.items():
            if class_of(kind) is not None and self._server.offer(topic, kind):
                self._kinds[topic] = kind
            else:
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
            class_of(kind), topic, self._passing(topic), self._topics.profile(topic), raw=True
        )

    def _passing(self, topic: str) -> Callable[[bytes], None]:
        return lambda raw: self._server.send(topic, bytes(raw))

    def _forget(self, topic: str) -> None:
        if topic in self._heard:
            self.destroy_subscription(self._heard.pop(topic))

    def close(self) -> None:
        """Let the clients go."""
        self._server.close()


def main(args: Sequence[str] | None = None) -> int:
    """Run the node: 0 after SIGINT or SIGTERM, 2 for a bad parameter or no port."""
    return spin.run(
        lambda _: FoxgloveNode(), FoxgloveNode.close, args, executor=SingleThreadedExecutor
    )


if __name__ == "__main__":
    sys.exit(main())
