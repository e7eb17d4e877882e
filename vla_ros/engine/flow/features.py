"""The features of a policy of LeRobot's: what its config.json says goes in and comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_ros.engine.checkpoints.fields import Fields

STATE, ACTION, CAMERA = "observation.state", "action", "observation.images."
EMPTY_CAMERA = "empty_camera_"


def camera_names(fields: Fields) -> tuple[str, ...]:
    """The cameras without their prefix, in order, without those that are always empty."""
    features = fields.part("input_features").raw
    names = [n for n, f in features.items() if isinstance(f, Mapping) and f.get("type") == "VISUAL"]
    short = [n.removeprefix(CAMERA) for n in names]
    return tuple(n for n in short if not n.startswith(EMPTY_CAMERA))


def feature_length(fields: Fields, group: str, name: str, default: int) -> int:
    """The length of a vector. CheckpointError where it is none."""
    one = fields.part(group).part(name)
    shape = one.items("shape") or [default]
    if len(shape) != 1 or not isinstance(shape[0], int) or shape[0] < 1:
        raise one.wrong("shape", "one whole number")
    return int(shape[0])


def feature(kind: str, *shape: int) -> dict[str, Any]:
    """One as config.json has it; ``kind``: VISUAL, STATE or ACTION."""
    return {"type": kind, "shape": list(shape)}
