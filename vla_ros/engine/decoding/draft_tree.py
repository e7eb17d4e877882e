"""Draft trees: their shape, the passes they save, and the tree that is worth most. No torch.

The root is the last token that is known; it is no node. Its children are on level 1. What a node
guesses is its *rank* among the candidates of its level, the likeliest being 0, so that a shape
outlives the tokens: only those change from frame to frame.

An action has K tokens. With s of them known, a pass verifies the tree of state s: its level l
drafts the token s + l - 1, so it has at most K - 1 - s levels, and the last token comes with
its predecessor's pass. Of a tree whose nodes are reached with chances V, the level sums
S_l = sum of V over level l (S_0 = 1) give the chance S_l - S_(l+1) that just l levels are
accepted, and

    E[s] = 1 + sum over l of (S_l - S_(l+1)) E[s + l + 1],  E[K] = 0.

A chain is the tree of one branch. Derived here; the chances of levels are taken as independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush

ROOT = -1

#: chances per level, each level's in falling order: rank -> chance that it is right
Marginals = Sequence[Sequence[float]]


@dataclass(frozen=True)
class DraftTree:
    """``parents`` and ``ranks`` per node; ValueError where a parent does not come first."""

    parents: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.parents) != len(self.ranks):
            raise ValueError(f"{len(self.parents)} parents for {len(self.ranks)} nodes")
        if any(not ROOT <= parent < node for node, parent in enumerate(self.parents)):
            raise ValueError("a node of a draft tree stands before its parent")

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Level of every node, from 1 on."""
        found: list[int] = []
        for parent in self.parents:
            found.append(1 if parent == ROOT else found[parent] + 1)
        return tuple(found)

    def chances(self, marginals: Marginals) -> tuple[float, ...]:
        """That every node is reached: the product of its branch's, levels being independent."""
        found: list[float] = []
        for parent, rank, level in zip(self.parents, self.ranks, self.levels, strict=True):
            before = 1.0 if parent == ROOT else found[parent]
            found.append(before * marginals[level - 1][rank])
        return tuple(found)

    def cut(self, levels: int) -> DraftTree:
        """Without what is deeper than so many levels."""
        return self.only([level <= levels for level in self.levels])

    def only(self, kept: Sequence[bool]) -> DraftTree:
        """The nodes that are kept and whose ancestors are."""
        place: dict[int, int] = {ROOT: ROOT}
        for node, parent in enumerate(self.parents):
            if kept[node] and parent in place:
                place[node] = len(place) - 1
        del place[ROOT]
        parents = tuple(place.get(self.parents[node], ROOT) for node in place)
        return DraftTree(parents, tuple(self.ranks[node] for node in place))


def branches(parents: Sequence[int]) -> list[tuple[int, ...]]:
    """Branch of every node: its ancestors from level 1 on, and itself."""
    found: list[tuple[int, ...]] = []
    for node, parent in enumerate(parents):
        found.append((*(() if parent == ROOT else found[parent]), node))
    return found


def children(parents: Sequence[int]) -> dict[int, list[int]]:
    """Node (or ROOT) -> its children, in order."""
    found: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        found.setdefault(parent, []).append(node)
    return found


def likeliest(marginals: Marginals, nodes: int) -> DraftTree:
    """The tree of the ``nodes`` likeliest nodes of the product of the marginals.

    Chances only fall along a branch, so it is found best first: whoever is taken offers its first
    child and its next sibling. Of equal ones the shallower is taken, then the earlier.
    """
    parents: list[int] = []
    ranks: list[int] = []
    # (-chance, level, order, parent, rank, chance of the parent)
    offers: list[tuple[float, int, int, int, int, float]] = []
    if marginals and marginals[0]:
        offers.append((-marginals[0][0], 1, 0, ROOT, 0, 1.0))
    order = 0
    while offers and len(parents) < nodes:
        chance, level, _, parent, rank, before = heappop(offers)
        if chance == 0.0:
            break
        node = len(parents)
        parents.append(parent)
        ranks.append(rank)
        here = marginals[level - 1]
        if rank + 1 < len(here):
            order += 1
            heappush(offers, (-before * here[rank + 1], level, order, parent, rank + 1, before))
        if level < len(marginals):
            order += 1
            heappush(offers, (chance * marginals[level][0], level + 1, order, node, 0, -chance))
    return DraftTree(tuple(parents), tuple(ranks))


STEP = 8  # nodes, where few sizes are wanted
RENEWED = 32  # actions between two looks at the shape of the trees: layouts outlive frames


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a draft as such, of each of its tokens, and of each of its levels where they come
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
        """Most nodes of the tree of a state."""
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
    """Trees as :func:`plan_trees`, where each state has marginals of its own for its levels."""
    count = len(states) + 1
    expected = [0.0] * (count + 1)
    expected[count - 1] = 1.0
    trees = [DraftTree()] * (count - 1)
    for known in reversed(range(len(states))):
        cost = alone if known else prompt
        tree, levels = _best(states[known], expected[known:], budget, budget.most(known), cost)
        trees[known] = tree
        expected[known] = passes_from(known, level_sums(tree, levels), expected)
    return TreePlan(tuple(trees), tuple(expected))


def plan_first(
    marginals: Marginals, expected: Sequence[float], budget: Budget, cost: Cost | None
) -> DraftTree:
    """The tree behind the prompt alone, ``expected`` [K + 1] being E as planned before."""
    return _best(marginals, expected, budget, budget.prompt, cost)[0]


def _best(
    marginals: Marginals, expected: Sequence[float], budget: Budget, most: int, cost: Cost | None
) -> tuple[DraftTree, Marginals]:
    """The tree of a state, and the marginals of its levels."""
    tree, levels = likeliest(marginals, most), marginals
    if cost is not None:
        tree, levels = deepest_paying(tree, marginals, expected, cost, most)
        filled = min(most, -(-len(tree) // budget.step) * budget.step)
        tree = tree if len(tree) == filled else likeliest(levels, filled)
    return tree, levels


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
        # The root's candidates come with its own pass, which is one level.
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
    """True where trees are planned again after so many actions: soon at first, then rarely."""
    return seen % RENEWED == 0 or (seen < RENEWED and seen & (seen - 1) == 0)
