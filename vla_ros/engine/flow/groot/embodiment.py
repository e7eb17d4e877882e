"""What the folder of a GR00T N1.6 or N1.7 says about one of its robots.

Source: NVIDIA/Isaac-GR00T ``processing_gr00t_n1d7.py`` and ``data/types.py``: a folder has
``processor_config.json`` (what each robot sees, is and does), ``statistics.json`` (of its data) and
``embodiment_id.json`` (its row among the head's encoders), in its root or in ``processor/``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vla_ros.core import Image
from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.checkpoints.files import names_in, read_json
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.groot.pictures import Framing, framed
from vla_ros.engine.flow.groot.units import (
    F64,
    Group,
    Relative,
    Scale,
    actions_to_robot,
    state_to_model,
)

PROCESSOR, STATISTICS, ROWS = "processor_config.json", "statistics.json", "embodiment_id.json"
#: Rows that NVIDIA's code knows by itself (``EMBODIMENT_TAG_TO_PROJECTOR_INDEX`` of N1.7).
KNOWN_ROWS = {
    "oxe_droid_relative_eef_relative_joint": 24,
    "xdof_relative_eef_relative_joint": 27,
    "xdof_relative_eef_relative_joint_subtask": 27,
    "real_g1_relative_eef_relative_joints": 25,
    "real_r1_pro_sharpa_relative_eef": 26,
    "real_r1_pro_sharpa_relative_eef_human": 26,
    "real_r1_pro_sharpa_relative_eef_maxinsights": 26,
    "real_r1_pro_sharpa_relative_eef_mecka": 26,
    "unitree_g1_full_body_with_waist_height_nav_cmd": 25,
    "unitree_g1_sonic": 11,
    "simpler_env_google": 0,
    "simpler_env_widowx": 1,
    "libero_sim": 2,
    "new_embodiment": 10,
    "robocasa_panda_omron": 10,
    "robocasa_gr1_tabletop": 10,
}
_FORMATS = {"XYZ_ROT6D": (Relative.ROT6D, 9), "XYZ_ROTVEC": (Relative.ROTVEC, 6)}


@dataclass(frozen=True, slots=True, eq=False)
class Embodiment:
    """A robot: its ``tag``, its ``row`` among the encoders, what it sees, is and does.

    ``clip``: states are cut to [-1, 1]. ``formal``: instructions lose capitals and punctuation.
    ``final``: the side that a framed picture is brought to (0: it stays; N1.6).
    """

    tag: str
    row: int
    cameras: tuple[str, ...]
    state: tuple[Group, ...]
    actions: tuple[Group, ...]
    horizon: int
    framing: Framing
    clip: bool = True
    formal: bool = True
    final: int = 0

    @property
    def image_size(self) -> int:
        """See Robot."""
        return self.final or self.framing.side

    @property
    def relative(self) -> bool:
        """See Robot."""
        return any(group.relative is not Relative.NOTHING for group in self.actions)

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
        return framed(image, self.framing, self.final)

    def shown(self, state: torch.Tensor) -> torch.Tensor:
        """See Robot."""
        return torch.from_numpy(state_to_model(self.state, state.numpy(), self.clip))

    def restored(self, chunk: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """See Robot."""
        values = np.asarray(chunk[:, : self.action_dim].numpy(), dtype=np.float32)
        return torch.from_numpy(actions_to_robot(self.actions, values, state.numpy())).float()

    def ends(self) -> tuple[torch.Tensor, ...]:
        """See Robot."""
        if any(group.scale is not Scale.RANGE or group.low.ndim > 1 for group in self.actions):
            return ()
        low, high = (np.concatenate([getattr(g, e) for g in self.actions]) for e in ("low", "high"))
        return torch.from_numpy(low).float(), torch.from_numpy(high).float()


def read_embodiment(directory: Path, tag: str | None, known: Mapping[str, int]) -> Embodiment:
    """The robot ``tag`` of a folder, or its only one; ``known`` rows of robots that no file says.

    CheckpointError in one line, with the robots that there are, or for what cannot be used.
    """
    folder = _folder(directory)
    settings = Fields(read_json(folder / PROCESSOR), PROCESSOR).part("processor_kwargs")
    statistics = _existing(folder, STATISTICS)
    modalities = settings.part("modality_configs").raw
    tag = choose(tag, [name for name in modalities if name in statistics], folder)
    rows = dict(known)
    if (folder / ROWS).is_file():
        rows |= read_json(folder / ROWS)
    row = rows.get(tag)
    if isinstance(row, bool) or not isinstance(row, int) or row < 0:
        raise CheckpointError(f"{folder / ROWS} gives {tag!r} the row {row!r}: wanted a number")
    return _embodiment(settings, Fields(modalities[tag], tag), Fields(statistics[tag], tag), row)


def choose(tag: str | None, known: list[str], where: Path) -> str:
    """The robot that was asked for, in any letters, or the only one. CheckpointError lists them."""
    if not known:
        raise CheckpointError(f"{where} has statistics of no robot that {PROCESSOR} knows")
    listed = ", ".join(sorted(known))
    if tag is None:
        if len(known) > 1:
            raise CheckpointError(
                f"{where} was trained for {len(known)} robots: name one with 'embodiment': {listed}"
            )
        return known[0]
    fitting = [name for name in known if name.lower() == tag.strip().lower()]
    if not fitting:
        raise CheckpointError(f"embodiment {tag!r} is unknown: {where} has {listed}")
    return fitting[0]


def _folder(directory: Path) -> Path:
    for folder in (directory, directory / "processor"):
        if (folder / PROCESSOR).is_file():
            return folder
    raise CheckpointError(
        f"no {PROCESSOR} in {directory} or its folder processor: there is {names_in(directory)}"
    )


def _existing(folder: Path, name: str) -> dict[str, Any]:
    if not (folder / name).is_file():
        raise CheckpointError(f"no {name} in {folder}: there is {names_in(folder)}")
    return read_json(folder / name)


def _embodiment(settings: Fields, modality: Fields, statistics: Fields, row: int) -> Embodiment:
    video, state, action = (modality.part(name) for name in ("video", "state", "action"))
    for part, name in ((video, "picture"), (state, "state")):
        if part.items("delta_indices") != [0]:
            raise part.wrong("delta_indices", f"[0]: one {name}, the newest, is built")
    settings.only("use_mean_std", False)
    horizon = len(action.items("delta_indices"))
    if action.items("delta_indices") != list(range(horizon)) or not horizon:
        raise action.wrong("delta_indices", "0, 1, 2 and so on")
    quantiles = settings.flag("use_percentiles", False)
    hidden = settings.flag("exclude_state", False) or state.flag("exclude_state", False)
    turns = settings.flag("apply_sincos_state_encoding", False)
    states = _state_groups(state, statistics, quantiles, turns, hidden)
    return Embodiment(
        tag=modality.where,
        row=row,
        cameras=_names(video, "modality_keys"),
        state=states,
        actions=_action_groups(settings, action, statistics, quantiles, states),
        horizon=horizon,
        framing=_framing(settings),
        clip=settings.flag("clip_outliers", True),
        formal=settings.flag("formalize_language", True),
    )


def _state_groups(
    state: Fields, statistics: Fields, quantiles: bool, turns: bool, hidden: bool
) -> tuple[Group, ...]:
    turned = _names(state, "sin_cos_embedding_keys") if turns else ()
    spread = _names(state, "mean_std_embedding_keys")
    groups = []
    for name in _names(state, "modality_keys"):
        scale = Scale.TURN if name in turned else Scale.SPREAD if name in spread else Scale.RANGE
        low, high = _ends(statistics.part("state").part(name), scale, quantiles)
        groups.append(Group(name, low, high, Scale.ZERO if hidden else scale))
    return tuple(groups)


def _action_groups(
    settings: Fields,
    action: Fields,
    statistics: Fields,
    quantiles: bool,
    states: tuple[Group, ...],
) -> tuple[Group, ...]:
    spread = _names(action, "mean_std_embedding_keys")
    names, said = _names(action, "modality_keys"), action.items("action_configs")
    if said and len(said) != len(names):
        raise action.wrong("action_configs", f"one for each of {', '.join(names)}")
    relative_at_all = settings.flag("use_relative_action", False)
    groups = []
    for place, name in enumerate(names):
        scale = Scale.SPREAD if name in spread else Scale.RANGE
        how, begin, size = Relative.NOTHING, 0, 0
        if said and relative_at_all:
            how, begin, size = _relative(Fields(said[place], f"action {name}"), name, states)
        # Of relative actions the authors' code takes the ends, also where it takes quantiles else.
        own = statistics.part("relative_action" if how is not Relative.NOTHING else "action")
        ends = quantiles and how is Relative.NOTHING
        low, high = _ends(own.part(name), scale, ends)
        if size not in (0, low.shape[-1]):
            raise CheckpointError(
                f"action {name} has {low.shape[-1]} values and is relative to {size} of the state"
            )
        groups.append(Group(name, low, high, scale, how, begin))
    return tuple(groups)


def _relative(said: Fields, name: str, states: tuple[Group, ...]) -> tuple[Relative, int, int]:
    """How an action is relative, and where in the state its origin is: begin and size."""
    if said.choice("rep", "ABSOLUTE", ("RELATIVE", "DELTA", "ABSOLUTE")) != "RELATIVE":
        return Relative.NOTHING, 0, 0
    key, begin = said.text("state_key", name), 0
    for group in states:
        if group.name == key:
            break
        begin += group.size
    else:
        raise said.wrong("state_key", f"one of {', '.join(g.name for g in states)}")
    if said.choice("type", "NON_EEF", ("EEF", "NON_EEF")) == "NON_EEF":
        return Relative.SUM, begin, group.size
    how, size = _FORMATS[said.choice("format", "DEFAULT", tuple(_FORMATS))]
    if group.size != size:
        raise said.wrong("format", f"one for the {group.size} values of {key}")
    return how, begin, size


def _ends(statistics: Fields, scale: Scale, quantiles: bool) -> tuple[F64, F64]:
    names = ("mean", "std") if scale is Scale.SPREAD else ("min", "max")
    if quantiles and scale is not Scale.SPREAD:
        names = ("q01", "q99")
    found = []
    for name in names:
        try:
            values = np.array(statistics.items(name), dtype=np.float64)
        except (TypeError, ValueError):
            raise statistics.wrong(name, "numbers") from None
        if values.ndim not in (1, 2) or not values.size or not np.isfinite(values).all():
            raise statistics.wrong(name, "finite numbers")
        found.append(values)
    low, high = found
    if low.shape != high.shape:
        raise statistics.wrong(names[1], f"as many numbers as {names[0]}")
    return low, high


def _framing(settings: Fields) -> Framing:
    """The square that a picture becomes; both ways of saying so."""
    if not settings.flag("use_albumentations", False):
        raise settings.wrong("use_albumentations", "true: the resizing of torchvision is not built")
    target, crop = settings.square("image_target_size", 256), settings.raw.get("image_crop_size")
    share = settings.raw.get("crop_fraction")
    if share is None:
        share = 1.0 if crop is None else settings.square("image_crop_size", 1) / target
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise settings.wrong("crop_fraction", "a number above 0, at most 1")
    return Framing(settings.whole("shortest_image_edge", target), float(share))


def _names(fields: Fields, name: str) -> tuple[str, ...]:
    values = fields.items(name)
    if any(not isinstance(v, str) for v in values):
        raise fields.wrong(name, "names")
    return tuple(values)
