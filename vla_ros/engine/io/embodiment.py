"""One robot of a GR00T checkpoint: its cameras, its state and actions, and how each is scaled.

Source: NVIDIA/Isaac-GR00T, of N1.6 and N1.7 ``state_action_processor.py``, ``data/utils.py`` and
``pose.py``, which compute in float64, of N1.5 ``data/transform/state_action.py``, which does in
float32. :mod:`~vla_ros.engine.io.groot` reads it from a folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vla_ros.core.rotation import turned
from vla_ros.engine.io.images.framing import F32, Framing

Floats = npt.NDArray[Any]  # float32 for N1.5, float64 for N1.6 and N1.7
#: How a group is scaled, and the statistics that it is scaled by.
MODES = {
    "min_max": ("min", "max"),
    "q99": ("q01", "q99"),
    "mean_std": ("mean", "std"),
    "binary": (),
    "sin_cos": (),
    "none": (),
}


class Relative(Enum):
    """To what a group of actions is relative, and how it is put together."""

    NOTHING = "nothing"
    SUM = "sum"  # to the state's values
    ROT6D = "xyz+rot6d"  # to the state's pose: translation and two rows of a rotation
    ROTVEC = "xyz+rotvec"  # the same with an axis-angle


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
        """Bounds of all actions of its data, in units: from and to [action_dim]; () where they are
        unknown."""
        if any(g.mode not in ("min_max", "q99") or g.low.ndim > 1 for g in self.actions):
            return ()
        low, high = (np.concatenate([getattr(g, e) for g in self.actions]) for e in ("low", "high"))
        return torch.from_numpy(low).float(), torch.from_numpy(high).float()
