"""What the folder of a GR00T N1.5 says about one of its robots, and what it leaves to Python.

Source: NVIDIA/Isaac-GR00T n1.5 ``data/schema.py``, ``policy.py``, ``data/embodiment_tags.py`` and
``experiment/data_config.py``. ``experiment_cfg/metadata.json`` has the statistics of every group of
values by robot. Which of them the model was shown, in which order and how they were scaled is said
by a class of the user's Python: here by a ``data_config.json`` in the folder,

    {"video": ["front", "wrist"], "state": ["single_arm", "gripper"],
     "action": ["single_arm", "gripper"], "modes": {"action.gripper": "binary"}, "crop": 0.95}

with a mode for each group that is not scaled by its least and greatest value (``min_max``): one of
``q99``, ``mean_std``, ``binary``, ``sin_cos`` or ``none``. Two of NVIDIA's own are known.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from vla_ros.core import Image
from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.checkpoints.files import names_in, read_json
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.groot.eagle_pictures import CROP, cropped
from vla_ros.engine.flow.groot.embodiment import choose

METADATA, DATA_CONFIG = "experiment_cfg/metadata.json", "data_config.json"
#: ``EMBODIMENT_TAG_MAPPING``: rows of the head's encoders.
ROWS = {"new_embodiment": 31, "oxe_droid": 17, "agibot_genie1": 26, "gr1": 24}
#: The statistics that a mode reads.
MODES = {
    "min_max": ("min", "max"), "q99": ("q01", "q99"), "mean_std": ("mean", "std"), "binary": (),
    "sin_cos": (), "none": (),
}  # fmt: skip
_ARMS = ["left_arm", "right_arm", "left_hand", "right_hand", "waist"]
_GENIE = [f"{name}_position" for name in ("left_arm_joint", "right_arm_joint", "left_effector",
                                          "right_effector", "head", "waist")]  # fmt: skip
#: NVIDIA's fourier_gr1_arms_waist and agibot_genie1.
KNOWN: dict[str, dict[str, object]] = {
    "gr1": {
        "video": ["ego_view"], "state": _ARMS, "action": _ARMS,
        "modes": {f"state.{name}": "sin_cos" for name in _ARMS},
    },
    "agibot_genie1": {
        "video": ["top_head", "hand_left", "hand_right"], "state": _GENIE,
        "action": [*_GENIE, "robot_velocity"],
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """A group of values and how they are scaled; ``low`` and ``high`` float32 [size]."""

    name: str
    mode: str
    low: torch.Tensor
    high: torch.Tensor

    @property
    def size(self) -> int:
        """Values of the robot."""
        return len(self.low)

    @property
    def wide(self) -> int:
        """Values of the model."""
        return self.size * (2 if self.mode == "sin_cos" else 1)

    def shown(self, values: torch.Tensor) -> torch.Tensor:
        """The robot's [size] -> the model's [wide], float32, as ``Normalizer.forward``."""
        if self.mode == "sin_cos":
            return torch.cat((values.sin(), values.cos()))
        if self.mode == "binary":
            return (values > 0.5).float()
        if self.mode == "none":
            return values
        if self.mode == "mean_std":
            moves = self.high != 0
            return torch.where(moves, (values - self.low) / self.high, values)
        moves = self.low != self.high
        width = torch.where(moves, self.high - self.low, torch.ones(()))
        out = 2 * ((values - self.low) / width) - 1
        if self.mode == "q99":
            return torch.where(moves, out, values).clamp(-1, 1)
        return torch.where(moves, out, torch.zeros(()))

    def restored(self, values: torch.Tensor) -> torch.Tensor:
        """The model's [H, size] -> the robot's, as ``Normalizer.inverse``."""
        if self.mode == "binary":
            return (values > 0.5).float()
        if self.mode == "none":
            return values
        if self.mode == "mean_std":
            return values * self.high + self.low
        return (values + 1) / 2 * (self.high - self.low) + self.low


@dataclass(frozen=True, slots=True, eq=False)
class MetadataRobot:
    """See :class:`~vla_ros.engine.flow.groot.robot.Robot`.

    ``crop``: the share of a picture that the model is shown.
    """

    tag: str
    row: int
    cameras: tuple[str, ...]
    state: tuple[Values, ...]
    actions: tuple[Values, ...]
    crop: float = CROP
    image_size: int = 224
    horizon: int = 16
    formal: bool = False
    relative: bool = False

    @property
    def state_dim(self) -> int:
        """Values of its state."""
        return sum(group.size for group in self.state)

    @property
    def state_wide(self) -> int:
        """Values of its state in model space."""
        return sum(group.wide for group in self.state)

    @property
    def action_dim(self) -> int:
        """Values of its action."""
        return sum(group.size for group in self.actions)

    @property
    def action_names(self) -> tuple[str, ...]:
        """A name for each value of an action."""
        return tuple(
            group.name if group.size == 1 else f"{group.name}_{i}"
            for group in self.actions
            for i in range(group.size)
        )

    def picture(self, image: Image) -> torch.Tensor:
        """See Robot."""
        return cropped(image, self.image_size, self.crop)

    def shown(self, state: torch.Tensor) -> torch.Tensor:
        """See Robot."""
        parts = state.split([group.size for group in self.state])
        return torch.cat([g.shown(v) for g, v in zip(self.state, parts, strict=True)])

    def restored(self, chunk: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """See Robot."""
        parts = chunk[:, : self.action_dim].split([group.size for group in self.actions], 1)
        return torch.cat([g.restored(v) for g, v in zip(self.actions, parts, strict=True)], 1)

    def ends(self) -> tuple[torch.Tensor, ...]:
        """See Robot."""
        if any(group.mode not in ("min_max", "q99") for group in self.actions):
            return ()
        return torch.cat([g.low for g in self.actions]), torch.cat([g.high for g in self.actions])


def read_robot(directory: Path, tag: str | None) -> MetadataRobot:
    """The robot ``tag`` of a folder, or its only one.

    CheckpointError in one line, with the robots that there are, or for what cannot be used.
    """
    path = directory / METADATA
    if not path.is_file():
        raise CheckpointError(f"no {METADATA} in {directory}: there is {names_in(directory)}")
    known = read_json(path)
    tag = choose(tag, sorted(known), directory)
    if tag not in ROWS:
        raise CheckpointError(
            f"{path} has a robot {tag!r}, which N1.5 gives no encoders: {', '.join(ROWS)}"
        )
    about = Fields(known[tag], tag)
    said = _data_config(directory, tag, about)
    modes = said.part("modes")
    cameras = _names(said, "video")
    for name in cameras:
        if name not in about.part("modalities").part("video").raw:
            raise said.wrong("video", f"of {_listed(about, 'video')}")
    groups = {
        kind: tuple(_values(about, kind, name, modes) for name in _names(said, kind))
        for kind in ("state", "action")
    }
    strange = set(modes.raw) - {f"{k}.{g.name}" for k in groups for g in groups[k]}
    if strange:
        raise CheckpointError(f"modes has {', '.join(sorted(strange))}, of which nothing is used")
    crop = said.number("crop", CROP)
    if crop > 1:
        raise said.wrong("crop", "a number above 0, at most 1")
    return MetadataRobot(tag, ROWS[tag], cameras, groups["state"], groups["action"], crop)


def _data_config(directory: Path, tag: str, about: Fields) -> Fields:
    path = directory / DATA_CONFIG
    if path.is_file():
        return Fields(read_json(path), DATA_CONFIG)
    if tag in KNOWN:
        return Fields(KNOWN[tag], tag)
    names = {kind: sorted(about.part("modalities").part(kind).raw)
             for kind in ("video", "state", "action")}  # fmt: skip
    raise CheckpointError(
        f"no {DATA_CONFIG} in {directory}: what {tag} sees, is and does, and in which order, is in"
        f" the Python that trained it; write it down, of {json.dumps(names)}"
    )


def _values(about: Fields, kind: str, name: str, modes: Fields) -> Values:
    known = about.part("modalities").part(kind)
    if name not in known.raw:
        raise CheckpointError(
            f"{DATA_CONFIG} has {kind} {name!r}, the metadata {_listed(about, kind)}"
        )
    group = known.part(name)
    mode = modes.choice(f"{kind}.{name}", "min_max", tuple(MODES))
    if kind == "action" and mode == "sin_cos":
        raise modes.wrong(f"{kind}.{name}", "a mode that can be undone")
    if mode != "binary" and group.raw.get("continuous") is False:
        raise modes.wrong(f"{kind}.{name}", "binary, of values that are not continuous")
    shape = group.items("shape")
    if len(shape) != 1 or isinstance(shape[0], bool) or not isinstance(shape[0], int):
        raise group.wrong("shape", "one number")
    statistics = about.part("statistics").part(kind).part(name)
    ends = [_numbers(statistics, end, shape[0]) for end in MODES[mode]]
    low, high = ends or (torch.zeros(shape[0]), torch.ones(shape[0]))
    return Values(name, mode, low, high)


def _numbers(statistics: Fields, name: str, size: int) -> torch.Tensor:
    try:
        values = torch.tensor(statistics.items(name), dtype=torch.float64).float()
    except (TypeError, ValueError):
        raise statistics.wrong(name, f"{size} numbers") from None
    if values.shape != (size,) or not bool(values.isfinite().all()):
        raise statistics.wrong(name, f"{size} finite numbers")
    return values


def _listed(about: Fields, kind: str) -> str:
    return ", ".join(sorted(about.part("modalities").part(kind).raw)) or "nothing"


def _names(fields: Fields, name: str) -> tuple[str, ...]:
    values = fields.items(name)
    if not values or any(not isinstance(v, str) for v in values) or len(set(values)) < len(values):
        raise fields.wrong(name, "names, each once")
    return tuple(values)
