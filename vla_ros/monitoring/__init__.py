"""Judging a policy from outside: what its topics say, free of ROS, with an injected clock."""

from vla_ros.monitoring.monitor import Judgement, Monitor
from vla_ros.monitoring.seen import (
    CommandSeen,
    Diagnostic,
    GraphReport,
    LatencySeen,
    Level,
    MonitorConfig,
    PublisherSeen,
    StagesSeen,
    StatusSeen,
    worst,
)

__all__ = [
    "CommandSeen",
    "Diagnostic",
    "GraphReport",
    "Judgement",
    "LatencySeen",
    "Level",
    "Monitor",
    "MonitorConfig",
    "PublisherSeen",
    "StagesSeen",
    "StatusSeen",
    "worst",
]
