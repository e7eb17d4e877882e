"""Between the simulation's camera and the policy: passes its images on, or does what it is told.

    python rough_camera.py --from camera/image --to image

Reads one JSON object a line: {"do": "drops", "share": 0.5, "seed": 7}, {"do": "none"}, ... Answers
each with a line as soon as it is in force. Its death is a camera's.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import json
import random
import sys
import threading
import time
from typing import Any

import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from sensor_msgs.msg import Image

from vla_ros.core.clock import SECOND
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import stamp_of, to_time


class RoughCamera:
    """One camera with a temper. Images are sent from one thread, in order of when they are due."""

    def __init__(self, node: Node, source: str, target: str) -> None:
        self._publisher = node.create_publisher(Image, target, qos.IMAGE_PUB)
        self._lock = threading.Condition()
        self._due: list[tuple[float, int, Image]] = []
        self._count = 0
        self._order: dict[str, Any] = {"do": "none"}
        self._random = random.Random(0)
        self._last: Image | None = None
        node.create_subscription(Image, source, self._on_image, qos.IMAGE_SUB)
        threading.Thread(target=self._send, daemon=True).start()

    def obey(self, order: dict[str, Any]) -> None:
        """From now on."""
        with self._lock:
            self._order = order
            self._random = random.Random(order.get("seed", 0))
            self._lock.notify()

    def _on_image(self, message: Image) -> None:
        with self._lock:
            order, draw = self._order, self._random
            now = time.monotonic()
            held, self._last = self._last, message
            match order["do"]:
                case "drops":
                    if draw.random() >= order["share"]:
                        self._put(now, message)
                case "jitter":
                    self._put(now + draw.uniform(0.0, order["largest_s"]), message)
                case "repeats":
                    self._put(now, held or message)
                case "reversed":
                    self._put(now, message)
                    if held is not None:
                        self._put(now, held)
                case "clock":
                    stamp = stamp_of(message.header.stamp) + round(order["by_s"] * SECOND)
                    message.header.stamp = to_time(stamp)
                    self._put(now, message)
                case "flood":
                    for number in range(round(order["rate_hz"] / 20)):
                        self._put(now + number / order["rate_hz"], message)
                case "garbage":
                    self._put(now, _spoilt(message, draw))
                case _:
                    self._put(now, message)
            self._lock.notify()

    def _put(self, due: float, message: Image) -> None:
        self._count += 1
        heapq.heappush(self._due, (due, self._count, message))

    def _send(self) -> None:
        while True:
            with self._lock:
                while not self._due or self._due[0][0] > time.monotonic():
                    left = self._due[0][0] - time.monotonic() if self._due else None
                    self._lock.wait(left if left is None else max(left, 0.0))
                message = heapq.heappop(self._due)[2]
            self._publisher.publish(message)


def _spoilt(message: Image, draw: random.Random) -> Image:
    """An image that no camera should send, with a good stamp."""
    out = Image(
        header=message.header,
        height=message.height,
        width=message.width,
        encoding=message.encoding,
        step=message.step,
        data=message.data,
    )
    match draw.randrange(6):
        case 0:
            out.height, out.width = 4320, 7680
        case 1:
            out.encoding = draw.choice(["16UC1", "bayer_rggb8", "", "rgb8\x00", "x" * 2000])
        case 2:
            out.step = draw.choice([0, 1, 2**32 - 1])
        case 3:
            out.data = out.data[: draw.randrange(len(out.data))]
        case 4:
            out.is_bigendian = 1
            out.encoding = "mono16"
        case _:
            out.header.stamp = to_time(0)
    return out


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--from", dest="source", required=True)
    options.add_argument("--to", dest="target", required=True)
    given = options.parse_args()
    rclpy.init()
    node = Node("rough_camera", start_parameter_services=False)
    camera = RoughCamera(node, given.source, given.target)
    threading.Thread(target=_listen, args=(camera,), daemon=True).start()
    print("ready", flush=True)
    with contextlib.suppress(KeyboardInterrupt, ExternalShutdownException):
        rclpy.spin(node)


def _listen(camera: RoughCamera) -> None:
    for line in sys.stdin:
        camera.obey(json.loads(line))
        print("done", flush=True)


if __name__ == "__main__":
    main()
