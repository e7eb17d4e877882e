"""One robot of a GR00T checkpoint: its cameras, its state and actions, and how each is scaled.

Source: NVIDIA/Isaac-GR00T. N1.6 and N1.7 (``processing_gr00t_n1d7.py``, ``data/types.py``,
``state_action_processor.py``, ``data/utils.py``, ``pose.py``) say it in ``processor_config.json``
(what each robot sees, is and does), ``statistics.json`` (of its data) and ``embodiment_id.json``
(its row among the head's encoders), in a folder's root or in ``processor/``.

N1.5 (``data/schema.py``, ``policy.py``, ``data/embodiment_tags.py``,
``experiment/data_config.py``) has the statistics of every group of values by robot in
``experiment_cfg/metadata.json``. Which of them the model was shown, in which order and how they
were scaled is said by a class of the user's Python: here by a ``data_config.json`` in the folder,

    {"video": ["front", "wrist"], "state": ["single_arm", "gripper"],
     "action": ["single_arm", "gripper"], "modes": {"action.gripper": "binary"}, "crop": 0.95}

with a mode for each group that is not scaled by its least and greatest value (``min_max``): one of
``q99``, ``mean_std``, ``binary``, ``sin_cos`` or ``none``. Two of NVIDIA's own are known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image as PILImage

from vla_ros.core.rotation import turned
from vla_ros.core.types import Image
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.config import Fields
from vla_ros.engine.io.files import names_in, read_json, write_json
from vla_ros.engine.io.images.steps import pillow_resize

PROCESSOR, STATISTICS, ROWS = "processor_config.json", "statistics.json", "embodiment_id.json"
METADATA, DATA_CONFIG = "experiment_cfg/metadata.json", "data_config.json"
#: The head's row of encoders for robots whose row no file says: NVIDIA's
#: ``EMBODIMENT_TAG_TO_PROJECTOR_INDEX`` (N1.7, N1.6) and ``EMBODIMENT_TAG_MAPPING`` (N1.5).
N17_ROWS = {
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
N16_ROWS = {
    "robocasa_panda_omron": 13,
    "gr1": 20,
    "behavior_r1_pro": 24,
    "unitree_g1": 8,
    "libero_panda": 2,
    "oxe_google": 0,
    "oxe_widowx": 1,
    "oxe_droid": 16,
    "new_embodiment": 10,
}
N15_ROWS = {"new_embodiment": 31, "oxe_droid": 17, "agibot_genie1": 26, "gr1": 24}
#: The statistics that a mode of N1.5 reads.
MODES = {
    "min_max": ("min", "max"),
    "q99": ("q01", "q99"),
    "mean_std": ("mean", "std"),
    "binary": (),
    "sin_cos": (),
    "none": (),
}
_ARMS = ["left_arm", "right_arm", "left_hand", "right_hand", "waist"]
_GENIE = ("left_arm_joint", "right_arm_joint", "left_effector", "right_effector", "head", "waist")
#: NVIDIA's fourier_gr1_arms_waist and agibot_genie1.
_DATA_CONFIGS: dict[str, dict[str, object]] = {
    "gr1": {
        "video": ["ego_view"],
        "state": _ARMS,
        "action": _ARMS,
        "modes": {f"state.{name}": "sin_cos" for name in _ARMS},
    },
    "agibot_genie1": {
        "video": ["top_head", "hand_left", "hand_right"],
        "state": [f"{name}_position" for name in _GENIE],
        "action": [*(f"{name}_position" for name in _GENIE), "robot_velocity"],
    },
}
CROP = 0.95  # what of an image stays, in all of NVIDIA's data configurations of N1.5

Pixels = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]
Floats = npt.NDArray[Any]  # float32 for N1.5, float64 for N1.6 and N1.7

# ------------------------------------------------------------------------------------------------
# Groups of values


class Relative(Enum):
    """To what a group of actions is relative, and how it is put together."""

    NOTHING = "nothing"
    SUM = "sum"  # to the state's values
    ROT6D = "xyz+rot6d"  # to the state's pose: translation and two rows of a rotation
    ROTVEC = "xyz+rotvec"  # the same with an axis-angle


_FORMATS = {"XYZ_ROT6D": (Relative.ROT6D, 9), "XYZ_ROTVEC": (Relative.ROTVEC, 6)}


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A run of values that belong together, scaled to about [-1, 1].

    ``mode`` is one of :data:`MODES`, or ``zero``: the model is shown none of them. ``low`` and
    ``high``, least and greatest or mean and deviation, are [size], or [rows, size] of actions with
    statistics of their own for every row; float32 where N1.5's code computes, float64 where that
    of N1.6 and N1.7 does. ``clip``: what a range scales is cut to [-1, 1]. ``begin``: where in the
    state the values are that an action is ``relative`` to.
    """

    name: str
    low: Floats
    high: Floats
    mode: str = "min_max"
    clip: bool = True
    relative: Relative = Relative.NOTHING
    begin: int = 0

    @property
    def size(self) -> int:
        """Values of the robot."""
        return int(self.low.shape[-1])

    @property
    def wide(self) -> int:
        """Values of the model."""
        return self.size * (2 if self.mode == "sin_cos" else 1)

    @property
    def _of_n15(self) -> bool:
        return self.low.dtype == np.float32

    def normalize(self, values: F32) -> F32:
        """The robot's state [size] -> the model's [wide], float32."""
        if self.mode == "zero":
            return np.zeros_like(values)
        if self.mode == "none":
            return values
        if self.mode == "binary":
            return (values > 0.5).astype(np.float32)
        if self.mode == "sin_cos":
            if self._of_n15:  # its code asks torch, whose last bit is not numpy's
                angles = torch.from_numpy(values)
                return torch.cat((angles.sin(), angles.cos())).numpy()
            return np.concatenate([np.sin(values), np.cos(values)])
        if self.mode == "mean_std":
            moves = self.high != 0
            scaled = (values - self.low) / np.where(moves, self.high, 1)
            return np.where(moves, scaled, values).astype(np.float32)
        moves = self.low != self.high
        unit = ((values - self.low) / np.where(moves, self.high - self.low, 1)).astype(np.float32)
        out = np.where(moves, 2 * unit - 1, values if self.mode == "q99" else np.float32(0))
        return np.clip(out, -1.0, 1.0) if self.clip else out

    def unnormalize(self, values: F32, first: int = 0) -> Floats:
        """The model's actions [n, size], the chunk's from its row ``first`` on -> the robot's, in
        the precision of the statistics."""
        if self.mode == "binary":
            return (values > 0.5).astype(np.float32)
        if self.mode == "none":
            return values
        low, high = self._of_rows(first, len(values))
        if self.mode == "mean_std":
            out = values * high + low
            if self._of_n15:
                return out
            return np.where(high != 0, out, values).astype(np.float32).astype(np.float64)
        if self.clip:
            values = np.clip(values, -1.0, 1.0)
        return np.asarray((values + 1.0) / 2.0 * (high - low) + low, dtype=low.dtype)

    def _of_rows(self, first: int, count: int) -> tuple[Floats, Floats]:
        low, high = self.low, self.high
        return (low, high) if low.ndim == 1 else (low[first:][:count], high[first:][:count])

    def renormalize(self, values: Floats) -> F32:
        """The robot's actions [n, size], a chunk's first -> the model's. Of what does not move,
        which any value of the model's says, zeros."""
        low, high = self._of_rows(0, len(values))
        if self.mode in ("binary", "none"):
            return values.astype(np.float32)
        if self.mode == "mean_std":
            moves = high != 0
            out = np.where(moves, (values - low) / np.where(moves, high, 1), values)
        else:
            moves = low != high
            out = 2 * (values - low) / np.where(moves, high - low, 1) - 1
            out = np.where(moves, out, 0)
        return np.asarray(out, dtype=np.float32)

    def absolute(self, values: Floats, state: F32) -> Floats:
        """Actions [H, size] that are relative to the state [n] -> absolute ones."""
        if self.relative is Relative.NOTHING:
            return values
        origin = state[self.begin : self.begin + self.size].astype(np.float64)
        if self.relative is Relative.SUM:
            return values + origin
        out = np.empty_like(values)
        for row, value in zip(out, values, strict=True):
            if self.relative is Relative.ROT6D:
                turn = _of_six(origin[3:])
                row[:3] = origin[:3] + turn @ value[:3]
                row[3:] = (turn @ _of_six(value[3:]))[:2].flatten()
            else:
                row[:3] = origin[:3] + _rotated(origin[3:], value[:3])
                row[3:] = turned(origin[3:], value[3:])
        return out

    def relative_to(self, values: Floats, state: F32) -> Floats:
        """Absolute actions [n, size] -> what :meth:`absolute` makes them of."""
        if self.relative is Relative.NOTHING:
            return values
        origin = state[self.begin : self.begin + self.size].astype(np.float64)
        if self.relative is Relative.SUM:
            return values - origin
        out = np.empty_like(values)
        for row, value in zip(out, values, strict=True):
            if self.relative is Relative.ROT6D:
                back = _of_six(origin[3:]).T
                row[:3] = back @ (value[:3] - origin[:3])
                row[3:] = (back @ _of_six(value[3:]))[:2].flatten()
            else:
                row[:3] = _rotated(-origin[3:], value[:3] - origin[:3])
                row[3:] = turned(-origin[3:], value[3:])
        return out


