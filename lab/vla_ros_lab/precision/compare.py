"""One engine against the reference on the same frames: errors, flips, displacements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vla_ros.core.action_space import ActionSpace
from vla_ros.core.rotation import relative
from vla_ros.core.types import Floats
from vla_ros_lab.precision.watch import Choices, EngineTrace, Stage, StageLayout

_NEARER = 0.5  # another row counts only where it is at least so much nearer than the right one
_BLOCK = 512  # rows at a time


@dataclass(frozen=True, slots=True)
class MovedRow:
    """A row at ``position`` that is the table's row ``found``. ``margin`` 0..1: how far it is on
    the way from the right row to the other; 1 is the other one exactly."""

    position: int
    right: int
    found: int
    margin: float


def moved_rows(rows: torch.Tensor, table: torch.Tensor, first: int = 0) -> list[MovedRow]:
    """The rows [n, D] that are not those of ``table`` [m, D] from ``first`` on.

    An index may be computed in many lines, and rounded in any of them; so it is read from the row
    that reached the arithmetic, the nearest one of the table. Rounding moves a row a little and
    never to another one, unless rows are as near to each other as the rounding is: so a row counts
    as another only where that is twice as near as its own.
    """
    out: list[MovedRow] = []
    for begin in range(0, len(rows), _BLOCK):
        part = rows[begin : begin + _BLOCK]
        distance = torch.cdist(part, table, compute_mode="donot_use_mm_for_euclid_dist")
        nearest, found = distance.min(1)
        right = torch.arange(first + begin, first + begin + len(part))
        own = distance[torch.arange(len(part)), right]
        for n in torch.nonzero(nearest < _NEARER * own).flatten().tolist():
            between = float((table[right[n]] - table[found[n]]).norm())
            margin = float(own[n] - nearest[n]) / max(between, 1e-12)
            out.append(MovedRow(begin + n, int(right[n]), int(found[n]), min(margin, 1.0)))
    return out


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
    layout: StageLayout
    profile: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Flip:
    """A discrete choice that is another one than the reference's.

    ``exact``: it is an index that no rounding may move. ``margin``: how clear the reference
    was; of an argmax :func:`surer`, of an index how far the row that was used is on the way to the
    other one, of a side that of the tokens behind it or, without any, how far from the middle it
    was; all 0..1. ``gap``: of an argmax, in logits.
    """

    frame: int
    name: str
    place: int  # position among the choices of that name
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
    """All frames of both engines. ``agreement``: the share of tokens that are the reference's,
    where the policy has tokens. ``checked``: how many discrete choices of each kind were compared.
    ``apart``: of every frame mm, degrees and opening, as in ``displacement``."""

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
    layouts: tuple[StageLayout, ...]
    errors: tuple[float, ...]
    rows: tuple[tuple[np.ndarray, np.ndarray], ...]
    flips: tuple[Flip, ...]
    checked: dict[str, int]
    apart: tuple[float, float, float]
    same: tuple[int, int]


def compare_frame(
    number: int, right: EngineTrace, measured: EngineTrace, space: ActionSpace
) -> FrameResult:
    """The measured engine on frame ``number``, against the reference (``right``)."""
    flips: list[Flip] = []
    checked: dict[str, int] = {}
    for one, other in zip(right.choices, measured.choices, strict=True):
        checked[one.name] = len(one.picked)
        flips += _flipped(number, one, other, flips)
    flips += _moved(number, right, measured, checked)
    pairs = list(zip(measured.stages, right.stages, strict=True))
    equal = [a == b for a, b in zip(right.tokens, measured.tokens, strict=True)]
    return FrameResult(
        names=tuple(r.name for _, r in pairs),
        layouts=tuple(r.layout for _, r in pairs),
        errors=tuple(relative_error(m.values, r.values) for m, r in pairs),
        rows=tuple(_rows(m, r) for m, r in pairs),
        flips=tuple(flips),
        checked=checked,
        apart=differences(measured.actions, right.actions, space),
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
        stages=tuple(_stage(frames, index) for index in range(len(frames[0].names))),
        flips=tuple(flip for frame in frames for flip in frame.flips),
        checked=tuple(checked.items()),
        displacement=_displacement(apart),
        agreement=same / tokens if tokens else None,
        apart=apart,
    )


def compare(
    reference: Sequence[EngineTrace], measured: Sequence[EngineTrace], space: ActionSpace
) -> Comparison:
    """Comparison of both engines' frames, in the same order."""
    pairs = zip(reference, measured, strict=True)
    return summed(
        [compare_frame(n, right, measured, space) for n, (right, measured) in enumerate(pairs)]
    )


