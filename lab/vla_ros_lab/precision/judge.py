"""The verdict: thresholds that a comparison is held to. They are flags, so there is no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vla_ros_lab.bench.options import flag

if TYPE_CHECKING:
    from vla_ros_lab.precision.compare import Comparison, Flip

#: The largest relative error of a stage, by dtype and formats: several times what rounding does
#: (docs/how-to/check-precision.md has figures), and less than a wrong index does. Of int4 it lies
#: between what cost nothing in closed loop, 0.09 to 0.15 over draws of frames, and what lost every
#: ninth episode that float32 solves, 0.18 to 0.32 (benchmarks/precision); fp8's is three times what
#: it showed, and stays below that too.
ERRORS = {"float32": 0.001, "float16": 0.01, "bfloat16": 0.05, "int8": 0.1, "fp8": 0.15,
          "int4": 0.16}  # fmt: skip

#: The share of tokens that may flip in no close call. Rounding to int4 turns one of some hundred
#: where a policy is undecided, which cost nothing (a policy that knows its delay, 1 of 168); three
#: bits turned up to 2 of 168, 13 of 672, and lost episodes. Other formats turn none.
CLEAR = {"int4": 0.01}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The most that is let through.

    ``error``: of any stage on any frame. ``margin`` 0..1: a token (or a gripper's side) may be
    another one only where the reference was no surer of its own: a close call. ``mm``, ``degrees``,
    ``gripper``: of any action, but on frames in which a close call flipped: where a policy is
    undecided, as whether to turn or not, that alone moves it far. ``clear``: the share of each kind
    of choice that may flip in no close call. ``agreement``: by default it is shown and not judged:
    where a policy's bins are fine, neighbors win by a hair, and nothing comes of it. An index that
    moved is never let through.
    """

    error: float = flag(
        ERRORS["bfloat16"],
        "relative error of a stage (bfloat16 0.05, float16 0.01, int8 0.1, fp8 0.15, int4 0.16)",
        flag="max-error",
    )
    agreement: float = flag(0.0, "share of equal tokens (not judged)", flag="min-agreement")
    margin: float = flag(
        0.3,
        "of a token that flips: how much surer the reference was of its own, (p - q) / (p + q) of"
        " both probabilities (0.3)",
        flag="max-margin",
    )
    clear: float = flag(
        0.0, "share of tokens that may flip by more (0, int4 0.01)", flag="max-clear"
    )
    mm: float = flag(10.0, "displacement of an action (10)", flag="max-mm")
    degrees: float = flag(10.0, "rotation of an action (10)", flag="max-degrees")
    gripper: float = flag(0.5, "opening of the gripper, 0 to 1, (0.5)", flag="max-gripper")

    def __post_init__(self) -> None:
        for name in ("error", "margin", "mm", "degrees", "gripper"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give 0 or more")
        for name in ("agreement", "clear"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give 0 to 1")


def allowed(dtype: str, formats: str = "", **given: float | None) -> Thresholds:
    """The thresholds of a dtype and the formats of the weights, where none are ``given``.
    ValueError: one that cannot be."""
    own = {
        "error": max(most for name, most in ERRORS.items() if name == dtype or name in formats),
        "clear": max((share for name, share in CLEAR.items() if name in formats), default=0.0),
    }
    return Thresholds(**own | {name: v for name, v in given.items() if v is not None})


@dataclass(frozen=True, slots=True)
class PrecisionVerdict:
    """The outcome: ``reasons`` why it did not pass, one line each. ``judged``: on how many frames
    displacements were."""

    reasons: tuple[str, ...]
    judged: int = 0

    @property
    def passed(self) -> bool:
        return not self.reasons


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
    """Reasons of actions that are off, but not on frames in which a token flipped that may: what
    follows from one is no fault. Where that was a gripper's side by itself, its opening alone."""
    sides = {flip.frame for flip in _let_through(found, most) if flip.gap is None}
    judged = {n: apart for n, apart in enumerate(found.apart) if n not in close}
    limits = (most.mm, "mm"), (most.degrees, "degrees"), (most.gripper, "of the gripper's opening")
    out = []
    for index, (limit, unit) in enumerate(limits):
        over = {
            n: apart[index]
            for n, apart in judged.items()
            if not apart[index] <= limit and not (index == 2 and n in sides)
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
            f" {worst.margin:.2f} (frame {worst.frame}, position {worst.place}: {worst.reference}"
            f" became {worst.measured}); {most.margin:g} is the most{allowed}"
        )
    return out
