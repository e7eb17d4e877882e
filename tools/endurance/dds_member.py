"""One process of :mod:`endurance.dds_match`: a participant that says when it has found the others.

    python dds_member.py NUMBER OF_SO_MANY

Needs rclpy and std_msgs, nothing of vla_ros.
"""

from __future__ import annotations

import sys
import time

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, QoSProfile
from std_msgs.msg import String

GIVE_UP_S = 20.0


def main() -> None:
    """A line with a moment comes in; when it was made and when it had matched goes out. It stays
    until it is killed: one that leaves while others announce themselves is where Fast DDS can hang
    (docs/explanation/fast-dds-hang.md), and that is not what is measured here."""
    number, of = int(sys.argv[1]), int(sys.argv[2])
    print("ready", flush=True)
    moment = float(sys.stdin.readline())
    time.sleep(max(0.0, moment - time.monotonic()))
    rclpy.init()
    node = rclpy.create_node(f"member_{number}")
    heard: set[str] = set()
    latched = QoSProfile(depth=100, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    publisher = node.create_publisher(String, "/match", latched)
    node.create_subscription(String, "/match", lambda m: heard.add(m.data), latched)
    publisher.publish(String(data=str(number)))
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    made = matched = time.monotonic()
    while matched - made < GIVE_UP_S:
        executor.spin_once(timeout_sec=0.01)
        matched = time.monotonic()
        if publisher.get_subscription_count() == len(heard) == of:
            break
    print(f"{made} {matched}", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
