"""The robot of `ticks`: an arm that goes where it is commanded to, its camera, and a clock.

    python -m endurance.tick_robot TIMES.npy

Joint states at 100 Hz, images at 25 Hz. Ends with its standard input, and then writes when each
message on `policy/positions` was sent and when it came: int64 [N, 2], ns, by the middleware's
stamps. A real-time process where this machine allows it, as a robot's controller is: when commands
come shall say something about the node.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if (ROOT / "vla_ros" / "msg").is_dir():
    sys.path.insert(0, str(ROOT))

import numpy as np
import rclpy
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray

from vla_ros.ros.common import qos

JOINTS = ("j1", "j2", "j3", "j4", "j5", "j6")
STATES_HZ, IMAGE_EVERY = 100.0, 4
WIDTH, HEIGHT = 64, 48
PRIORITY = 50


def main() -> None:
    """Be the robot until nobody writes to its standard input any more."""
    ended = threading.Event()
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))  # before DDS's threads
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    rclpy.init()
    node = rclpy.create_node("tick_robot", start_parameter_services=False)
    states = node.create_publisher(JointState, "joint_states", qos.STATE)
    images = node.create_publisher(Image, "image", qos.IMAGE_PUB)
    commands = node.create_subscription(
        Float64MultiArray, "policy/positions", lambda _: None, qos.copy(qos.ACTION, 200)
    )
    state = JointState(name=list(JOINTS), position=[0.0] * len(JOINTS))
    image = Image(height=HEIGHT, width=WIDTH, encoding="rgb8", step=3 * WIDTH)
    image.data.frombytes(bytes(3 * WIDTH * HEIGHT))
    times: list[tuple[int, int]] = []
    due, shown = time.monotonic(), 0
    # An executor takes a quarter of a processor at 500 Hz, which a controller in C++ does not.
    while not ended.is_set():
        with commands.handle:
            while (taken := commands.handle.take_message(Float64MultiArray, False)) is not None:
                message, info = taken
                times.append((info["source_timestamp"], info["received_timestamp"]))
                state.position = message.data
        state.header.stamp = image.header.stamp = node.get_clock().now().to_msg()
        states.publish(state)
        if shown % IMAGE_EVERY == 0:
            images.publish(image)
        shown += 1
        due = max(due + 1 / STATES_HZ, time.monotonic() - 1 / STATES_HZ)
        time.sleep(max(0.0, due - time.monotonic()))
    np.save(sys.argv[1], np.array(times, np.int64).reshape(-1, 2))
    node.destroy_node()
    rclpy.try_shutdown()


if __name__ == "__main__":
    main()
