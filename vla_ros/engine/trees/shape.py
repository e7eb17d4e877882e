"""The shape of a draft tree: nodes that name their parents, a parent before its children.

The root is the last token that is known; it is no node. Its children are on level 1. What a node
guesses is its *rank* among the alternatives of its level, the likeliest being 0, so that a shape
outlives the tokens: only those change from frame to frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
        """Of every node, from 1 on."""
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
    """Of every node: its ancestors from level 1 on, and itself."""
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
