"""The inference engine: prepare, encode, decode, finish; token and flow policies. No ROS here.

``engine.py`` is the face, ``load.py`` makes one of a checkpoint's name, ``options.py`` is what a
caller may choose; ``families/`` are the checkpoints' folders, ``decoding/`` goes from a prefix to
tokens or a chunk, ``models/`` is one file an architecture, ``layers/`` are its parts, ``io/`` reads
files. What needs torch is imported when it is asked for: options and errors are for everybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.options import EngineOptions

if TYPE_CHECKING:
    from vla_ros.engine.engine import Engine
    from vla_ros.engine.load import load_engine

__all__ = ["CheckpointError", "Engine", "EngineOptions", "InvalidAction", "load_engine"]


def __getattr__(name: str) -> Any:
    if name in ("Engine", "load_engine"):
        from vla_ros.engine import load

        return getattr(load, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
