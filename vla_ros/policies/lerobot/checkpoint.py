"""Inputs and outputs of a LeRobot checkpoint, of its config.json alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.core.files import read_json
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io import hub
from vla_ros.engine.io.action_data import (
    ActionData,
    action_names_in,
    executed_in,
    libero_in,
    reach_of,
)
from vla_ros.engine.models.cameras import ABSENT, roles_of
from vla_ros.policies.base import PolicyRefused
from vla_ros.policies.units import Scaling, scaling_for

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
    """Features of a checkpoint. ``kind`` is LeRobot's name of the policy; ``action_names`` are ()
    where neither it nor its data set has any, else in the file ``named_by``. ``observations``: that
    an answer looks at, one a row of its data."""

    kind: str
    cameras: tuple[CameraFeature, ...]
    state_dim: int
    action_dim: int
    action_names: tuple[str, ...] = ()
    named_by: str = ""
    observations: int = 1


def folder_of(checkpoint: str) -> Path:
    """Folder of a checkpoint: itself, or a hub id's commit in the cache. PolicyRefused: none."""
    try:
        return hub.folder_of(
            checkpoint, wanted=("*.json", "*.safetensors", "README.md"), judge=None
        )
    except CheckpointError as error:
        raise PolicyRefused(f"checkpoint: {error}") from error


def read_features(directory: Path) -> Features:
    """Features of a LeRobot folder. PolicyRefused, in one line: it is none, or needs more than
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
    steps = raw.get("n_obs_steps")
    many = steps if type(steps) is int and steps > 0 else 1
    names, named_by = action_names_in(directory, shape[0])
    return Features(kind, tuple(cameras), state, shape[0], names, named_by, many)


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
        raw = read_json(directory / CONFIG)
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


# The table between a robot and a checkpoint: cameras by role, numbers by name and unit.


def state_scaling(features: Features, words: Sequence[str]) -> Scaling:
    """Scaling of ``observation.state``. No words: the runtime's own units."""
    return scaling_for(words, features.state_dim, "state_units")


def cameras_of(
    features: Features, camera_map: str, more: tuple[str, ...] = ()
) -> dict[str, CameraFeature]:
    """Cameras of a checkpoint by role; ``camera_map`` is the parameter, "top=main left=none", and
    ``more`` are the roles beside main and wrist.

    PolicyRefused, what is wanted and what is offered, where they do not fit.
    """
    names = tuple(c.name.removeprefix(IMAGES) for c in features.cameras)
    try:
        roles = roles_of(names, camera_map, more)
    except CheckpointError as error:
        raise PolicyRefused(str(error)) from error
    pairs = zip(roles, features.cameras, strict=True)
    return {role: camera for role, camera in pairs if role != ABSENT}


# The actions that it learned.


def action_data_of(directory: Path, features: Features) -> ActionData:
    """What a LeRobot folder says about the actions of its data. PolicyRefused: its statistics
    cannot be read."""
    stats = _action_statistics(directory)
    fitting = {name: values for name, values in stats.items() if len(values) == features.action_dim}
    low, high = reach_of(fitting)
    return ActionData(
        features.action_names,
        features.named_by,
        low,
        high,
        libero=libero_in(directory),
        executed=executed_in(directory),
    )


def _action_statistics(directory: Path) -> dict[str, list[float]]:
    """The statistics of the actions in the file that the postprocessor names, by their names; those
    of several data sets are left out."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = directory / POSTPROCESSOR
    try:
        steps = read_json(path).get("steps", [])
        files = [one.get("state_file") for one in steps if isinstance(one, Mapping)]
        found: dict[str, list[float]] = {}
        for name in filter(None, files):
            for key, values in load_file(str(directory / Path(str(name)).name)).items():
                feature, _, kind = key.rpartition(".")
                if feature == ACTION:
                    found[kind] = np.asarray(values, np.float64).reshape(-1).tolist()
    except (OSError, ValueError, SafetensorError) as error:
        raise PolicyRefused(f"the statistics of {path} cannot be read: {error}") from error
    return found
