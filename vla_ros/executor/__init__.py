"""The worker process that owns the device, and the handle on it in the node. ROS-free.

In the node: ``executor``, the handle; ``supervisor``, the thread that keeps a worker alive, with
``orders`` from other threads, ``watchdog``, ``spare``, ``dying`` and, of each worker, ``process``.
In the worker: ``worker``, ``serve``, ``inbox``, ``guard``. Between them: ``mailbox`` for frames,
``wire`` for words.
"""

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
