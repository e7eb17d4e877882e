"""The rerun node: a running graph in the Rerun viewer, on the time line of the ROS clock.

A spectator: it subscribes best effort to topics that keep nothing for late joiners, and decodes no
more images than it shows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from vla_ros.core.clock import SECOND, SystemClock
from vla_ros.core.errors import UserError
from vla_ros.core.pixels import BadMessage
from vla_ros.ros.common import spin
from vla_ros.ros.common.listening import message_of
from vla_ros.ros.common.parameters import Parameter as P
from vla_ros.ros.common.parameters import declare
from vla_ros.ros.common.peer import Topics, class_of
from vla_ros.ros.common.qos_overrides import QosOverrides
from vla_ros.viz.rerun import RerunLog
from vla_ros.viz.scene import Reader, stamp_of

# The rerun node's parameters.


TABLE = (
    P("connect", "", "Address of a viewer that runs, such as rerun+http://HOST:9876/proxy; empty:"
      " one is started", fixed=True),
    P("out", "", "A file.rrd to write instead of showing", fixed=True),
    P("jpeg", 80, "Quality of the images, 1 to 100; 0: every pixel as it was", 0, 100,
      fixed=True),
    P("image_rate_hz", 10.0, "Most images a second of each camera", 0.1, 1000.0, fixed=True),
    P("look_every_s", 1.0, "How often topics that came are looked for", 0.1, 60.0, fixed=True),
    P("niceness", 10, "Niceness of its process, behind all others", 0, 19, fixed=True),
)  # fmt: skip


IMAGES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
_ARRANGE_S = 20.0  # after that an arrangement is the user's, and only the default is renewed


class RerunNode(QosOverrides, Node):
    """The node that feeds the viewer. ValueError: a bad parameter, or no viewer."""

    def __init__(self) -> None:
        super().__init__("rerun")
        values = declare(self, TABLE)
        os.nice(max(0, values["niceness"] - os.nice(0)))  # whoever started it may be nice too
        self._time = SystemClock()
        self._reader = Reader()
        self._topics = Topics(self)
        self._subscribed: dict[str, Any] = {}
        self._image_ns = round(SECOND / values["image_rate_hz"])
        self._shown_ns: dict[str, int] = {}  # the last image of each camera, by the steady clock
        self._arranged: set[str] = set()
        self._log = self._open(values)
        self._began_ns = self._time.steady_ns()
        spin.every(self, values["look_every_s"], self._look)
        spin.every(self, 2.0, self._arrange)

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
            take = self._callback(topic, kind, message_type)
            profile = self._topics.profile(topic)
            self._subscribed[topic] = self.create_subscription(
                message_type, topic, take, profile, raw=True
            )
            self.get_logger().info(f"shows {topic}")

    def _callback(self, topic: str, kind: str, message_type: Any) -> Callable[[bytes], None]:
        def take(raw: bytes) -> None:
            now = self._time.steady_ns()
            if kind in IMAGES:
                if now - self._shown_ns.get(topic, -SECOND * 1000) < self._image_ns:
                    return
                self._shown_ns[topic] = now
            try:
                message = message_of(raw, message_type)
            except BadMessage as error:
                self._warn(topic, error)
                return
            self._show(topic, kind, message)

        return take

    def _show(self, topic: str, kind: str, message: Any) -> None:
        stamp = stamp_of(message) or int(self.get_clock().now().nanoseconds)
        try:
            for fact in self._reader.read(topic, kind, message):
                self._log.show(fact, stamp, self._time.now_ns())
        except ValueError as error:  # BadMessage among them
            self._warn(topic, error)

    def _warn(self, topic: str, error: ValueError) -> None:
        self.get_logger().warning(f"{topic}: {error}", throttle_duration_sec=5.0)

    def _arrange(self) -> None:
        """Send the layout anew where paths have come."""
        paths = set(self._log.paths)
        if paths != self._arranged:
            self._arranged = paths
            young = self._time.steady_ns() - self._began_ns < _ARRANGE_S * SECOND
            self._log.send_layout(active=young)

    def close(self) -> None:
        """Write everything, and close the recording."""
        self._log.send_layout(active=False)
        self._log.close()


def main(args: Sequence[str] | None = None) -> int:
    """Run the node: 0 after SIGINT or SIGTERM, 2 for a bad parameter or no viewer."""
    return spin.run(lambda _: RerunNode(), RerunNode.close, args, executor=SingleThreadedExecutor)


if __name__ == "__main__":
    sys.exit(main())