def _of_six(six: Floats) -> Floats:
    """The first two rows of a rotation, made perpendicular -> the rotation [3, 3]."""
    first = six[:3] / np.linalg.norm(six[:3])
    second = six[3:] - np.dot(first, six[3:]) * first
    second = second / np.linalg.norm(second)
    return np.stack([first, second, np.cross(first, second)])


def _rotated(rotation: Floats, vector: Floats) -> Floats:
    """``vector`` [3] turned by an axis-angle [3] (Rodrigues)."""
    angle = float(np.linalg.norm(rotation))
    if angle < 1e-12:
        return vector
    axis = rotation / angle
    across = np.cross(axis, vector) * np.sin(angle)
    along = axis * (axis @ vector) * (1.0 - np.cos(angle))
    out: Floats = vector * np.cos(angle) + across + along
    return out


# ------------------------------------------------------------------------------------------------
# Images


@dataclass(frozen=True, slots=True)
class Framing:
    """How an image becomes a square of ``side`` pixels.

    N1.6, N1.7: it is padded to a square and shrunk, its middle ``share`` stays and is brought to
    ``side`` again; ``final`` is the side that N1.6 brings it to then (0: it stays). N1.5 (not
    ``letterbox``): its middle ``share``, whatever its shape, is stretched to the square.
    """

    side: int
    share: float = 1.0
    final: int = 0
    letterbox: bool = True