def surer(gap: float) -> float:
    """(p - q) / (p + q) of two choices that lie ``gap`` apart in logits: 0 alike, 1 no doubt.

    Of two alone that is the difference of their probabilities. It is taken of these two, since
    where neighboring bins share the probability no difference of it is ever large: the surest
    token of `shipped:tabletop` has 0.23 on these frames, and no flip can lie further apart.
    """
    return math.tanh(gap / 2)


def relative_error(measured: torch.Tensor, reference: torch.Tensor) -> float:
    """|a - r| / |r|; infinite where a value is not finite, 0 where both are nothing."""
    off = float((measured - reference).norm())
    size = float(reference.norm())
    if not np.isfinite(off):
        return float("inf")
    return off / size if size > 0 else (0.0 if off == 0 else float("inf"))


def _stage(frames: Sequence[FrameResult], index: int) -> StageError:
    errors = [frame.errors[index] for frame in frames]
    worst, first = int(np.argmax(errors)), frames[0]
    profile = _profile([frame.rows[index] for frame in frames])
    return StageError(
        first.names[index], errors[worst], float(np.mean(errors)), worst, first.layouts[index],
        profile,
    )  # fmt: skip


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


def _flipped(frame: int, right: Choices, measured: Choices, before: Sequence[Flip]) -> list[Flip]:
    """Flips of one kind of choice. ``before``: the frame's flips so far: a side that follows from
    tokens is no surer than they were."""
    if len(right.picked) != len(measured.picked):
        found = (len(right.picked), len(measured.picked))
        return [Flip(frame, right.name, -1, found[0], found[1], 1.0, right.exact)]
    out = []
    for position in torch.nonzero(right.picked != measured.picked).flatten().tolist():
        one, other = int(right.picked[position]), int(measured.picked[position])
        margin, gap = 1.0, None
        if right.logits is not None:
            row = right.logits[position]
            gap = float(row[one] - row[other])
            margin = surer(gap)
        elif right.values is not None:
            margin = min(2 * abs(float(right.values[position]) - 0.5), 1.0)
            margin = max((flip.margin for flip in before if flip.gap is not None), default=margin)
        out.append(Flip(frame, right.name, position, one, other, margin, right.exact, gap))
    return out


def _moved(
    frame: int, right: EngineTrace, measured: EngineTrace, checked: dict[str, int]
) -> list[Flip]:
    """Flips of rows of tables that are another index's than they should be."""
    tables = {used.name: used.rows for used in right.used}
    out = []
    for used in measured.used:
        checked[used.name] = checked.get(used.name, 0) + len(used.rows)
        for moved in moved_rows(used.rows, tables[used.of], used.first):
            flip = moved.position, moved.right, moved.found, moved.margin
            out.append(Flip(frame, used.name, *flip, exact=True))
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
            float(np.linalg.norm(relative(one, other)))
            for one, other in zip(reference[:, picked], measured[:, picked], strict=True)
        ]
    opening = [float(np.abs(off[:, i]).max()) for i in space.grippers]
    # numpy's maximum: Python's would lose a NaN
    return float(np.max(mm)), float(np.degrees(np.max(turns))), float(np.max([0.0, *opening]))
