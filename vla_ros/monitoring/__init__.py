"""Judging a policy from outside: what its topics say, free of ROS, with an injected clock."""

from vla_ros.monitoring.monitor import Judgement, Monitor
from vla_ros.monitoring.seen import (
    Arrival,
    CommandSeen,
    Diagnostic,
    LatencySeen,
    Level,
    MonitorConfig,
    PublisherSeen,
    Report,
    StagesSeen,
    StatusSeen,
    worst,
)

__all__ = [
    "Arrival",
    "CommandSeen",
    "Diagnostic",
    "Judgement",
    "LatencySeen",
    "Level",
    "Monitor",
    "MonitorConfig",
    "PublisherSeen",
    "Report",
    "StagesSeen",
    "StatusSeen",
    "worst",
]
