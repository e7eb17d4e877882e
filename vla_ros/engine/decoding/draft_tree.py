"""How many passes an action is expected to take with draft trees, and which nodes pay for it.

An action has K tokens. With s of them known, a pass verifies the tree of state s: its level l
stands for the token s + l - 1, so it has at most K - 1 - s levels, and the last token comes with
its predecessor's pass. Of a tree whose nodes are reached with chances V, the level sums
S_l = sum of V over level l (S_0 = 1) give the chance S_l - S_(l+1) that just l levels stand, and

    E[s] = 1 + sum over l of (S_l - S_(l+1)) E[s + l + 1],  E[K] = 0.

A chain is the tree of one branch. Derived here; the chances of levels are taken as independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vla_ros.engine.trees.shape import ROOT, DraftTree, Marginals, likeliest

STEP = 8  # nodes, where few sizes are wanted
RENEWED = 32  # actions between two looks at the shape of the trees: layouts outlive frames


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a draft as such, of each of its tokens, and of each of its levels where they are drafted
    one after the other, in passes of a single token."""

    draft: float
    token: float
    level: float = 0.0


@dataclass(frozen=True, slots=True)
class Budget:
    """The most nodes behind a prompt, and behind a single token.

    ``step``: trees have a multiple of so many nodes, so that few shapes occur.
    """

    prompt: int = 24
    alone: int = 64
    step: int = 1

    def most(self, known: int) -> int:
        """Of the tree of a state."""
        return self.alone if known else self.prompt

    def sizes(self, most: int) -> range:
        """The numbers of nodes that a tree of at most so many may have; few only in steps."""
        return range(0, most + 1, self.step if self.step > 1 else most)


@dataclass(frozen=True, slots=True)
class TreePlan:
    """The tree of every state 0 ... K - 2, and E[s] for s = 0 ... K."""

    trees: tuple[DraftTree, ...]
    expected: tuple[float, ...]

    @property
    def passes(self) -> float:
        """An action's."""
        return self.expected[0]


def level_sums(tree: DraftTree, marginals: Marginals) -> list[float]:
    """S_0 = 1, S_1, ... of a tree over the marginals of its levels."""
    sums = [1.0] + [0.0] * max(tree.levels, default=0)
    for level, chance in zip(tree.levels, tree.chances(marginals), strict=True):
        sums[level] += chance
    return sums


def passes_from(known: int, sums: Sequence[float], expected: Sequence[float]) -> float:
    """E[known] from the level sums of its tree and E of the states behind it."""
    total = 1.0
    for level, (here, deeper) in enumerate(zip(sums, (*sums[1:], 0.0), strict=True)):
        total += (here - deeper) * expected[known + level + 1]
    return total


def plan_trees(
    marginals: Marginals,
    budget: Budget,
    prompt: Cost | None = None,
    alone: Cost | None = None,
) -> TreePlan:
    """The trees of an action, ``marginals`` [K - 1] being those of all tokens but the last.

    From the last state back: E of every state behind is known. Without costs every tree is as
    large as the budget; with them a node is kept where it, with what is best below it, saves
    more passes than it costs, and a tree where it saves more than drafting costs.
    """
    return plan_states(
        [marginals[known:] for known in range(len(marginals))], budget, prompt, alone
    )


def plan_states(
    states: Sequence[Marginals],
    budget: Budget,
    prompt: Cost | None = None,
    alone: Cost | None = None,
) -> TreePlan:
    """The same where what is known changes the chances: the marginals of each state's levels."""
    count = len(states) + 1
    expected = [0.0] * (count + 1)
    expected[count - 1] = 1.0
    trees = [DraftTree()] * (count - 1)
    for known in reversed(range(len(states))):
        levels = states[known]
        most = budget.most(known)
        tree = likeliest(levels, most)
        cost = alone if known else prompt
        if cost is not None:
            tree, levels = deepest_paying(tree, levels, expected[known:], cost, most)
            most = min(most, -(-len(tree) // budget.step) * budget.step)
            tree = tree if len(tree) == most else likeliest(levels, most)
        trees[known] = tree
        expected[known] = passes_from(known, level_sums(tree, levels), expected)
    return TreePlan(tuple(trees), tuple(expected))


def plan_first(
    marginals: Marginals, expected: Sequence[float], budget: Budget, cost: Cost | None
) -> DraftTree:
    """The tree behind the prompt alone, ``expected`` [K + 1] being E as planned before."""
    tree = likeliest(marginals, budget.prompt)
    if cost is None:
        return tree
    tree = paying(tree, marginals, expected, cost)
    most = min(budget.prompt, -(-len(tree) // budget.step) * budget.step)
    return tree if len(tree) == most else likeliest(marginals, most)


def deepest_paying(
    tree: DraftTree, marginals: Marginals, expected: Sequence[float], cost: Cost, most: int
) -> tuple[DraftTree, Marginals]:
    """The part that saves most of the likeliest tree, or where levels cost, of the likeliest tree
    of any depth; and the marginals of that depth."""
    if not cost.level:
        return paying(tree, marginals, expected, cost), marginals
    best: tuple[float, DraftTree, Marginals] = 0.0, DraftTree(), marginals
    for depth in range(1, len(marginals) + 1):
        levels = marginals[:depth]
        # The root's alternatives come with its own pass, which is one level.
        here = replace(cost, draft=cost.draft + depth * cost.level)
        found = paying(likeliest(levels, most), levels, expected, here)
        saving = _saving(found, levels, expected, here)
        if saving > best[0]:
            best = saving, found, levels
    return best[1], best[2]


def _saving(tree: DraftTree, marginals: Marginals, expected: Sequence[float], cost: Cost) -> float:
    """Passes that a tree saves, its costs taken off; 0 for none."""
    if not len(tree):
        return 0.0
    pairs = zip(tree.levels, tree.chances(marginals), strict=True)
    gain = sum(chance * (expected[level] - expected[level + 1]) for level, chance in pairs)
    return gain - cost.draft - cost.token * len(tree)


def paying(
    tree: DraftTree, marginals: Marginals, expected: Sequence[float], cost: Cost
) -> DraftTree:
    """The part of a tree that saves most, all costs taken off; the empty tree where none does.

    ``expected`` [l] is E of the state l levels on. A node reached with chance V on level l saves
    V (E[l] - E[l + 1]) passes. From the leaves up every node is worth its own saving, less its
    cost, and what its children are worth, so no other part of the tree is worth more.
    """
    worth = [0.0] * len(tree)
    best = 0.0
    chances = tree.chances(marginals)
    for node in reversed(range(len(tree))):
        level, parent = tree.levels[node], tree.parents[node]
        worth[node] += chances[node] * (expected[level] - expected[level + 1]) - cost.token
        if worth[node] > 0.0 and parent != ROOT:
            worth[parent] += worth[node]
        elif worth[node] > 0.0:
            best += worth[node]
    return tree.only([value > 0.0 for value in worth]) if best > cost.draft else DraftTree()


def due(seen: int) -> bool:
    """Whether trees are planned again after so many actions: soon at first, then rarely."""
    return seen % RENEWED == 0 or (seen < RENEWED and seen & (seen - 1) == 0)
