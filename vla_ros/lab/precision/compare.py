"""One engine against the reference on the same frames: errors, flips, displacements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vla_ros.action_space import ActionSpace
from vla_ros.core import Floats
from vla_ros.precision.observed import Choices, Layout, Stage, Told
from vla_ros.precision.tables import moved_rows
from vla_ros.rotation import way


@dataclass(frozen=True, slots=True)
class StageError:
    """How far a stage is from the reference's, |a - r| / |r| over all rows of a frame.

    ``worst`` of all frames, on frame ``frame``; ``mean`` over them. ``profile``: by row, the mean
    over the frames, by the typical row's length; rows of the image first (``layout``), then the
    others, aligned at their ends.
    """

    name: str
    worst: float
    mean: float
    frame: int
    layout: Layout
    profile: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Flip:
    """A discrete choice that is another one than the reference's.

    ``exact``: it is an index that no rounding may move. ``margin`` says how clear the reference
    was: of an argmax :func:`surer`, of an index how far the row that was used is on the way to the
    other one, of a side that of the tokens behind it or, without any, how far from the middle it
    was; all 0..1. ``gap``: of an argmax, in logits.
    """

    frame: int
    name: str
    place: int
    reference: int
    measured: int
    margin: float
    exact: bool
    gap: float | None = None


@dataclass(frozen=True, slots=True)
class Displacement:
    """The largest difference of an action: of an end effector in mm, of rotations (or joints) in
    degrees, of a gripper in its opening 0..1. ``frame``: where the farthest of them is."""

    mm: float
    degrees: float
    gripper: float
    frame: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """All of it. ``agreement``: the share of tokens that are the reference's, where the policy says
    tokens. ``checked``: how many discrete choices of each kind were looked at. ``apart``: of
    every frame mm, degrees and opening, as in ``displacement``."""

    frames: int
    stages: tuple[StageError, ...]
    flips: tuple[Flip, ...]
    checked: tuple[tuple[str, int], ...]
    displacement: Displacement
    agreement: float | None
    apart: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class FrameResult:
    """One frame's share of a :class:`Comparison`: small, so that a frame's tensors can go.

    ``errors`` by stage, ``rows`` of every stage the errors of its patches and of its other rows;
    ``same``: equal tokens, and all.
    """

    names: tuple[str, ...]
    layouts: tuple[Layout, ...]
    errors: tuple[float, ...]
    rows: tuple[tuple[np.ndarray, np.ndarray], ...]
    flips: tuple[Flip, ...]
    checked: dict[str, int]
    apart: tuple[float, float, float]
    same: tuple[int, int]


def compare_frame(number: int, right: Told, told: Told, space: ActionSpace) -> FrameResult:
    """What the measured engine said of frame ``number``, against what the reference did."""
    flips: list[Flip] = []
    checked: dict[str, int] = {}
    for one, other in zip(right.choices, told.choices, strict=True):
        checked[one.name] = len(one.picked)
        flips += _flipped(number, one, other, flips)
    flips += _moved(number, right, told, checked)
    pairs = list(zip(told.stages, right.stages, strict=True))
    equal = [a == b for a, b in zip(right.tokens, told.tokens, strict=True)]
    return FrameResult(
        names=tuple(r.name for _, r in pairs),
        layouts=tuple(r.layout for _, r in pairs),
        errors=tuple(relative_error(m.values, r.values) for m, r in pairs),
        rows=tuple(_rows(m, r) for m, r in pairs),
        flips=tuple(flips),
        checked=checked,
        apart=differences(told.actions, right.actions, space),
        same=(sum(equal), len(equal)),
    )


def summed(frames: Sequence[FrameResult]) -> Comparison:
    """All frames together."""
    checked: dict[str, int] = {}
    for frame in frames:
        for name, count in frame.checked.items():
            checked[name] = checked.get(name, 0) + count
    same, tokens = (sum(frame.same[i] for frame in frames) for i in (0, 1))
    apart = tuple(frame.apart for frame in frames)
    return Comparison(
        frames=len(frames),
        stages=tuple(_stage(frames, place) for place in range(len(frames[0].names))),
        flips=tuple(flip for frame in frames for flip in frame.flips),
        checked=tuple(checked.items()),
        displacement=_displacement(apart),
        agreement=same / tokens if tokens else None,
        apart=apart,
    )


def compare(reference: Sequence[Told], measured: Sequence[Told], space: ActionSpace) -> Comparison:
    """Both engines' frames, in the same order."""
    pairs = zip(reference, measured, strict=True)
    return summed([compare_frame(n, right, told, space) for n, (right, told) in enumerate(pairs)])


def surer(gap: float) -> float:
    """Of two choices that lie ``gap`` apart in logits, (p - q) / (p + q): 0 alike, 1 no doubt.

    Of two alone that is the difference of their probabilities. It is taken of these two, since
    where neighbouring bins share the probability no difference of it is ever large: the surest
    token of `shipped:tabletop` has 0.23 on the gate's frames, and no flip can lie further apart.
    """
    return math.tanh(gap / 2)


