"""One process of :mod:`endurance.dds_match`: a participant that says when it has found the others.

    python dds_member.py NUMBER OF_SO_MANY

Needs rclpy and std_msgs, nothing of vla_ros.
"""

from __future__ import annotations

import sys
import time

import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, QoSProfile
from std_msgs.msg import String

GIVE_UP_S = 20.0


def main() -> None:
    """One process: on each line a moment and an offset; answers when it was made and matched."""
    number, of = int(sys.argv[1]), int(sys.argv[2])
    print("ready", flush=True)
    for line in sys.stdin:
        moment = float(line)
        time.sleep(max(0.0, moment - time.monotonic()))
        context = Context()
        rclpy.init(context=context)
        node = rclpy.create_node(f"member_{number}", context=context)
        heard: set[str] = set()
        latched = QoSProfile(depth=100, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        publisher = node.create_publisher(String, "/match", latched)
        node.create_subscription(
            String, "/match", lambda m, heard=heard: heard.add(m.data), latched
        )
        publisher.publish(String(data=str(number)))
        executor = SingleThreadedExecutor(context=context)
        executor.add_node(node)
        made = matched = time.monotonic()
        while matched - made < GIVE_UP_S:
            executor.spin_once(timeout_sec=0.01)
            matched = time.monotonic()
            if publisher.get_subscription_count() == len(heard) == of:
                break
        print(f"{made} {matched}", flush=True)
        sys.stdin.readline()
        node.destroy_node()
        context.shutdown()


if __name__ == "__main__":
    main()
