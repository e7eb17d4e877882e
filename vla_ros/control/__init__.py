"""The control loop: from observations and inferences to gated commands. ROS-free.

What comes in: ``assembling`` joins messages to observations, ``intake`` refuses what cannot be
used, ``queue`` holds what is to be executed. :class:`Control` ties them together; each file below
it adds what it knows of: ``state``, ``goal_loop``, ``worker_loop``, ``task_loop``, ``loop``.
``realtime`` and ``lockstep`` are its two ways to run, ``gate`` is the one way out.
"""

from vla_ros.control.intake import check_instruction
from vla_ros.control.lockstep import LockstepControl
from vla_ros.control.loop import Control
from vla_ros.control.make import make_control
from vla_ros.control.outlet import ControlCounts, ControlOutlet
from vla_ros.control.realtime import RealtimeControl

__all__ = [
    "Control",
    "ControlCounts",
    "ControlOutlet",
    "LockstepControl",
    "RealtimeControl",
    "check_instruction",
    "make_control",
]
