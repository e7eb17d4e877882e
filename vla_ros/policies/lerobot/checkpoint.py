"""Inputs and outputs of a LeRobot checkpoint, of its config.json alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.core.action_space import (
    END_EFFECTOR_DELTA,
    ActionKind,
    ActionSpace,
    action_space_of,
    joints,
)
from vla_ros.core.files import read_json
from vla_ros.core.types import Floats
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io import hub
from vla_ros.engine.models.cameras import ABSENT, roles_of
from vla_ros.policies.base import PolicyRefused, Scale
from vla_ros.policies.units import Scaling, each, scaling_for, scaling_of, unit_of

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
    where it has none."""

    kind: str
    cameras: tuple[CameraFeature, ...]
    state_dim: int
    action_dim: int
    action_names: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True)
class ActionLayout:
    """Layout of a checkpoint's actions. ``order``: the index in the checkpoint of each value of the
    space. ``doubt``: an assumption without a source, in one line, or ""."""

    space: ActionSpace
    order: tuple[int, ...]
    scaling: Scaling
    doubt: str = ""

    def read(self, actions: Floats) -> Floats:
        """Actions [C, D] of the space, in m, rad, grippers within 0..1, of the checkpoint's."""
        out = self.scaling.to_runtime(np.asarray(actions, np.float64)[:, self.order])
        for i in self.space.grippers:
            out[:, i] = np.clip(out[:, i], 0.0, 1.0)
        return out


def action_layout(
    features: Features,
    given: ActionSpace | None,
    words: Sequence[str],
    scale: Scale | None,
) -> ActionLayout:
    """Layout of actions by the parameters ``given`` (a space) and ``words`` (units); without them
    by the checkpoint's names.

    ``scale``: m and rad of one unit of an end effector's x y z rx ry rz. PolicyRefused, with what
    is wanted and offered, where space and checkpoint do not fit.
    """
    names = tuple(n.removesuffix(".pos") for n in features.action_names)
    space, doubt = (given, "") if given is not None else _own_space(features, names)
    if space.width != features.action_dim:
        raise PolicyRefused(f"{_table(space, features, names)}: give action_space and action_names")
    same = sorted(names) == sorted(space.names)
    order = tuple(map(names.index, space.names)) if same else tuple(range(space.width))
    if names and not same:
        doubt = f"{_table(space, features, names)}: taken in this order, since no name is the same"
    units = (
        [unit_of(w) for w in each(words, space.width, "action_units")]
        if words
        else [unit_of(u) for u in space.units]
    )
    wrong = [
        f"{name} in {unit.name}, wanted {si}"
        for name, unit, si in zip(space.names, units, space.units, strict=True)
        if unit.si != si
    ]
    if wrong:
        raise PolicyRefused(f"action_units do not fit the action space: {'; '.join(wrong)}")
    scaling = scaling_of(units)
    if scale is not None:
        if space.kind.joints or len(space.motion) != 6:
            raise PolicyRefused("action_scale is for one end effector: give action_units instead")
        scaling.factor[list(space.motion)] *= scale
    return ActionLayout(space, order, scaling, doubt)


def _own_space(features: Features, names: tuple[str, ...]) -> tuple[ActionSpace, str]:
    """Space of a checkpoint's actions where no parameter gives it, and the doubt about it."""
    space = action_space_of(features.action_dim, names)
    if names and not _names_a_pose(names):
        space = joints(ActionKind.JOINT_POSITION, names)
    if not space.kind.joints:
        return (
            space,
            "nothing says what its 7 values are: taken for x y z rx ry rz deltas and a gripper",
        )
    grippers = tuple(n for n in space.names if "gripper" in n.lower())
    line = f"nothing says what its {space.width} values are: taken for positions of joints in rad"
    return joints(space.kind, space.names, grippers), line


def _names_a_pose(names: tuple[str, ...]) -> bool:
    """True of names like LIBERO's in LeRobot: x, y, z, roll, pitch, yaw, gripper."""
    return len(names) == END_EFFECTOR_DELTA.width and names[:3] == END_EFFECTOR_DELTA.names[:3]


def _table(space: ActionSpace, features: Features, names: Sequence[str]) -> str:
    wanted = " ".join(f"{n}[{u}]" for n, u in zip(space.names, space.units, strict=True))
    given = " ".join(names) if names else "without names"
    return f"actions wanted: {space.width} ({wanted}); offered: {features.action_dim} ({given})"
