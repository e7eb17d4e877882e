"""The control tick and what feeds it: from observations and inferences to gated commands.

ROS-free. ``intake`` decides what may come in, ``actions`` holds what is to be executed,
``loop`` ties them to the rules of :mod:`vla_ros.safety`.
"""

from vla_ros.control.intake import check_instruction
from vla_ros.control.loop import Control
from vla_ros.control.outlet import ControlCounts, ControlOutlet

__all__ = ["Control", "ControlCounts", "ControlOutlet", "check_instruction"]
