"""HeteroSpec beside others that draft from the same alternatives, on known tokens.

Replayed, not run: greedy verification changes no token, so passes, accepted length and verified
tokens are what they would be. What is fitted is fitted on other episodes than it is judged by.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vla_ros.engine.decoding.draft_tree import ROOT, Budget, Cost, DraftTree, likeliest, plan_states
from vla_ros.engine.decoding.temporal_prediction import Candidates
from vla_ros_lab.decodings.calibration import BinPlan, plan_bins
from vla_ros_lab.heterospec import (
    EMPTY,
    Choose,
    DraftedFrame,
    DraftRound,
    hindsight,
    least_acceptance,
    rounds,
)
from vla_ros_lab.roofline.calibration import FittedCalibration, following

SIZES = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.25)  # of the base tree's nodes
BOUNDS = (0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75)


@dataclass(frozen=True, slots=True)
class RivalCosts:
    """Costs of drafts behind a prompt and behind a token, in passes, on one kind of machine."""

    name: str
    prompt: Cost
    alone: Cost


@dataclass(frozen=True, slots=True)
class Replayed:
    """Per action: ``passes``, of them ``drafted`` with a draft, and draft tokens ``verified``; of a
    pass with a draft: levels ``accepted``. ``cost`` is passes and drafts in passes, by some costs.
    A ``bound`` cannot be run: it knows the outcome."""

    name: str
    passes: float
    drafted: float
    verified: float
    accepted: float
    cost: float | None = None
    bound: bool = False


def counted(
    name: str, played: Iterable[DraftRound], costs: RivalCosts | None = None, cut: bool = False
) -> Replayed:
    """Rounds as means; ``cut``: a tree ends behind its deepest node that stood."""
    passes = drafted = verified = accepted = frames = 0
    extra = 0.0
    for one in played:
        passes += 1
        frames += one.known == 0
        nodes = one.node + 1 if cut else len(one.tree)
        if not nodes and (cut or not len(one.tree)):
            continue
        drafted += 1
        verified += nodes
        accepted += one.stood
        if costs is not None:
            each = costs.alone if one.known else costs.prompt
            extra += each.draft + each.token * nodes
    n = max(frames, 1)
    return Replayed(
        name, passes / n, drafted / n, verified / n, accepted / max(drafted, 1),
        None if costs is None else (passes + extra) / n, cut,
    )  # fmt: skip


def rivals(
    fitted: FittedCalibration, frames: Sequence[DraftedFrame], tuned_on: Sequence[DraftedFrame]
) -> list[Replayed]:
    """All of them at the base tree's size, bounds last."""
    base = fitted.calibration.base
    found = [
        counted("chain of the likeliest", rounds(frames, _chain(None))),
        counted("chain, length by entropy", rounds(frames, best_chain(tuned_on))),
        counted("static tree", rounds(frames, following(fitted.base))),
        counted("tree of every frame", rounds(frames, each_frame(base))),
    ]
    plans = {
        "heterospec": plan_bins(fitted.calibration),
        "the same, not pruned": plan_bins(fitted.calibration, adapt=False),
        "the same on the static tree's shape": _on_base_shape(fitted),
    }
    found += [counted(n, rounds(frames, by_bins(fitted, p))) for n, p in plans.items()]
    cut = rounds(frames, following(fitted.base))
    found.append(counted("static tree, cut in hindsight", cut, cut=True))
    found.append(counted("best tree in hindsight", hindsight(frames), cut=True))
    return found


