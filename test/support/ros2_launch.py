"""The real `ros2 launch`, where it is installed."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.nodes import Program
from vla_ros.core.resources import share
from vla_ros.ros.bringup.environment import PROFILES

ROS2 = Path(sys.executable).parent / "ros2"
COMMAND = str(ROS2) if ROS2.is_file() else shutil.which("ros2")
MISSING = "ros2 launch is not installed (make ros2-launch, or source a full ROS 2)"
HERE = COMMAND is not None and importlib.util.find_spec("launch_ros") is not None
needs_launch = pytest.mark.skipif(not HERE, reason=MISSING)


def start(
    file: str,
    env: Mapping[str, str],
    *,
    extra_env: Mapping[str, str] | None = None,
    **arguments: str,
) -> Program:
    """`ros2 launch FILE NAME:=VALUE ...`, without what a launch file must set by itself."""
    kept = {
        name: value
        for name, value in env.items()
        if name not in (*PROFILES, "ROS_AUTOMATIC_DISCOVERY_RANGE")
    }
    kept |= extra_env or {}
    kept["PATH"] = f"{Path(sys.executable).parent}:{kept['PATH']}"  # of vla-ros
    words = [f"{name}:={value}" for name, value in arguments.items()]
    command = [str(COMMAND), "launch", str(share() / "launch" / file), *words]
    return Program(file, command, kept)
