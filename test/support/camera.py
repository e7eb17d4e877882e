"""A camera as a process of its own, so that a test can stop or kill it.

    python camera.py --topic image --rate 30 --width 640 --height 480 --count 150

Begins once somebody subscribes and prints ``sent N`` when ``--count`` frames are out, then
stays until it is ended. Frames are paced on a fixed raster; one that is late is skipped, not
caught up with. Every frame differs from the one before it.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import rclpy
from rclpy.node import Node
from sensor_msgs.msg import Image

from vla_ros.ros.common import qos
from vla_ros.ros.common.ending import end_with_parent


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--topic", default="image")
    options.add_argument("--rate", type=float, default=20.0)
    options.add_argument("--width", type=int, default=64)
    options.add_argument("--height", type=int, default=48)
    options.add_argument("--count", type=int, default=0, help="0: until it is ended")
    given = options.parse_args()
    end_with_parent()
    rclpy.init()
    node = Node("test_camera", start_parameter_services=False)
    publisher = node.create_publisher(Image, given.topic, qos.IMAGE_PUB)
    while publisher.get_subscription_count() == 0:
        time.sleep(0.005)
    pixels = np.random.default_rng(1).integers(0, 256, (given.height, given.width, 3), np.uint8)
    period = 1.0 / given.rate
    due = time.monotonic()
    sent = 0
    while not given.count or sent < given.count:
        pixels[0] = sent % 251
        pixels[0, ::8] = sent // 251 % 251
        message = Image(height=given.height, width=given.width, encoding="rgb8")
        message.step = given.width * 3
        message.data.frombytes(memoryview(pixels).cast("B"))
        message.header.stamp = node.get_clock().now().to_msg()
        publisher.publish(message)
        sent += 1
        due += period * max(1, (time.monotonic() - due) // period)
        time.sleep(max(0.0, due - time.monotonic()))
    print(f"sent {sent}", flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    main()
