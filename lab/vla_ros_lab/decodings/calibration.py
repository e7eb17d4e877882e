"""HeteroSpec's calibration: bins of the drafter's uncertainty, each with its draft tree. No torch.

The uncertainty of a whole path is its cumulative top-K entropy (Liu et al., HeteroSpec, eq. 1), in
nats:

    Phi(P*) = - sum over t of sum over i <= K of q ln q,  q = the K greatest chances, normalized

t runs over the levels of the best path P*. The paper takes for P* the path whose last token is
drafted with the greatest chance of its own; where levels are drafted independently all paths of a
level agree in that, and we take the likeliest one.

Before a round Phi names a bin. Where the drafter is sure, the tree goes deeper and is pruned
(section 4.3): with N and d those of the base tree, bin i of the lowest three gets

    d + Delta_i levels,  gamma_i N + Delta_i nodes,  Delta_i = alpha - i,  alpha = ceil(depth / 2)

and all others stay as they are. A bin's tree is the likeliest of that size by the chances that were
counted in this bin, so there is one layout a bin and number of known tokens, all known beforehand.

Where the paper leaves it open: every number of known tokens has bins of its own (fewer open tokens,
less entropy), and where fewer than eight were found the rule is for at most half of them. The bins
are fitted by :mod:`vla_ros_lab.heterospec`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any

from vla_ros.engine.decoding.draft_tree import (
    Budget,
    Cost,
    DraftTree,
    Marginals,
    deepest_paying,
    level_sums,
    likeliest,
    passes_from,
)

FILE = "heterospec.json"  # beside a checkpoint
VERSION = 1
LEVELS = 8  # of the base tree: EAGLE-3's depth of 7, and the root's children
GAMMAS = (0.3, 0.6, 1.0)


def top_entropy(chances: Sequence[float]) -> float:
    """Entropy of the top-K chances of one token, in nats: 0 where one is certain, ln K where all
    are alike.

    They need not add up to one: what the K miss is left out. 0 where there is no mass at all.
    """
    mass = sum(chances)
    if mass <= 0.0:
        return 0.0
    shares = [chance / mass for chance in chances]
    return -sum(share * log(share) for share in shares if share > 0.0)


def path_entropy(levels: Sequence[Sequence[float]]) -> float:
    """Phi of a path: ``levels`` are the top-K chances from which each of its tokens was taken."""
    return sum(top_entropy(level) for level in levels)


@dataclass(frozen=True, slots=True)
class Bins:
    """Bins of the rounds that begin with one number of known tokens: ``thresholds`` of Phi [B - 1],
    and of every bin the ``chances`` [levels][ranks] and the number of ``rounds`` they rest on."""

    thresholds: tuple[float, ...]
    chances: tuple[Marginals, ...]
    rounds: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.thresholds) + 1 == len(self.chances) == len(self.rounds):
            raise ValueError("a bin more than thresholds is wanted")
        if list(self.thresholds) != sorted(self.thresholds):
            raise ValueError("the thresholds do not rise")

    @property
    def sure(self) -> int:
        """Bins that are extended and pruned."""
        return min(len(GAMMAS), len(self.rounds) // 2)


@dataclass(frozen=True, slots=True)
class Calibration:
    """``states`` [K - 1]: the bins with 0 ... K - 2 tokens known. ``base`` says the nodes and
    ``levels`` the levels of the base tree; ``about`` where it comes from."""

    states: tuple[Bins, ...]
    base: Budget = field(default_factory=Budget)
    levels: int = LEVELS
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """K, of an action."""
        return len(self.states) + 1

    def entropy(self, chances: Marginals) -> float:
        """Phi, given the chances of the open tokens [K - known]: of what the base tree drafts."""
        return path_entropy(chances[: min(self.levels, len(chances) - 1)])

    def bin(self, known: int, chances: Marginals) -> int:
        """The bin of a round."""
        return bisect_left(self.states[known].thresholds, self.entropy(chances))

    def size(self, known: int, bin_: int) -> tuple[int, int]:
        """Levels and nodes of a bin's tree."""
        open_, nodes = self.tokens - 1 - known, self.base.most(known)
        depth = min(self.levels, open_)
        if bin_ >= self.states[known].sure:
            return depth, nodes
        extension = max(-(-(min(self.levels, self.tokens - 1) - 1) // 2) - bin_, 0)
        return min(depth + extension, open_), round(GAMMAS[bin_] * nodes) + extension


def from_json(found: Mapping[str, Any]) -> Calibration:
    """A calibration from its file's content, as ``vla_ros_lab.heterospec.to_json`` made it.

    ValueError, which says what is wrong, for anything else.
    """
    if found.get("format") != "heterospec":
        raise ValueError("no calibration of heterospec")
    if found.get("version") != VERSION:
        raise ValueError(f"version {found.get('version')}, this reads {VERSION}: calibrate again")
    try:
        prompt, alone = (int(n) for n in found["nodes"])
        states = tuple(map(_state, found["states"]))
        calibration = Calibration(
            states, Budget(prompt, alone), int(found["levels"]), dict(found.get("about", {}))
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"a field is missing or of another kind: {error}") from error
    if not states or min(prompt, alone, calibration.levels) < 1:
        raise ValueError("states, nodes and levels must be there")
    for known, state in enumerate(states):
        depths = {len(chances) for chances in state.chances}
        if len(depths) != 1 or not 1 <= min(depths) <= len(states) - known:
            raise ValueError(f"state {known} has not 1 to {len(states) - known} levels in all bins")
    return calibration


def _state(found: Mapping[str, Any]) -> Bins:
    chances = tuple(
        tuple(tuple(float(c) for c in level) for level in levels) for levels in found["chances"]
    )
    for level in (level for levels in chances for level in levels):
        if list(level) != sorted(level, reverse=True) or any(not 0.0 <= c <= 1.0 for c in level):
            raise ValueError("chances fall from rank to rank, and lie between 0 and 1")
    return Bins(
        tuple(float(t) for t in found["thresholds"]),
        chances,
        tuple(int(n) for n in found["rounds"]),
    )


@dataclass(frozen=True, slots=True)
class BinPlan:
    """``trees`` [K - 1][bins], and E[s], the passes expected with s tokens known, s = 0 ... K."""

    trees: tuple[tuple[DraftTree, ...], ...]
    expected: tuple[float, ...]

    @property
    def most(self) -> tuple[int, int]:
        """The largest trees: behind a prompt, and behind a token."""
        first, *later = (max(map(len, trees)) for trees in self.trees)
        return first, max(later, default=0)


def plan_bins(
    calibration: Calibration,
    prompt: Cost | None = None,
    alone: Cost | None = None,
    step: int = 1,
    adapt: bool = True,
) -> BinPlan:
    """The tree of every state and bin, from the last state back as ``plan_trees``.

    With costs, of a bin's tree only what pays, where E is the mean over the bins behind. ``step``:
    trees have a multiple of so many nodes as far as their bin allows. Without ``adapt`` every
    bin has the size of the base tree: what its shape alone is worth.
    """
    count = calibration.tokens
    expected = [0.0] * (count + 1)
    expected[count - 1] = 1.0
    trees: list[tuple[DraftTree, ...]] = [()] * (count - 1)
    for known in reversed(range(count - 1)):
        state, here, mean = calibration.states[known], [], 0.0
        for number, chances in enumerate(state.chances):
            depth, most = calibration.size(known, number)
            if not adapt:
                depth, most = calibration.size(known, len(state.rounds))
            levels = chances[:depth]
            tree = likeliest(levels, -(-most // step) * step)
            cost = alone if known else prompt
            if cost is not None:
                tree, levels = deepest_paying(tree, levels, expected[known:], cost, most)
                tree = likeliest(levels, -(-len(tree) // step) * step) if step > 1 else tree
            here.append(tree)
            share = state.rounds[number] / max(sum(state.rounds), 1)
            mean += share * passes_from(known, level_sums(tree, levels), expected)
        trees[known] = tuple(here)
        expected[known] = mean if any(state.rounds) else expected[known + 1] + 1.0
    return BinPlan(tuple(trees), tuple(expected))