def framed(image: Image, framing: Framing) -> torch.Tensor:
    """uint8 [h, w, 3] -> float32 [3, s, s] in [-1, 1]. ValueError for what is no image.

    Sources: ``image_augmentations.py`` (the transform of evaluation, by way of albumentations) and
    ``fetch_image`` of ``processing_eagle3_vl.py``, which brings N1.6's square to a multiple of 28
    pixels with Pillow's bicubic; n1.5 ``data/transform/video.py``.
    """
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or 0 in image.shape:
        raise ValueError(f"image is {image.dtype} {image.shape}: give uint8 [h, w, 3]")
    if not framing.letterbox:
        whole = _center_crop(image, framing)
    else:
        square = resized(letterboxed(np.asarray(image)), framing.side)
        kept = max(1, int(framing.side * framing.share))
        begin = (framing.side - kept) // 2
        middle = square[begin : begin + kept, begin : begin + kept]
        pixels = np.ascontiguousarray(resized(middle, framing.side))
        if framing.final not in (0, framing.side):
            side = framing.final
            brought = pillow_resize(
                PILImage.fromarray(pixels), side, side, PILImage.Resampling.BICUBIC
            )
            pixels = np.array(brought)
        whole = torch.from_numpy(pixels).permute(2, 0, 1)
    return (whole.float() - 127.5) / 127.5  # in one step, as the authors' image processors do it


