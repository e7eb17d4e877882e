"""The inference engine: one packed pass under every schedule, and flow policies. No ROS here.

What needs torch is imported when it is asked for: options and errors are for everybody.

``engine``: the face; ``options``, ``factory``: from what is asked for to its parts. ``model``:
what a checkpoint becomes, of ``vision`` and ``decoders``. ``packed``: the one primitive, which
``schedules`` fill, with guesses of ``drafters``. ``flow``: the other primitive, for policies with
an action head. ``checkpoints``: what is on disk; ``quantised``: fewer bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.options import EngineOptions

if TYPE_CHECKING:
    from vla_ros.engine.engine import Engine, load_engine

__all__ = ["CheckpointError", "Engine", "EngineOptions", "InvalidAction", "load_engine"]


def __getattr__(name: str) -> Any:
    if name in ("Engine", "load_engine"):
        from vla_ros.engine import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