def relative_error(measured: torch.Tensor, reference: torch.Tensor) -> float:
    """|a - r| / |r|; infinite where a value is not finite, 0 where both are nothing."""
    off = float((measured - reference).norm())
    size = float(reference.norm())
    if not np.isfinite(off):
        return float("inf")
    return off / size if size > 0 else (0.0 if off == 0 else float("inf"))


def _stage(frames: Sequence[FrameResult], place: int) -> StageError:
    errors = [frame.errors[place] for frame in frames]
    worst = int(np.argmax(errors))
    first = frames[0]
    profile = _profile([frame.rows[place] for frame in frames])
    return StageError(
        first.names[place],
        errors[worst],
        float(np.mean(errors)),
        worst,
        first.layouts[place],
        profile,
    )


def _rows(measured: Stage, reference: Stage) -> tuple[np.ndarray, np.ndarray]:
    """Errors by row: of the image's patches, and of the rows behind it."""
    off = (measured.values - reference.values).norm(dim=1)
    typical = reference.values.norm() / max(len(off), 1) ** 0.5
    errors = (off / typical.clamp_min(1e-12)).numpy()
    layout = reference.layout
    end = layout.first + layout.patches
    return errors[layout.first : end], np.concatenate((errors[: layout.first], errors[end:]))


def _profile(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, ...]:
    patches = np.mean([p for p, _ in parts], axis=0)
    longest = max(len(rest) for _, rest in parts)
    rest = np.full((len(parts), longest), np.nan)
    for row, (_, values) in zip(rest, parts, strict=True):
        row[longest - len(values) :] = values
    others = np.nanmean(rest, axis=0) if longest else np.zeros(0)
    return tuple(np.concatenate((patches, others)).tolist())


def _flipped(frame: int, right: Choices, told: Choices, before: Sequence[Flip]) -> list[Flip]:
    """``before``: the frame's flips so far. A side that follows from tokens is no surer than they
    were."""
    if len(right.picked) != len(told.picked):
        found = (len(right.picked), len(told.picked))
        return [Flip(frame, right.name, -1, found[0], found[1], 1.0, right.exact)]
    out = []
    for place in torch.nonzero(right.picked != told.picked).flatten().tolist():
        one, other = int(right.picked[place]), int(told.picked[place])
        margin, gap = 1.0, None
        if right.logits is not None:
            row = right.logits[place]
            gap = float(row[one] - row[other])
            margin = surer(gap)
        elif right.values is not None:
            margin = min(2 * abs(float(right.values[place]) - 0.5), 1.0)
            margin = max((flip.margin for flip in before if flip.gap is not None), default=margin)
        out.append(Flip(frame, right.name, place, one, other, margin, right.exact, gap))
    return out


def _moved(frame: int, right: Told, told: Told, checked: dict[str, int]) -> list[Flip]:
    """Rows of tables that are another index's than they should be."""
    tables = {used.name: used.rows for used in right.used}
    out = []
    for used in told.used:
        checked[used.name] = checked.get(used.name, 0) + len(used.rows)
        for moved in moved_rows(used.rows, tables[used.of], used.first):
            out.append(
                Flip(frame, used.name, moved.place, moved.right, moved.found, moved.margin, True)
            )
    return out


def _displacement(apart: Sequence[tuple[float, float, float]]) -> Displacement:
    largest = np.max(apart, axis=0)
    share = np.asarray(apart) / np.maximum(largest, 1e-12)
    mm, degrees, gripper = (float(x) for x in largest)
    return Displacement(mm, degrees, gripper, int(share.max(axis=1).argmax()))


def differences(
    measured: Floats, reference: Floats, space: ActionSpace
) -> tuple[float, float, float]:
    """mm, degrees and gripper of two chunks [C, D]: the largest of any action."""
    turning = [i for group in space.rotations for i in group]
    lengths = [i for i, unit in enumerate(space.units) if unit == "m"]
    angles = [i for i, u in enumerate(space.units) if u == "rad" and i not in turning]
    off = measured - reference
    mm = [0.0]
    for begin in range(0, len(lengths), 3):
        group = lengths[begin : begin + 3] if not space.kind.joints else lengths[begin : begin + 1]
        mm.append(float(np.linalg.norm(off[:, group], axis=1).max()) * 1e3)
    turns = [0.0, *(float(np.abs(off[:, i]).max()) for i in angles)]
    for rotation in space.rotations:
        picked = list(rotation)
        turns += [
            float(np.linalg.norm(way(one, other)))
            for one, other in zip(reference[:, picked], measured[:, picked], strict=True)
        ]
    opening = [float(np.abs(off[:, i]).max()) for i in space.grippers]
    # numpy's maximum: Python's would lose a NaN
    return float(np.max(mm)), float(np.degrees(np.max(turns))), float(np.max([0.0, *opening]))
