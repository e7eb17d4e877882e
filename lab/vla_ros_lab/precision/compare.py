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

# Which index stands behind a row: the nearest row of the reference's table.
#
# An index may be computed in many places, and rounded in any of them. What counts is the row that
# reached the arithmetic, so the index is told from that row and not from the code that computed it.


_NEARER = 0.5  # another row counts only where it is at least so much nearer than the right one
_BLOCK = 512  # rows at a time


@dataclass(frozen=True, slots=True)
class MovedRow:
    """Row ``place`` was used with the row of index ``found``. ``margin`` 0..1: how far it is on the
    way from the right row to the other; 1 is the other one exactly."""

    place: int
    right: int
    found: int
    margin: float


def moved_rows(rows: torch.Tensor, table: torch.Tensor, first: int = 0) -> list[MovedRow]:
    """The rows [n, D] that are not those of ``table`` [m, D] from ``first`` on.

    Rounding moves a row a little and never to another one, unless rows are as near to each other
    as the rounding is: so a row counts as another only where that is twice as near as its own.
    """
    out: list[MovedRow] = []
    for begin in range(0, len(rows), _BLOCK):
        part = rows[begin : begin + _BLOCK]
        distance = torch.cdist(part, table, compute_mode="donot_use_mm_for_euclid_dist")
        nearest, found = distance.min(1)
        right = torch.arange(first + begin, first + begin + len(part))
        own = distance[torch.arange(len(part)), right]
        for place in torch.nonzero(nearest < _NEARER * own).flatten().tolist():
            between = float((table[right[place]] - table[found[place]]).norm())
            margin = float(own[place] - nearest[place]) / max(between, 1e-12)
            out.append(
                MovedRow(begin + place, int(right[place]), int(found[place]), min(margin, 1.0))
            )
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
    layouts: tuple[StageLayout, ...]
    errors: tuple[float, ...]
    rows: tuple[tuple[np.ndarray, np.ndarray], ...]
    flips: tuple[Flip, ...]
    checked: dict[str, int]
    apart: tuple[float, float, float]
    same: tuple[int, int]


def compare_frame(
    number: int, right: EngineTrace, told: EngineTrace, space: ActionSpace
) -> FrameResult:
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


def compare(
    reference: Sequence[EngineTrace], measured: Sequence[EngineTrace], space: ActionSpace
) -> Comparison:
    """Both engines' frames, in the same order."""
    pairs = zip(reference, measured, strict=True)
    return summed([compare_frame(n, right, told, space) for n, (right, told) in enumerate(pairs)])


