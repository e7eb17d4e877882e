"""Which Python a worker runs in: this one, one that was named, or LeRobot's own."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from vla_ros.policies.base import PolicyRefused, PolicySpec

VARIABLE = "VLA_ROS_LEROBOT_PYTHON"
OLDEST = (3, 12)  # that LeRobot runs on
SETUP = "run `vla-ros lerobot setup`, or give worker_python"


def lerobot_folder() -> Path:
    """Where `vla-ros lerobot setup` puts LeRobot's environment unless it is told otherwise."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "vla_ros" / "lerobot"


def lerobot_python() -> Path:
    """LeRobot's interpreter, whether it is there or not: $VLA_ROS_LEROBOT_PYTHON, or setup's."""
    given = os.environ.get(VARIABLE)
    return Path(given).expanduser() if given else lerobot_folder() / "bin" / "python"


def worker_python(spec: PolicySpec) -> str | None:
    """The interpreter that the policy of ``spec`` is run with; None: this one.

    PolicyRefused: it is not there; the line says what to do.
    """
    if spec.worker_python:
        found = shutil.which(os.path.expanduser(spec.worker_python))
        if found is None:
            raise PolicyRefused(
                f"worker_python is {spec.worker_python!r}: there is no such program"
            )
        return found
    if spec.name != "lerobot":
        return None
    if (python := lerobot_python()).is_file():
        return str(python)
    if importlib.util.find_spec("lerobot") is not None:
        return None
    raise PolicyRefused(f"policy 'lerobot' needs LeRobot, and {python} is not there: {SETUP}")
