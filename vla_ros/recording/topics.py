"""What a run is recorded of: its topics and their types."""

from __future__ import annotations

STATUS = "policy/status"
#: What is recorded, by the names of the graph; the type follows, and * marks latched topics.
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
    (STATUS, "vla_ros/msg/PolicyStatus*"),
    ("policy/latency", "vla_ros/msg/Latency"),
    ("monitor/report", "vla_ros/msg/MonitorReport"),
    ("bridge/episode", "vla_ros/msg/EpisodeStatus*"),
    ("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray"),
    ("/clock", "rosgraph_msgs/msg/Clock"),
)