def surer(gap: float) -> float:
    """Of two choices that lie ``gap`` apart in logits, (p - q) / (p + q): 0 alike, 1 no doubt.

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


def _moved(
    frame: int, right: EngineTrace, told: EngineTrace, checked: dict[str, int]
) -> list[Flip]:
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
            float(np.linalg.norm(relative(one, other)))
            for one, other in zip(reference[:, picked], measured[:, picked], strict=True)
        ]
    opening = [float(np.abs(off[:, i]).max()) for i in space.grippers]
    # numpy's maximum: Python's would lose a NaN
    return float(np.max(mm)), float(np.degrees(np.max(turns))), float(np.max([0.0, *opening]))


# Thresholds, and what they say of a comparison.


#: The largest relative error of a stage, by dtype and formats: several times what rounding does
#: (docs/how-to/check-precision.md has figures), and less than a wrong index does. Of int4 it lies
#: between what cost nothing in closed loop, 0.09 to 0.15 over draws of frames, and what lost every
#: ninth episode that float32 solves, 0.18 to 0.32 (benchmarks/precision); fp8's is three times what
#: it showed, and stays below that too.
ERRORS = {"float32": 0.001, "float16": 0.01, "bfloat16": 0.05, "int8": 0.1, "fp8": 0.15,
          "int4": 0.16}  # fmt: skip

#: The share of tokens that may flip in no close call. Rounding to int4 turns one of some hundred
#: where a policy is of two minds, which cost nothing (a policy told its delay, 1 of 168); three
#: bits turned up to 2 of 168, 13 of 672, and lost episodes. Other formats turn none.
CLEAR = {"int4": 0.01}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The most that is let through.

    ``error``: relative error of any stage on any frame. ``margin`` 0..1: a token (or a gripper's
    side) may be another one only where the reference was no surer of its own: a close call.
    ``mm``, ``degrees``, ``gripper``: of any action, but on frames in which a close call flipped:
    where a policy is of two minds, as whether to turn or not, that alone moves it far. ``clear``:
    the share of each kind of choice that may flip in no close call.
    ``agreement``: the least share of tokens that are the reference's. By default it is shown and
    not judged: where a policy's bins are fine, neighbors win by a hair, and nothing comes of it.
    An index that moved is never let through.
    """

    error: float
    agreement: float = 0.0
    margin: float = 0.3
    clear: float = 0.0
    mm: float = 10.0
    degrees: float = 10.0
    gripper: float = 0.5

    def __post_init__(self) -> None:
        for name in ("error", "margin", "mm", "degrees", "gripper"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give 0 or more")
        for name in ("agreement", "clear"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give 0 to 1")


@dataclass(frozen=True, slots=True)
class PrecisionVerdict:
    """``reasons``: why it did not pass, one line each. ``judged``: on how many frames displacements
    were."""

    reasons: tuple[str, ...]
    judged: int = 0

    @property
    def passed(self) -> bool:
        return not self.reasons


def allowed_error(dtype: str, weights: str = "") -> float:
    """The largest error of a stage that goes with a dtype and the formats of the weights."""
    return max(limit for name, limit in ERRORS.items() if name == dtype or name in weights)


def allowed_clear(weights: str) -> float:
    """The share of clear flips that goes with the formats of the weights."""
    return max((share for name, share in CLEAR.items() if name in weights), default=0.0)


def judge(found: Comparison, most: Thresholds) -> PrecisionVerdict:
    """Hold a comparison to the thresholds."""
    reasons = [*_indices(found), *_margins(found, most)]
    over = [stage for stage in found.stages if not stage.worst <= most.error]
    if over:
        first = over[0]
        reasons.append(
            f"{len(over)} of {len(found.stages)} stages are off by more than {most.error:g}; the"
            f" first is {first.name}, by {first.worst:.3g} (frame {first.frame})"
        )
    if found.agreement is not None and found.agreement < most.agreement:
        reasons.append(
            f"{100 * found.agreement:.1f} % of the tokens are the reference's,"
            f" {100 * most.agreement:g} % are wanted"
        )
    close = {f.frame for f in _let_through(found, most) if f.gap is not None}
    reasons += _displacements(found, most, close)
    return PrecisionVerdict(tuple(reasons), found.frames - len(close))


def _let_through(found: Comparison, most: Thresholds) -> list[Flip]:
    """Close calls, and the clear ones of kinds of which there are few enough."""
    many = _too_many(found, most)
    return [
        f for f in found.flips if not f.exact and (f.margin <= most.margin or f.name not in many)
    ]


def _too_many(found: Comparison, most: Thresholds) -> dict[str, list[Flip]]:
    """By kind of choice the clear flips, where they are more than may be."""
    kinds: dict[str, list[Flip]] = {}
    for flip in found.flips:
        if not flip.exact and flip.margin > most.margin:
            kinds.setdefault(flip.name, []).append(flip)
    looked_at = dict(found.checked)
    return {n: flips for n, flips in kinds.items() if len(flips) > most.clear * looked_at[n]}


def _displacements(found: Comparison, most: Thresholds, close: set[int]) -> list[str]:
    """But of frames in which a token flipped that may: what follows from one is no fault. Where
    that was a gripper's side by itself, its opening alone."""
    sides = {flip.frame for flip in _let_through(found, most) if flip.gap is None}
    judged = {n: apart for n, apart in enumerate(found.apart) if n not in close}
    limits = (
        (most.mm, "mm"),
        (most.degrees, "degrees"),
        (most.gripper, "of the gripper's opening"),
    )
    out = []
    for place, (limit, unit) in enumerate(limits):
        over = {
            n: apart[place]
            for n, apart in judged.items()
            if not apart[place] <= limit and not (place == 2 and n in sides)
        }
        if over:
            frame = max(over, key=lambda n: over[n])
            out.append(f"an action is off by {over[frame]:.3g} {unit}, {limit:g} is the most"
                       f" (frame {frame})")  # fmt: skip
    return out


def _indices(found: Comparison) -> list[str]:
    wrong: dict[str, list[Flip]] = {}
    for flip in found.flips:
        if flip.exact:
            wrong.setdefault(flip.name, []).append(flip)
    checked = dict(found.checked)
    return [
        f"{name}: {len(flips)} of {checked[name]} are another index than the reference's"
        f" (frame {flips[0].frame}: {flips[0].reference} became {flips[0].measured})"
        for name, flips in wrong.items()
    ]


def _margins(found: Comparison, most: Thresholds) -> list[str]:
    out = []
    allowed = f", or {100 * most.clear:g} % of them" if most.clear else ""
    for name, clear in _too_many(found, most).items():
        worst = max(clear, key=lambda f: f.margin)
        out.append(
            f"{name}: {len(clear)} flipped where the reference was sure, by up to"
            f" {worst.margin:.2f} (frame {worst.frame}, place {worst.place}: {worst.reference}"
            f" became {worst.measured}); {most.margin:g} is the most{allowed}"
        )
    return out
