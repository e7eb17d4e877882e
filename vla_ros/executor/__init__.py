"""The worker process that owns the device, and the handle on it in the node. ROS-free."""

from vla_ros.executor.executor import Executor
from vla_ros.executor.messages import (
    ErrorKind,
    Event,
    FrameRefused,
    Ready,
    Result,
    SpareLost,
    SpareReady,
    WorkerDied,
    WorkerGaveUp,
    WorkerGone,
    WorkerLimits,
    WorkerLost,
    WorkerReady,
    WorkerSwitched,
)

__all__ = [
    "ErrorKind",
    "Event",
    "Executor",
    "FrameRefused",
    "Ready",
    "Result",
    "SpareLost",
    "SpareReady",
    "WorkerDied",
    "WorkerGaveUp",
    "WorkerGone",
    "WorkerLimits",
    "WorkerLost",
    "WorkerReady",
    "WorkerSwitched",
]
