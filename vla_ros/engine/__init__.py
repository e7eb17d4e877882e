"""The inference engine: one packed forward pass, every schedule. No ROS, no simulator here."""

from __future__ import annotations

from vla_ros.engine.engine import Engine, load_engine
from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.options import EngineOptions

__all__ = ["CheckpointError", "Engine", "EngineOptions", "InvalidAction", "load_engine"]
