"""The run that a bag holds: its policy, parameters and weights.

Kept twice: in the bag's metadata (``custom_data``, written when the bag is closed) and in a
file beside the data from the start, so a bag that was cut off has it too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from vla_ros.core.files import parse_json
from vla_ros.core.video import VIDEOS

KEY = "vla_ros.run"  # in custom_data
FILE = "vla_ros_run.json"  # beside the data

Value = bool | int | float | str | list[Any]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """``parameters``: node name → parameter → value, of the nodes that answered.

    ``counts`` are the recorder's own: messages written and left out, and why it ended.
    """

    version: str = ""
    created: str = ""  # ISO 8601, UTC
    reason: str = ""  # of a flight record: what it was written for
    policy: str = ""
    decoding: str = ""
    checkpoint: str = ""
    checkpoint_sha256: str = ""
    device: str = ""
    dtype: str = ""
    parameters: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    written: int = 0
    dropped: int = 0
    ended: str = ""

    def text(self) -> str:
        """The run as one line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def parse(text: str) -> RunInfo:
        """The inverse of :meth:`text`; unknown fields are left out. ValueError: no such text."""
        content = parse_json(text, FILE)
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        known = {key: value for key, value in content.items() if key in RunInfo.__slots__}
        return RunInfo(**known)


# The topics of a recording and their types.


STATUS = "policy/status"
#: Topics by the names of the graph, each with its type; * marks latched ones.
TOPICS = (
    ("image", "sensor_msgs/msg/Image"),
    ("wrist_image", "sensor_msgs/msg/Image"),
    ("image/compressed", "sensor_msgs/msg/CompressedImage"),
    ("wrist_image/compressed", "sensor_msgs/msg/CompressedImage"),
    ("camera_info", "sensor_msgs/msg/CameraInfo"),
    ("wrist_camera_info", "sensor_msgs/msg/CameraInfo"),
    ("joint_states", "sensor_msgs/msg/JointState"),
    ("end_effector_pose", "geometry_msgs/msg/PoseStamped"),
    ("robot_description", "std_msgs/msg/String*"),
    ("ground_truth", "vla_ros/msg/NamedPoses"),
    ("instruction", "std_msgs/msg/String*"),
    ("policy/action", "vla_ros/msg/ActionCommand"),
    ("policy/action_chunk", "vla_ros/msg/ActionChunk"),
    ("policy/shadow/action", "vla_ros/msg/ActionCommand"),
    ("policy/shadow/difference", "sensor_msgs/msg/JointState"),
    (STATUS, "vla_ros/msg/PolicyStatus*"),
    ("policy/description", "vla_ros/msg/PolicyDescription*"),
    ("policy/latency", "vla_ros/msg/Latency"),
    ("monitor/report", "vla_ros/msg/MonitorReport"),
    ("bridge/episode", "vla_ros/msg/EpisodeStatus*"),
    ("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray"),
    ("/clock", "rosgraph_msgs/msg/Clock"),
)
#: Those of cameras that send video, recorded where their messages are installed.
VIDEO_TOPICS = tuple(
    (f"{camera}/{transport}", kind)
    for camera in ("image", "wrist_image")
    for transport, kind in VIDEOS.items()
)