def _center_crop(image: Image, framing: Framing) -> torch.Tensor:
    """torchvision's center crop and antialiased resize: uint8 [3, side, side]."""
    # A copy: the camera's buffer may be shared memory that is written again.
    pixels = torch.from_numpy(image.copy()).float() / 255.0
    height, width = image.shape[:2]
    rows, columns = max(1, int(height * framing.share)), max(1, int(width * framing.share))
    top, left = round((height - rows) / 2.0), round((width - columns) / 2.0)
    middle = pixels[top : top + rows, left : left + columns].permute(2, 0, 1)[None]
    size = (framing.side, framing.side)
    if (rows, columns) != size:
        middle = F.interpolate(middle, size, mode="bilinear", align_corners=False, antialias=True)
    return (middle[0] * 255).to(torch.uint8)


def letterboxed(image: Pixels) -> Pixels:
    """Black bars above and below, or left and right: [h, w, 3] -> [s, s, 3]."""
    height, width = image.shape[:2]
    side = max(height, width)
    if height == width:
        return image
    top, left = (side - height) // 2, (side - width) // 2
    out = np.zeros((side, side, 3), np.uint8)
    out[top : top + height, left : left + width] = image
    return out


def resized(image: Pixels, side: int) -> Pixels:
    """OpenCV's INTER_AREA from one square to another, to the last bit.

    Source: OpenCV 4 ``resize.cpp``, whose whole numbers are computed here: shrinking is the mean
    over an area in float32, growing is linear in steps of 1 / 2048.
    """
    source = len(image)
    if source == side:
        return image
    if source < side:
        return _grown(image, side)
    if source % side == 0:
        return _by_whole_blocks(image, source // side)
    places, weights = _area(source, side)
    rows: Any = 0.0
    for tap in range(places.shape[1]):
        rows = rows + image[:, places[:, tap]] * weights[:, tap, None]
    out: Any = 0.0
    for tap in range(places.shape[1]):
        out = out + rows[places[:, tap]] * weights[:, tap, None, None]
    return np.clip(np.rint(out), 0, 255).astype(np.uint8)


def _by_whole_blocks(image: Pixels, by: int) -> Pixels:
    side = len(image) // by
    sums = image.astype(np.int32).reshape(side, by, side, by, 3).sum((1, 3))
    if by == 2:  # a shortcut of OpenCV's that rounds halves up, and not to even
        return ((sums + 2) >> 2).astype(np.uint8)
    means = sums.astype(np.float32) * np.float32(1.0 / by**2)
    return np.clip(np.rint(means), 0, 255).astype(np.uint8)


@lru_cache(maxsize=8)
def _area(source: int, side: int) -> tuple[npt.NDArray[np.int64], F32]:
    """What each pixel of the smaller image takes of the larger one, along an axis: places and
    weights [side, taps]."""
    scale = source / side
    taps = math.ceil(scale) + 2
    places, weights = np.zeros((side, taps), np.int64), np.zeros((side, taps), np.float32)
    for to in range(side):
        begin = to * scale
        end, cell = begin + scale, min(scale, source - begin)
        last = min(math.floor(end), source - 1)
        first = min(math.ceil(begin), last)
        found: list[tuple[int, float]] = []
        if first - begin > 1e-3:
            found.append((first - 1, (first - begin) / cell))
        found += [(place, 1.0 / cell) for place in range(first, last)]
        if end - last > 1e-3:
            found.append((last, min(end - last, 1.0, cell) / cell))
        for tap, (place, weight) in enumerate(found):
            places[to, tap], weights[to, tap] = place, weight
    return places, weights


def _grown(image: Pixels, side: int) -> Pixels:
    low, shares = _linear(len(image), side)
    high = np.minimum(low + 1, len(image) - 1)
    x = image.astype(np.int32)
    rows = x[:, low] * shares[0, :, None] + x[:, high] * shares[1, :, None]
    above = (shares[0, :, None, None] * (rows[low] >> 4)) >> 16
    below = (shares[1, :, None, None] * (rows[high] >> 4)) >> 16
    return np.clip((above + below + 2) >> 2, 0, 255).astype(np.uint8)


@lru_cache(maxsize=8)
def _linear(source: int, side: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The lower of the two pixels each one lies between [side], and both shares [2, side] in
    steps of 1 / 2048."""
    to = np.arange(side)
    low = np.floor(to * (source / side)).astype(np.int64)
    rest = ((to + 1) - (low + 1) * (side / source)).astype(np.float32)
    rest = np.where(rest <= 0, np.float32(0), rest - np.floor(rest)).astype(np.float32)
    last = low >= source - 1
    rest[last], low[last] = 0.0, source - 1
    shares = np.stack([np.float32(1) - rest, rest]) * np.float32(2048)
    return low, np.rint(shares).astype(np.int32)


# ------------------------------------------------------------------------------------------------
# A robot


@dataclass(frozen=True, slots=True, eq=False)
class Embodiment:
    """A robot that a GR00T was trained for: what it sees, is and does.

    ``tag`` is its name in the folder, ``row`` its place among the head's encoders; ``horizon``
    actions of a chunk are its own. ``formal``: instructions lose capitals and punctuation (N1.6,
    N1.7).
    """

    tag: str
    row: int
    cameras: tuple[str, ...]
    state: tuple[Group, ...]
    actions: tuple[Group, ...]
    horizon: int
    framing: Framing
    formal: bool = True

    @property
    def image_size(self) -> int:
        """The side of an image as the model sees it."""
        return self.framing.final or self.framing.side

    @property
    def relative(self) -> bool:
        """Some of its actions are relative to its state, which is positions of joints."""
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

    def normalize(self, state: torch.Tensor) -> torch.Tensor:
        """Its state float32 [state_dim] -> the model's [state_wide]."""
        parts = np.split(state.numpy(), np.cumsum([g.size for g in self.state])[:-1])
        shown = [g.normalize(values) for g, values in zip(self.state, parts, strict=True)]
        return torch.from_numpy(np.concatenate(shown))

    def unnormalize(self, chunk: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """A chunk [H, D] of the model -> its actions float32 [H, action_dim]; the state [s] is what
        some of them are relative to."""
        made, begin = [], 0
        for group in self.actions:
            values = chunk[:, begin : begin + group.size].numpy()
            made.append(group.absolute(group.unnormalize(values), state.numpy()))
            begin += group.size
        return torch.from_numpy(np.concatenate(made, axis=1)).float()

    def reanchored(
        self, rows: torch.Tensor, first: int, then: torch.Tensor, now: torch.Tensor
    ) -> torch.Tensor:
        """Rows [n, D] of a chunk from its row ``first`` on, said in the state ``then`` -> the same
        actions as the first rows of one that is said in the state ``now``."""
        anchored = [g.relative is not Relative.NOTHING or g.low.ndim > 1 for g in self.actions]
        if not any(anchored):
            return rows
        out, begin = rows.cpu().clone(), 0
        for group, counts in zip(self.actions, anchored, strict=True):
            part = slice(begin, begin + group.size)
            if counts:
                said = group.unnormalize(out[:, part].numpy(), first)
                kept = group.relative_to(group.absolute(said, then.numpy()), now.numpy())
                out[:, part] = torch.from_numpy(group.renormalize(kept))
            begin += group.size
        return out.to(rows.device)

    def ends(self) -> tuple[torch.Tensor, ...]:
        """Where all actions of its data lie, in units: from and to [action_dim]; () where nothing
        says."""
        if any(g.mode not in ("min_max", "q99") or g.low.ndim > 1 for g in self.actions):
            return ()
        low, high = (np.concatenate([getattr(g, e) for g in self.actions]) for e in ("low", "high"))
        return torch.from_numpy(low).float(), torch.from_numpy(high).float()


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


def _names(fields: Fields, name: str, *, once: bool = False) -> tuple[str, ...]:
    """Names in a list; ``once``: at least one, and none twice."""
    values = fields.items(name)
    strange = any(not isinstance(v, str) for v in values)
    if strange or (once and (not values or len(set(values)) < len(values))):
        raise fields.wrong(name, "names, each once" if once else "names")
    return tuple(values)


def _numbers(statistics: Fields, name: str, size: int | None = None) -> Floats:
    """Finite statistics: float32 [size], or without a size float64 [n] or [rows, n]."""
    count = "" if size is None else f"{size} "
    try:
        values = np.array(statistics.items(name))
    except ValueError:
        raise statistics.wrong(name, f"{count}numbers") from None
    if values.dtype.kind not in "biuf":
        raise statistics.wrong(name, f"{count}numbers")
    with np.errstate(over="ignore"):  # what is too large for float32 is not finite there
        values = values.astype(np.float64 if size is None else np.float32)
    fits = values.size and values.ndim in (1, 2) if size is None else values.shape == (size,)
    if not fits or not np.isfinite(values).all():
        raise statistics.wrong(name, f"{count}finite numbers")
    return values


# ------------------------------------------------------------------------------------------------
# The processor files of N1.6 and N1.7


def read_processor(directory: Path, tag: str | None, known: Mapping[str, int]) -> Embodiment:
    """The robot ``tag`` of a folder, or its only one; ``known`` rows of robots that no file says.

    CheckpointError in one line, with the robots that there are, or for what cannot be used.
    """
    folders = (directory, directory / "processor")
    folder = next((f for f in folders if (f / PROCESSOR).is_file()), None)
    if folder is None:
        raise CheckpointError(
            f"no {PROCESSOR} in {directory} or its folder processor: there is {names_in(directory)}"
        )
    settings = Fields(read_json(folder / PROCESSOR), PROCESSOR).part("processor_kwargs")
    if not (folder / STATISTICS).is_file():
        raise CheckpointError(f"no {STATISTICS} in {folder}: there is {names_in(folder)}")
    known_statistics = read_json(folder / STATISTICS)
    modalities = settings.part("modality_configs").raw
    tag = choose(tag, [name for name in modalities if name in known_statistics], folder)
    rows = dict(known)
    if (folder / ROWS).is_file():
        rows |= read_json(folder / ROWS)
    row = rows.get(tag)
    if isinstance(row, bool) or not isinstance(row, int) or row < 0:
        raise CheckpointError(f"{folder / ROWS} gives {tag!r} the row {row!r}: wanted a number")
    about, statistics = Fields(modalities[tag], tag), Fields(known_statistics[tag], tag)
    video, state, action = (about.part(name) for name in ("video", "state", "action"))
    for part, name in ((video, "picture"), (state, "state")):
        if part.items("delta_indices") != [0]:
            raise part.wrong("delta_indices", f"[0]: one {name}, the newest, is built")
    settings.only("use_mean_std", False)
    horizon = len(action.items("delta_indices"))
    if action.items("delta_indices") != list(range(horizon)) or not horizon:
        raise action.wrong("delta_indices", "0, 1, 2 and so on")
    states = _state_groups(settings, state, statistics)
    return Embodiment(
        tag=tag,
        row=row,
        cameras=_names(video, "modality_keys"),
        state=states,
        actions=_action_groups(settings, action, statistics, states),
        horizon=horizon,
        framing=_framing(settings),
        formal=settings.flag("formalize_language", True),
    )


def _state_groups(settings: Fields, state: Fields, statistics: Fields) -> tuple[Group, ...]:
    quantiles = settings.flag("use_percentiles", False)
    hidden = settings.flag("exclude_state", False) or state.flag("exclude_state", False)
    turns = settings.flag("apply_sincos_state_encoding", False)
    clip = settings.flag("clip_outliers", True)
    turned_keys = _names(state, "sin_cos_embedding_keys") if turns else ()
    spread = _names(state, "mean_std_embedding_keys")
    groups = []
    for name in _names(state, "modality_keys"):
        turns_here, spreads = name in turned_keys, name in spread and name not in turned_keys
        low, high = _ends(statistics.part("state").part(name), spreads, quantiles)
        if not spreads:  # the authors' isclose, of what does not move
            high = np.where(np.isclose(high, low), low, high)
        mode = "sin_cos" if turns_here else "mean_std" if spreads else "min_max"
        groups.append(Group(name, low, high, "zero" if hidden else mode, clip))
    return tuple(groups)


def _action_groups(
    settings: Fields, action: Fields, statistics: Fields, states: tuple[Group, ...]
) -> tuple[Group, ...]:
    quantiles = settings.flag("use_percentiles", False)
    spread = _names(action, "mean_std_embedding_keys")
    names, said = _names(action, "modality_keys"), action.items("action_configs")
    if said and len(said) != len(names):
        raise action.wrong("action_configs", f"one for each of {', '.join(names)}")
    relative_at_all = settings.flag("use_relative_action", False)
    groups = []
    for place, name in enumerate(names):
        how, begin, size = Relative.NOTHING, 0, 0
        if said and relative_at_all:
            how, begin, size = _relative(Fields(said[place], f"action {name}"), name, states)
        # Of relative actions the authors' code takes the ends, also where it takes quantiles else.
        own = statistics.part("relative_action" if how is not Relative.NOTHING else "action")
        ends = quantiles and how is Relative.NOTHING
        low, high = _ends(own.part(name), name in spread, ends)
        if size not in (0, low.shape[-1]):
            raise CheckpointError(
                f"action {name} has {low.shape[-1]} values and is relative to {size} of the state"
            )
        mode = "mean_std" if name in spread else "min_max"
        groups.append(Group(name, low, high, mode, relative=how, begin=begin))
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


def _ends(statistics: Fields, spreads: bool, quantiles: bool) -> tuple[Floats, Floats]:
    """Mean and deviation, or two quantiles, or least and greatest."""
    mode = "mean_std" if spreads else "q99" if quantiles else "min_max"
    first, second = MODES[mode]
    low, high = _numbers(statistics, first), _numbers(statistics, second)
    if low.shape != high.shape:
        raise statistics.wrong(second, f"as many numbers as {first}")
    return low, high


def _framing(settings: Fields) -> Framing:
    """The square that an image becomes; both ways of saying so."""
    if not settings.flag("use_albumentations", False):
        raise settings.wrong("use_albumentations", "true: the resizing of torchvision is not built")
    target, crop = settings.square("image_target_size", 256), settings.raw.get("image_crop_size")
    share = settings.raw.get("crop_fraction")
    if share is None:
        share = 1.0 if crop is None else settings.square("image_crop_size", 1) / target
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise settings.wrong("crop_fraction", "a number above 0, at most 1")
    return Framing(settings.whole("shortest_image_edge", target), float(share))


def write_processor(directory: Path, robot: Embodiment) -> None:
    """The three files for one robot, with all that :func:`read_processor` reads back. Its groups
    are scaled by a range, and its actions are relative to nothing."""
    newest, framing = [0], robot.framing
    modality = {
        "video": {"delta_indices": newest, "modality_keys": list(robot.cameras)},
        "state": {"delta_indices": newest, "modality_keys": [g.name for g in robot.state]},
        "action": {
            "delta_indices": list(range(robot.horizon)),
            "modality_keys": [g.name for g in robot.actions],
        },
        "language": {"delta_indices": newest, "modality_keys": ["task"]},
    }
    settings = {
        "modality_configs": {robot.tag: modality},
        "image_target_size": [framing.side] * 2,
        "shortest_image_edge": framing.side,
        "crop_fraction": framing.share,
        "use_albumentations": True,
        "formalize_language": robot.formal,
        "clip_outliers": all(group.clip for group in robot.state),
    }
    said = ("min", "max", "mean", "std")
    statistics = {"state": _said(robot.state, said), "action": _said(robot.actions, said)}
    processor = {"processor_class": "Gr00tProcessor", "processor_kwargs": settings}
    write_json(directory / PROCESSOR, processor)
    write_json(directory / STATISTICS, {robot.tag: statistics})
    write_json(directory / ROWS, {robot.tag: robot.row})


def _said(groups: tuple[Group, ...], names: tuple[str, ...]) -> dict[str, dict[str, list[float]]]:
    """Statistics of these names, of which the ends are known."""
    out = {}
    for group in groups:
        low, high = group.low.astype(np.float64), group.high.astype(np.float64)
        known = {"min": low, "max": high, "q01": low, "q99": high}
        known |= {"mean": (low + high) / 2, "std": (high - low) / 4}
        out[group.name] = {name: known[name].tolist() for name in names}
    return out


# ------------------------------------------------------------------------------------------------
# The metadata of N1.5


def read_metadata(
    directory: Path, tag: str | None, known: Mapping[str, int] = N15_ROWS
) -> Embodiment:
    """The robot ``tag`` of a folder, or its only one; ``known`` rows of robots. The side of its
    images and its horizon are config.json's: here they are the published ones.

    CheckpointError in one line, with the robots that there are, or for what cannot be used.
    """
    path = directory / METADATA
    if not path.is_file():
        raise CheckpointError(f"no {METADATA} in {directory}: there is {names_in(directory)}")
    metadata = read_json(path)
    tag = choose(tag, sorted(metadata), directory)
    if tag not in known:
        raise CheckpointError(
            f"{path} has a robot {tag!r}, which N1.5 gives no encoders: {', '.join(known)}"
        )
    about = Fields(metadata[tag], tag)
    said = _data_config(directory, tag, about)
    modes = said.part("modes")
    cameras = _names(said, "video", once=True)
    for name in cameras:
        if name not in about.part("modalities").part("video").raw:
            raise said.wrong("video", f"of {_listed(about, 'video')}")
    groups = {
        kind: tuple(_group(about, kind, name, modes) for name in _names(said, kind, once=True))
        for kind in ("state", "action")
    }
    strange = set(modes.raw) - {f"{k}.{g.name}" for k in groups for g in groups[k]}
    if strange:
        raise CheckpointError(f"modes has {', '.join(sorted(strange))}, of which nothing is used")
    crop = said.number("crop", CROP)
    if crop > 1:
        raise said.wrong("crop", "a number above 0, at most 1")
    framing = Framing(224, crop, letterbox=False)
    states, actions = groups["state"], groups["action"]
    return Embodiment(tag, known[tag], cameras, states, actions, 16, framing, formal=False)


def _data_config(directory: Path, tag: str, about: Fields) -> Fields:
    path = directory / DATA_CONFIG
    if path.is_file():
        return Fields(read_json(path), DATA_CONFIG)
    if tag in _DATA_CONFIGS:
        return Fields(_DATA_CONFIGS[tag], tag)
    kinds = ("video", "state", "action")
    names = {kind: sorted(about.part("modalities").part(kind).raw) for kind in kinds}
    raise CheckpointError(
        f"no {DATA_CONFIG} in {directory}: what {tag} sees, is and does, and in which order, is in"
        f" the Python that trained it; write it down, of {json.dumps(names)}"
    )


def _group(about: Fields, kind: str, name: str, modes: Fields) -> Group:
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
    low, high = ends or (np.zeros(shape[0], np.float32), np.ones(shape[0], np.float32))
    return Group(name, low, high, mode, clip=kind == "state" and mode == "q99")


def _listed(about: Fields, kind: str) -> str:
    return ", ".join(sorted(about.part("modalities").part(kind).raw)) or "nothing"


def write_metadata(directory: Path, robot: Embodiment) -> None:
    """Both files for one robot, that :func:`read_metadata` reads back; its groups are scaled by
    their least and greatest values."""
    kinds = {"state": robot.state, "action": robot.actions}
    said = ("min", "max", "q01", "q99", "mean", "std")
    camera = {"resolution": [256, 256], "channels": 3, "fps": 20.0}
    modalities: dict[str, dict[str, Any]] = {"video": dict.fromkeys(robot.cameras, camera)}
    for kind, groups in kinds.items():
        modalities[kind] = {g.name: {"shape": [g.size], "continuous": True} for g in groups}
    metadata = {
        "statistics": {kind: _said(groups, said) for kind, groups in kinds.items()},
        "modalities": modalities,
        "embodiment_tag": robot.tag,
    }
    (directory / METADATA).parent.mkdir(parents=True, exist_ok=True)
    write_json(directory / METADATA, {robot.tag: metadata})
    names = {kind: [group.name for group in groups] for kind, groups in kinds.items()}
    write_json(directory / DATA_CONFIG, {"video": list(robot.cameras), **names})
