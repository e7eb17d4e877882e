"""A robot of two cameras and a trajectory controller, as drivers of ros2_control show one.

    python stub_robot.py [--without description controller]

Joint states come in the order of the alphabet, as joint_state_broadcaster sends them; the
controller has its own order in its parameter ``joints``. Prints ``ready`` once all publish and
``commanded NAMES`` at the first trajectory.
"""

from __future__ import annotations

import argparse
import contextlib

import numpy as np
import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from vla_ros.ros.common import qos
from vla_ros.ros.common.ending import end_with_parent
from vla_ros.ros.common.spin import every

JOINTS = ("shoulder", "elbow", "wrist_roll")
HERE = {"elbow": 0.2, "gripper": 0.01, "shoulder": -0.1, "wrist_roll": 0.4}
DESCRIPTION = """<robot name="stub">
<joint name="shoulder" type="revolute"><limit lower="-2.0" upper="2.0" velocity="3.0"/></joint>
<joint name="elbow" type="revolute"><limit lower="-1.5" upper="1.6" velocity="2.0"/></joint>
<joint name="wrist_roll" type="revolute"><limit lower="-3.1" upper="3.1" velocity="6.0"/></joint>
<joint name="gripper" type="prismatic"><limit lower="0.0" upper="0.04" velocity="0.1"/></joint>
</robot>"""


class Camera(Node):
    """A driver's camera: 64x48 rgb8, best effort."""

    def __init__(self, name: str, hz: float) -> None:
        super().__init__(name)
        topic = f"/{name}/image_raw"
        self._publisher = self.create_publisher(Image, topic, qos_profile_sensor_data)
        self._pixels = np.random.default_rng(1).integers(0, 256, (48, 64, 3), np.uint8)
        self._sent = 0
        self._timer = every(self, 1.0 / hz, self._send)

    def _send(self) -> None:
        self._sent += 1
        self._pixels[0] = self._sent % 251
        message = Image(height=48, width=64, encoding="rgb8", step=192)
        message.data.frombytes(memoryview(self._pixels).cast("B"))
        message.header.stamp = self.get_clock().now().to_msg()
        self._publisher.publish(message)


class Broadcaster(Node):
    """joint_state_broadcaster."""

    def __init__(self) -> None:
        super().__init__("joint_state_broadcaster")
        self._publisher = self.create_publisher(JointState, "/joint_states", qos.STATE)
        self._timer = every(self, 0.02, self._send)

    def _send(self) -> None:
        message = JointState(name=list(HERE), position=list(HERE.values()))
        message.header.stamp = self.get_clock().now().to_msg()
        self._publisher.publish(message)


class Controller(Node):
    """joint_trajectory_controller, which says whom it moves."""

    def __init__(self) -> None:
        super().__init__("arm_controller")
        self.declare_parameter("joints", list(JOINTS))
        self._reader = self.create_subscription(
            JointTrajectory, "~/joint_trajectory", self._take, qos.ACTION
        )
        self._said = False

    def _take(self, message: JointTrajectory) -> None:
        if not self._said:
            print(f"commanded {' '.join(message.joint_names)}", flush=True)
        self._said = True


class Publisher(Node):
    """robot_state_publisher."""

    def __init__(self) -> None:
        super().__init__("robot_state_publisher")
        self._publisher = self.create_publisher(String, "/robot_description", qos.LATCHED)
        self._publisher.publish(String(data=DESCRIPTION))
        self._reader = self.create_subscription(JointState, "/joint_states", lambda _: None, 10)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--without", nargs="*", default=[])
    without = options.parse_args().without
    end_with_parent()
    rclpy.init()
    nodes = [Camera("front_camera", 30.0), Camera("wrist_camera", 15.0), Broadcaster()]
    nodes += [] if "controller" in without else [Controller()]
    nodes += [] if "description" in without else [Publisher()]
    executor = SingleThreadedExecutor()
    for node in nodes:
        executor.add_node(node)
    print("ready", flush=True)
    with contextlib.suppress(ExternalShutdownException):
        executor.spin()


if __name__ == "__main__":
    main()
