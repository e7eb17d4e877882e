"""Thresholds, and what they say of a comparison."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_ros.precision.compare import Comparison, Flip
from vla_ros.precision.sides import SIDE

#: The largest relative error of a stage, by dtype: several times what rounding alone does
#: (docs/how-to/check-precision.md has figures), and less than a wrong index does.
ERRORS = {"float32": 0.001, "float16": 0.01, "bfloat16": 0.05}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The most that is let through.

    ``error``: relative error of any stage on any frame. ``margin`` 0..1: a token (or a gripper's
    side) may be another one only where the reference preferred its own by no more. ``mm``,
    ``degrees``, ``gripper``: of any action, the gripper's where its side is the same.
    ``agreement``: the least share of tokens that are the reference's. By default it is shown and
    not judged: where a policy's bins are fine, neighbours win by a hair, and nothing comes of it.
    An index that moved is never let through.
    """

    error: float
    agreement: float = 0.0
    margin: float = 0.3
    mm: float = 10.0
    degrees: float = 10.0
    gripper: float = 0.5

    def __post_init__(self) -> None:
        for name in ("error", "margin", "mm", "degrees", "gripper"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give 0 or more")
        if not 0 <= self.agreement <= 1:
            raise ValueError(f"agreement is {self.agreement}: give 0 to 1")


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reasons``: why it did not pass, one line each."""

    reasons: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.reasons


def allowed_error(dtype: str) -> float:
    """The largest error of a stage that goes with a dtype."""
    return ERRORS[dtype]


def judge(found: Comparison, most: Thresholds) -> Verdict:
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
    moved = found.displacement
    close = {f.frame for f in found.flips if f.name == SIDE and f.margin <= most.margin}
    openings = [x for n, x in enumerate(found.openings) if n not in close]
    opening = float(np.max([0.0, *openings]))
    for value, limit, unit in (
        (moved.mm, most.mm, "mm"),
        (moved.degrees, most.degrees, "degrees"),
        (opening, most.gripper, "of the gripper's opening"),
    ):
        if not value <= limit:
            reasons.append(f"an action is off by {value:.3g} {unit}, {limit:g} is the most"
                           f" (frame {moved.frame})")  # fmt: skip
    return Verdict(tuple(reasons))


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
    clear = [flip for flip in found.flips if not flip.exact and flip.margin > most.margin]
    for name in dict.fromkeys(flip.name for flip in clear):
        worst = max((f for f in clear if f.name == name), key=lambda f: f.margin)
        count = sum(f.name == name for f in clear)
        out.append(
            f"{name}: {count} flipped where the reference was sure, by up to {worst.margin:.2f}"
            f" (frame {worst.frame}, place {worst.place}: {worst.reference} became"
            f" {worst.measured}); {most.margin:g} is the most"
        )
    return out
