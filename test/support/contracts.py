"""Contracts as Rosetta has them, with the fields and shapes of its public examples."""

from __future__ import annotations

from typing import Any

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow", "wrist_pitch", "wrist_roll", "wrist_yaw")
HEADER = {"strategy": "hold", "timeline": "header"}


def camera(topic: str) -> dict[str, Any]:
    """A compressed image stream."""
    qos = {"reliability": "best_effort", "history": "keep_last", "depth": 10}
    channel = {"topic": topic, "type": "sensor_msgs/msg/CompressedImage", "qos": qos}
    return {"channel": channel, "align": HEADER, "apply": [{"resize": [512, 512]}]}


def joints(topic: str, *apply: Any, **channel: Any) -> dict[str, Any]:
    """Positions of JOINTS in degrees."""
    return {
        "channel": {"topic": topic, "type": "sensor_msgs/msg/JointState", **channel},
        "align": HEADER,
        "select": [f"position.{name}" for name in JOINTS],
        "apply": ["rad2deg", *apply],
    }


def so_101() -> dict[str, Any]:
    """Three cameras, six joints in degrees, commands as joint states, a task's topic."""
    return {
        "robot_type": "so_101",
        "robot_interface": "ros2",
        "fps": 30,
        "observations": {
            "observation.images.right": camera("/front_camera/image_raw/compressed"),
            "observation.images.top": camera("/top_camera/image_raw/compressed"),
            "observation.images.wrist.right": camera("/wrist_camera/image_raw/compressed"),
            "observation.state": joints("/follower_arm/joint_states"),
        },
        "actions": {
            "action": joints(
                "/leader_arm/joint_states", {"clamp": {"min": -180, "max": 180}}, safety="hold"
            )
        },
        "tasks": {"task": {"channel": {"topic": "/task_prompt", "type": "std_msgs/msg/String"}}},
        "adjunct": [{"channel": {"topic": "/tf", "type": "tf2_msgs/msg/TFMessage"}}],
        "x-qos": {"depth": 1},
    }
