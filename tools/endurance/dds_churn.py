"""One process of the churn that makes Fast DDS hang: readers stay, writers come and go.

:mod:`endurance.dds_hang` starts several on one ROS domain. Needs rclpy and std_msgs, nothing of
vla_ros, so that it runs wherever ROS 2 does::

    python dds_churn.py COUNTS SLOT SECONDS_OF_A_LIFE

``COUNTS`` is a file of unsigned 64-bit counters, one a process; this one adds to its ``SLOT``.
"""

from __future__ import annotations

import mmap
import random
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

import rclpy
from rclpy.context import Context
from std_msgs.msg import String

TOPICS = 4
# A reader answers a heartbeat 5 ms later: a writer that goes just then finds that timer running.
MATCHED_S = 0.03
LINGER_S = (0.0, 0.012)
PAUSE_S = 0.02


def main() -> None:
    """Until killed: a participant, its churn, the next participant."""
    counts, slot, life = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    rng = random.Random(slot)
    with counts.open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
        while True:
            _live(shared, 8 * slot, life * rng.uniform(0.7, 1.3), f"churn_{slot}", rng)


def _live(shared: mmap.mmap, at: int, seconds: float, name: str, rng: random.Random) -> None:
    context = Context()
    rclpy.init(context=context)
    node = rclpy.create_node(
        name, context=context, start_parameter_services=False, enable_rosout=False
    )
    topics = [f"/churn_{number}" for number in range(TOPICS)]
    for topic in topics:
        node.create_subscription(String, topic, lambda _: None, 10)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        writers = [node.create_publisher(String, topic, 10) for topic in topics]
        time.sleep(MATCHED_S)
        for writer in writers:
            writer.publish(String(data="x"))
        time.sleep(rng.uniform(*LINGER_S))
        for writer in writers:
            node.destroy_publisher(writer)
        struct.pack_into("Q", shared, at, struct.unpack_from("Q", shared, at)[0] + 1)
        time.sleep(rng.uniform(0.0, PAUSE_S))
    node.destroy_node()
    context.shutdown()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
