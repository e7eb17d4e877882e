"""HeteroSpec's bins, fitted on a policy's tokens; and a table of them.

Every round is played on one fixed tree: were it to follow the uncertainty already, how many levels
stand would follow from how many are offered. Rounds that fail count too; the paper fits on fully
accepted paths, and then a bin in which drafts fail looks as sure as any (its section 4.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from vla_ros.engine.decoding.draft_tree import Budget, Marginals, TreePlan, plan_states
from vla_ros.engine.decoding.temporal_prediction import WIDTH
from vla_ros_lab.decodings.calibration import LEVELS, Bins, Calibration
from vla_ros_lab.heterospec import (
    EMPTY,
    Choose,
    DraftedFrame,
    DraftRound,
    Episode,
    fit_thresholds,
    rounds,
    shown,
)

Floats = npt.NDArray[np.float64]

LEAST = 25  # rounds of a bin
PRIOR = 20.0  # rounds that the chances over all bins count for in each
QUANTILES = (25, 50, 75, 90)


@dataclass(frozen=True, slots=True)
class FittedCalibration:
    """A calibration, the fixed trees that its rounds were played on, and the chances of all frames
    together, per number of known tokens [K - 1][levels][ranks]."""

    calibration: Calibration
    base: TreePlan
    states: Sequence[Marginals]


@dataclass(frozen=True, slots=True)
class BinRow:
    """A bin on rounds: ``share`` of all rounds with a draft, range of Phi in nats, quantiles of
    TCR, mean levels offered and accepted, nodes of its tree and of the fixed one."""

    known: int
    bin: int
    rounds: int
    share: float
    entropy: tuple[float, float]
    rank: tuple[float, ...]
    offered: int
    accepted: float
    nodes: int
    fixed: int


def fit(
    frames: Sequence[DraftedFrame],
    base: Budget | None = None,
    levels: int = LEVELS,
    about: Mapping[str, Any] | None = None,
) -> FittedCalibration:
    """Bins for every number of known tokens. ValueError: no frame has one before it."""
    budget = base or Budget()
    tokens = len(frames[0].own)
    there = [f for f in frames if f.offer is not None]
    all_ = [_counted_at(there, known, tokens) for known in range(tokens - 1)]
    plan = plan_states(all_, budget)
    fixed = TreePlan(tuple(tree.cut(levels) for tree in plan.trees), plan.expected)
    played = [r for r in rounds(frames, following(fixed)) if len(r.tree)]
    # Only what is known before the round decides on the bin.
    blank = Calibration((), budget, levels)
    states = tuple(
        _bins([r for r in played if r.known == known], all_[known], blank)
        for known in range(tokens - 1)
    )
    return FittedCalibration(Calibration(states, budget, levels, dict(about or {})), fixed, all_)


def _counted_at(frames: Sequence[DraftedFrame], known: int, tokens: int) -> Marginals:
    """Chances of the levels that may be drafted with so many tokens known."""
    return counted([frame.right(known)[: tokens - 1 - known] for frame in frames])


def following(plan: TreePlan) -> Choose:
    """The trees of a plan, whatever is offered."""
    return lambda offer, known: plan.trees[known] if known < len(plan.trees) else EMPTY


def counted(
    ranks: Sequence[Sequence[int]], prior: Marginals | None = None, weight: float = 0.0
) -> list[list[float]]:
    """Share of rows by position and rank; falling, as of a likeliest-first list."""
    if not len(ranks):
        raise ValueError("no frame has another before it: give episodes of two frames or more")
    found: Floats = np.stack([(np.asarray(ranks) == rank).sum(0) for rank in range(WIDTH)], 1)
    if prior is not None:
        found = found + weight * np.asarray(prior, np.float64)
    shares: list[list[float]] = np.minimum.accumulate(found / (len(ranks) + weight), 1).tolist()
    return shares


def _bins(played: Sequence[DraftRound], all_: Marginals, how: Calibration) -> Bins:
    entropies = [how.entropy(r.offered) for r in played]
    thresholds = fit_thresholds(entropies, [float(r.rank) for r in played], least=LEAST)
    edges = (-np.inf, *thresholds, np.inf)
    chances, counts = [], []
    for low, high in pairwise(edges):
        inside = [r for r, phi in zip(played, entropies, strict=True) if low < phi <= high]
        ranks = [r.shown.right(r.known)[: len(all_)] for r in inside]
        chances.append(counted(ranks, all_, PRIOR) if ranks else [list(level) for level in all_])
        counts.append(len(inside))
    return Bins(thresholds, tuple(chances), tuple(counts))


def table(
    fitted: FittedCalibration, frames: Sequence[DraftedFrame], nodes: Sequence[Sequence[int]]
) -> list[BinRow]:
    """A row for every bin, on any frames, played on the fixed trees; ``nodes`` per state and bin
    are those of the bin's own tree."""
    played = [r for r in rounds(frames, following(fitted.base)) if len(r.tree)]
    calibration, rows = fitted.calibration, []
    for known, state in enumerate(calibration.states):
        here = [r for r in played if r.known == known]
        bins = [calibration.bin(known, r.offered) for r in here]
        for number in range(len(state.rounds)):
            inside = [r for r, own in zip(here, bins, strict=True) if own == number]
            if inside:
                share = len(inside) / len(played)
                rows.append(_row(calibration, inside, number, share, nodes[known][number]))
    return rows


def _row(
    calibration: Calibration, inside: Sequence[DraftRound], number: int, share: float, nodes: int
) -> BinRow:
    phi = [calibration.entropy(r.offered) for r in inside]
    rank = np.percentile([r.rank for r in inside], QUANTILES)
    known = inside[0].known
    return BinRow(
        known, number, len(inside), share, (min(phi), max(phi)), tuple(map(float, rank)),
        max(inside[0].tree.levels), float(np.mean([r.stood for r in inside])), nodes,
        len(inside[0].tree),
    )  # fmt: skip


def split(
    episodes: Sequence[Episode], window: range, steps: int = 1
) -> tuple[list[DraftedFrame], list[DraftedFrame]]:
    """Every second episode to fit on, the others to judge by; each learns anew, as in lock-step.

    An answer has ``steps`` actions."""
    return (
        shown(episodes[1::2], window, anew=True, steps=steps),
        shown(episodes[0::2], window, anew=True, steps=steps),
    )
