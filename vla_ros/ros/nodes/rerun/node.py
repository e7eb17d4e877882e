"""The rerun node: what runs, in the Rerun viewer, on the time line of the ROS clock.

A spectator: it listens best effort where nothing is kept for late joiners, and decodes no more
pictures than it shows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rclpy.clock import Clock as RclpyClock
from rclpy.clock import ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from vla_ros.errors import UserError
from vla_ros.nodes.common import spin
from vla_ros.nodes.common.convert import BadMessage
from vla_ros.nodes.common.listening import message_of
from vla_ros.nodes.common.parameters import declare
from vla_ros.nodes.common.spectating import Topics, class_of
from vla_ros.nodes.rerun.parameters import TABLE
from vla_ros.timing import SECOND, SystemClock
from vla_ros.windows.reading import Reader, stamp_of
from vla_ros.windows.rerun_log import RerunLog

PICTURES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
_ARRANGE_S = 20.0  # after that an arrangement is the user's, and only the default is renewed


class RerunNode(Node):
    """See the module's text. ValueError: a bad parameter, or no viewer."""

    def __init__(self) -> None:
        super().__init__("rerun")
        values = declare(self, TABLE)
        os.nice(max(0, values["niceness"] - os.nice(0)))  # whoever started it may be nice too
        self._time = SystemClock()
        self._reader = Reader()
        self._topics = Topics(self)
        self._subscribed: dict[str, Any] = {}
        self._picture_ns = round(SECOND / values["picture_rate_hz"])
        self._shown_ns: dict[str, int] = {}  # the last picture of each camera, by the steady clock
        self._arranged: set[str] = set()
        self._log = self._open(values)
        self._began_ns = self._time.steady_ns()
        steady = RclpyClock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(values["look_every_s"], self._look, clock=steady)
        self.create_timer(2.0, self._arrange, clock=steady)

    def _open(self, values: dict[str, Any]) -> RerunLog:
        try:
            log = RerunLog("live", values["jpeg"])
            if values["out"]:
                log.to_file(Path(values["out"]))
            else:
                log.to_viewer(values["connect"])
        except (UserError, OSError, RuntimeError, ValueError) as error:
            raise ValueError(f"no viewer: {' '.join(str(error).split())}") from None
        return log

    def _look(self) -> None:
        new, gone = self._topics.changes()
        for topic in gone:
            if topic in self._subscribed:
                self.destroy_subscription(self._subscribed.pop(topic))
        for topic, kind in new.items():
            message_type = class_of(kind) if kind in self._reader.kinds else None
            if message_type is None:
                continue
            hear = self._hearing(topic, kind, message_type)
            profile = self._topics.profile(topic)
            self._subscribed[topic] = self.create_subscription(
                message_type, topic, hear, profile, raw=True
            )
            self.get_logger().info(f"shows {topic}")

    def _hearing(self, topic: str, kind: str, message_type: Any) -> Callable[[bytes], None]:
        def hear(raw: bytes) -> None:
            now = self._time.steady_ns()
            if kind in PICTURES:
                if now - self._shown_ns.get(topic, -SECOND * 1000) < self._picture_ns:
                    return
                self._shown_ns[topic] = now
            try:
                message = message_of(raw, message_type)
            except BadMessage as error:
                self._complain(topic, error)
                return
            self._show(topic, kind, message)

        return hear

    def _show(self, topic: str, kind: str, message: Any) -> None:
        stamp = stamp_of(message) or int(self.get_clock().now().nanoseconds)
        try:
            for fact in self._reader.read(topic, kind, message):
                self._log.show(fact, stamp, self._time.now_ns())
        except ValueError as error:  # BadMessage among them
            self._complain(topic, error)

    def _complain(self, topic: str, error: ValueError) -> None:
        self.get_logger().warning(f"{topic}: {error}", throttle_duration_sec=5.0)

    def _arrange(self) -> None:
        """Anew where something is there that was not."""
        paths = set(self._log.paths)
        if paths != self._arranged:
            self._arranged = paths
            young = self._time.steady_ns() - self._began_ns < _ARRANGE_S * SECOND
            self._log.send_layout(active=young)

    def close(self) -> None:
        """Everything is written when it returns."""
        self._log.send_layout(active=False)
        self._log.close()


def main(args: Sequence[str] | None = None) -> int:
    """Run the node: 0 after SIGINT or SIGTERM, 2 for a bad parameter or no viewer."""
    return spin.run(lambda _: RerunNode(), RerunNode.close, args, executor=SingleThreadedExecutor)


if __name__ == "__main__":
    sys.exit(main())
