"""A camera driver as its manual starts it: camera_driver.py RELIABILITY WIDTHxHEIGHT FRAMES.

Publishes rgb8 images on /image at 30 Hz, the middleware's defaults for all else, once a reader is
there.
"""

import array
import sys
import time

import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image

RATE_HZ = 30.0


def main() -> None:
    reliability, size, frames = sys.argv[1:4]
    width, height = map(int, size.split("x"))
    rclpy.init()
    node = Node("camera")
    profile = QoSProfile(depth=10, reliability=ReliabilityPolicy[reliability.upper()])
    publisher = node.create_publisher(Image, "image", profile)
    data = array.array("B", bytes(3 * width * height))
    message = Image(height=height, width=width, encoding="rgb8", step=3 * width, data=data)
    until = time.monotonic() + 20.0
    while not publisher.get_subscription_count() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(1.0)  # the reader may look at the offer, and subscribe again
    begun = time.monotonic()
    for number in range(int(frames)):
        message.header.stamp = node.get_clock().now().to_msg()
        publisher.publish(message)
        time.sleep(max(0.0, begun + (number + 1) / RATE_HZ - time.monotonic()))
    time.sleep(1.0)  # for what is on its way


if __name__ == "__main__":
    main()