def paying(
    fitted: FittedCalibration,
    frames: Sequence[DraftedFrame],
    tuned_on: Sequence[DraftedFrame],
    costs: RivalCosts,
) -> list[Replayed]:
    """Each as it is best where drafts cost this much."""
    prompt, alone = costs.prompt, costs.alone
    static = plan_states(fitted.states, fitted.calibration.base, prompt, alone)
    bins = plan_bins(fitted.calibration, prompt, alone)
    free = plan_bins(fitted.calibration, prompt, alone, adapt=False)
    return [
        counted("no draft", rounds(frames, lambda offer, known: EMPTY), costs),
        counted("chain of the likeliest", rounds(frames, _chain(None)), costs),
        counted("chain, length by entropy", rounds(frames, best_chain(tuned_on, costs)), costs),
        counted("static tree", rounds(frames, following(static)), costs),
        counted("heterospec", rounds(frames, by_bins(fitted, bins)), costs),
        counted("the same, not pruned", rounds(frames, by_bins(fitted, free)), costs),
    ]


def by_bins(fitted: FittedCalibration, plan: BinPlan) -> Choose:
    """The tree of the bin that a round's entropy names."""

    def choose(offer: Candidates, known: int) -> DraftTree:
        if known >= len(plan.trees):
            return EMPTY
        return plan.trees[known][fitted.calibration.bin(known, offer.chances)]

    return choose


def each_frame(budget: Budget) -> Choose:
    """The likeliest tree by the chances of the very round: EAGLE-2's rule, a new layout each."""
    return lambda offer, known: likeliest(offer.chances[:-1], budget.most(known))


def _on_base_shape(fitted: FittedCalibration) -> BinPlan:
    """The paper's numbers of nodes, but every bin's tree is the best of the static one's nodes."""
    calibration = fitted.calibration
    trees = []
    for known, state in enumerate(calibration.states):
        sizes = [calibration.size(known, number)[1] for number in range(len(state.rounds))]
        levels = fitted.states[known]
        trees.append(tuple(likeliest(levels[: calibration.levels], size) for size in sizes))
    return BinPlan(tuple(trees), ())


def _chain(bound: float | None) -> Choose:
    """The likeliest token of every level, while by the entropy it is taken often enough.

    AdaEDL (Agrawal et al.): drafting ends where 1 - sqrt(slope * H) falls below ``bound``; H is of
    the chances that the drafter has.
    """

    def choose(offer: Candidates, known: int) -> DraftTree:
        length = 0
        for level in offer.chances[:-1]:
            if bound is not None and least_acceptance(level) < bound:
                break
            length += 1
        return DraftTree(tuple(range(ROOT, length - 1)), (0,) * length)

    return choose


def best_chain(tuned_on: Sequence[DraftedFrame], costs: RivalCosts | None = None) -> Choose:
    """Chains with the bound that costs least on other frames; without costs, a node is a
    hundredth."""
    known = costs or RivalCosts("", Cost(0.0, 0.01), Cost(0.0, 0.01))
    spent = {b: counted("", rounds(tuned_on, _chain(b)), known).cost or 0.0 for b in BOUNDS}
    return _chain(min(spent, key=spent.__getitem__))


def saved(sweep: Sequence[Replayed], one: Replayed) -> float | None:
    """The share of verified tokens that is saved at equal accepted length.

    Against the static tree, interpolated between the sizes of ``sweep``, that says an action in as
    many passes: K tokens in so many passes are as many a pass. None outside of what was swept.
    """
    passes, verified = zip(*sorted((r.passes, r.verified) for r in sweep), strict=True)
    if not passes[0] <= one.passes <= passes[-1]:
        return None
    return 1.0 - one.verified / float(np.interp(one.passes, passes, verified))


def static_sweep(fitted: FittedCalibration, frames: Sequence[DraftedFrame]) -> list[Replayed]:
    """Static trees of a tenth of the base tree's nodes to more than all."""
    base, found = fitted.calibration.base, []
    for part in SIZES:
        budget = Budget(max(round(part * base.prompt), 1), max(round(part * base.alone), 1))
        plan = plan_states(fitted.states, budget)
        name = f"static tree, {budget.prompt} and {budget.alone} nodes"
        found.append(counted(name, rounds(frames, following(plan))))
    return found
