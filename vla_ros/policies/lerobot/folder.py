"""What the config.json of a LeRobot checkpoint says that it looks at and gives. JSON alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_ros.policies.base import PolicyRefused

STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."
CONFIG, WEIGHTS = "config.json", "model.safetensors"
PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"
_EMPTY = "empty_camera_"  # LeRobot fills these in itself


@dataclass(frozen=True, slots=True)
class CameraFeature:
    """A camera by the checkpoint's name, and the image size of its data set."""

    name: str
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.name} [{self.height}, {self.width}]"


@dataclass(frozen=True, slots=True)
class Features:
    """``kind`` is LeRobot's name of the policy. ``action_names`` are () where it has none."""

    kind: str
    cameras: tuple[CameraFeature, ...]
    state_dim: int
    action_dim: int
    action_names: tuple[str, ...] = ()


def read_features(directory: Path) -> Features:
    """PolicyRefused, in one line, for a folder that is none of LeRobot's or asks for more than
    cameras, the robot's state and a task."""
    raw = _config(directory)
    kind = raw.get("type")
    if not isinstance(kind, str) or not isinstance(raw.get("output_features"), dict):
        raise PolicyRefused(
            f"{directory / CONFIG} is none of LeRobot's: it has no type and features"
        )
    if raw.get("use_peft"):
        raise PolicyRefused(f"{directory} is a PEFT adapter: merge it into its base policy first")
    inputs, outputs = _features(raw, "input_features"), _features(raw, "output_features")
    cameras, state, strange = [], 0, []
    for name, (what, shape) in inputs.items():
        if what == "VISUAL" and len(shape) == 3:
            if not name.removeprefix(IMAGES).startswith(_EMPTY):
                cameras.append(CameraFeature(name, shape[1], shape[2]))
        elif name == STATE and len(shape) == 1:
            state = shape[0]
        elif what != "LANGUAGE":
            strange.append(f"{name} {list(shape)}")
    if strange:
        raise PolicyRefused(
            f"{directory} wants {', '.join(strange)}; offered are cameras, {STATE} and the task"
        )
    if not cameras:
        raise PolicyRefused(f"{directory} looks through no camera ({IMAGES}NAME)")
    what, shape = outputs.get(ACTION, ("", ()))
    if what != "ACTION" or len(shape) != 1:
        raise PolicyRefused(f"{directory} gives {', '.join(outputs) or 'nothing'}, not an {ACTION}")
    names = raw.get("action_feature_names") or ()
    named = tuple(map(str, names)) if len(names) == shape[0] else ()
    return Features(kind, tuple(cameras), state, shape[0], named)


def _config(directory: Path) -> Mapping[str, Any]:
    lacks = [n for n in (CONFIG, WEIGHTS) if not (directory / n).is_file()]
    if lacks:
        raise PolicyRefused(f"no {' and no '.join(lacks)} in {directory}: it is no LeRobot policy")
    lacks = [n for n in (PREPROCESSOR, POSTPROCESSOR) if not (directory / n).is_file()]
    if lacks:
        raise PolicyRefused(
            f"no {' and no '.join(lacks)} in {directory}: it was saved by a LeRobot before 0.4;"
            " LeRobot's migrate_policy_normalization.py brings it up to date"
        )
    try:
        raw = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PolicyRefused(f"{directory / CONFIG} cannot be read: {error}") from error
    return raw if isinstance(raw, dict) else {}


def _features(raw: Mapping[str, Any], key: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    try:
        return {
            str(name): (str(feature["type"]), tuple(map(int, feature["shape"])))
            for name, feature in (raw.get(key) or {}).items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PolicyRefused(f"{key} of {CONFIG} cannot be read: {error!r}") from error
