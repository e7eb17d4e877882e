"""A draft tree that grows out of a recursive head, level by level.

A level is one pass of the head over the nodes that have children: what it makes of a node names
the children's tokens. Which nodes those are is the *shape's* business and known before, so
nothing is read by the host while a tree grows. Keys and values of the tokens that are known are
kept from round to round, made of the target's own taps; those of drafted nodes are for one round,
since next time the target will have run there (EAGLE's ``stable_kv``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
import torch.nn.functional as F

from vla_ros.engine.drafters.spacing import spaced
from vla_ros.engine.recursive_head import RANKED, Embed, RecursiveHead, Told
from vla_ros.engine.trees.shape import ROOT, DraftTree, branches

#: what is expected of some places, and what stood a step before: bins, -1 where nobody knows
Expected = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The nodes of one level that have children. ``parents`` [n]: which rows of the level before
    name them, ``ranks`` [n] as which alternative; ``hidden`` bool [n, rows so far and own]: drafted
    rows that are not their ancestors nor themselves."""

    parents: torch.Tensor
    ranks: torch.Tensor
    hidden: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """How a tree grows: ``levels`` from 1 on, behind the root's own row. ``nodes`` [N]: of every
    node where its token is among the ranked alternatives of all rows, the root's first."""

    levels: tuple[Level, ...]
    nodes: torch.Tensor


@lru_cache(1024)
def shape_of(tree: DraftTree, device: torch.device, whole: DraftTree | None = None) -> Shape:
    """Of a tree, or of a part of ``whole``, which is then what grows; rows are numbered level by
    level, the likeliest path's node first in each."""
    grown = tree if whole is None else whole
    paths = _paths(grown)
    inner = sorted({p for p in grown.parents if p != ROOT}, key=lambda n: (len(paths[n]), paths[n]))
    row = {(): 0} | {paths[node]: n + 1 for n, node in enumerate(inner)}
    levels, first = list[Level](), 0
    for level in range(1, max(map(len, row)) + 1):
        here = [paths[node] for node in inner if len(paths[node]) == level]
        start = row[here[0]]
        hidden = torch.ones(len(here), start - 1 + len(here), dtype=torch.bool)
        for place, path in enumerate(here):
            for end in range(1, level + 1):  # its ancestors and itself
                hidden[place, row[path[:end]] - 1] = False
        parents = torch.tensor([row[path[:-1]] - first for path in here])
        ranks = torch.tensor([path[-1] for path in here])
        levels.append(Level(parents.to(device), ranks.to(device), hidden.to(device)))
        first = start
    where = [row[path[:-1]] * RANKED + path[-1] for path in _paths(tree)]
    return Shape(tuple(levels), torch.tensor(where, dtype=torch.long, device=device))


def _paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """Of every node the ranks from level 1 on."""
    return [tuple(tree.ranks[node] for node in branch) for branch in branches(tree.parents)]


def merged(trees: Sequence[DraftTree]) -> DraftTree:
    """Every path of any of them."""
    paths = sorted({path for tree in trees for path in _paths(tree)}, key=lambda p: (len(p), p))
    place = {(): ROOT} | {path: n for n, path in enumerate(paths)}
    return DraftTree(tuple(place[p[:-1]] for p in paths), tuple(p[-1] for p in paths))


class Round(Protocol):
    """One round of growing, see :class:`Growing`."""

    def through(self, shape: Shape, levels: int) -> None:
        """Grow a shape's levels up to that one, 0 being the root; those that have grown stand.
        Called once at least."""

    def tokens(self, shape: Shape) -> torch.Tensor:
        """Of a tree's nodes, int64 [N]; its levels must have grown."""

    def entropy(self) -> float:
        """Phi of the likeliest path so far, in nats. Reads the device."""


class Growth:
    """One round: ``rows`` of alternatives, the root's first; see :class:`Growing`."""

    def __init__(self, growing: Growing, known: int, state: torch.Tensor, expected: Told) -> None:
        self._growing, self._known, self._expected = growing, known, expected
        self._keys, self._values = growing.keys[:known], growing.values[:known]
        self._level, self._state = 0, state  # of the newest rows [n, width]
        self._ranked: list[torch.Tensor] = []
        #: chances [RANKED] of the alternatives on every level, if each level's likeliest is said
        self.best: list[torch.Tensor] = []
        self._name()

    def _told(self, rows: int) -> Told:
        """Of the places that the rows of this level guess."""
        at = slice(self._level, self._level + 1)
        told = self._expected
        return Told(*(t[at].expand(rows) for t in (told.places, told.last, told.before)))

    def _name(self) -> None:
        """Rank what the newest rows say; the first of them is of the likeliest path."""
        growing = self._growing
        logits = growing.head.logits(self._state, self._told(len(self._state))).float()
        width = min(RANKED, logits.shape[1])
        found = logits.topk(width)
        reach = growing.reach(self._known + self._level)
        there = spaced(logits.softmax(-1), reach, width) if reach else found.indices
        self._ranked.append(F.pad(there, (0, RANKED - width)))
        self.best.append((found.values[0] - logits[0].logsumexp(-1)).exp())

    def through(self, shape: Shape, levels: int) -> None:
        """Grow a shape's levels up to that one; those that have grown stand."""
        for level in shape.levels[self._level : levels]:
            self.grow(level)

    def entropy(self) -> float:
        """Phi of the likeliest path so far, in nats. Reads the device."""
        return float(entropy(torch.stack(self.best)))

    def grow(self, level: Level) -> None:
        """One level more."""
        growing, count = self._growing, len(level.parents)
        tokens = growing.first + self._ranked[-1][level.parents, level.ranks]
        told, state = self._told_next(count), self._state[level.parents]
        position = told.places - 1
        q, k, v = growing.head.project(state, growing.embed(tokens), told, position)
        self._keys, self._values = torch.cat((self._keys, k)), torch.cat((self._values, v))
        hidden = F.pad(level.hidden, (self._known, 0))
        out = attend(q, self._keys, self._values, hidden)
        self._state = growing.head.finish(state, out)
        self._name()

    def _told_next(self, rows: int) -> Told:
        self._level += 1
        return self._told(rows)

    def tokens(self, shape: Shape) -> torch.Tensor:
        """Of a tree's nodes, int64 [N]; its levels must have grown."""
        return self._growing.first + torch.cat(self._ranked).flatten()[shape.nodes]


class Growing:
    """A head's memory of an answer. ``first`` is the token of bin 0 in the order of their ids;
    ``reach`` per place how far from the target's choice a token still stands."""

    def __init__(
        self, head: RecursiveHead, embed: Embed, first: int, reach: Callable[[int], int]
    ) -> None:
        self.head, self.embed, self.first, self.reach = head, embed, first, reach
        config, like = head.config, head.bins.weight
        shape = (config.tokens, config.heads, config.width // config.heads)
        self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)
        self.known = 0  # positions whose keys and values are there
        self._taps: list[torch.Tensor] = []  # of the next ones, in order

    def prepare(self) -> None:
        """Capture what there is to capture. Forgets the answer."""

    def forget(self) -> None:
        """Another answer begins."""
        self.known = 0
        self._taps.clear()

    def clear(self) -> None:
        """Zero what may hold a value that is not finite, and forget."""
        self.keys.zero_()
        self.values.zero_()
        self.forget()

    def saw(self, taps: torch.Tensor) -> None:
        """What the target thought where the next tokens were chosen [r, layers * C]."""
        self._taps.append(taps)

    @property
    def seen(self) -> int:
        """Positions that the target has shown."""
        return self.known + sum(map(len, self._taps))

    def begin(self, tokens: Sequence[int], known: Expected, ahead: Expected) -> Round:
        """A round. ``tokens`` are those of the positions not taken in yet, the newest last;
        ``known`` [len(tokens)] is what was expected of the token behind each when it was the
        newest, ``ahead`` of the places that are open."""
        head, device = self.head, self.keys.device
        taps = torch.cat(self._taps)
        if len(taps) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens, but {len(taps)} states of the target")
        start, end = self.known, self.known + len(tokens)
        told = self._told(start + 1, *known, device)
        position = told.places - 1
        state = head.seen(taps.to(head.bins.weight.dtype))
        words = self.embed(torch.tensor(tokens, device=device))
        q, k, v = head.project(state, words, told, position)
        self.keys[start:end], self.values[start:end] = k, v
        out = attend(q[-1:], self.keys[:end], self.values[:end], None)
        self.known = end
        self._taps.clear()
        return Growth(self, end, head.finish(state[-1:], out), self._told(end, *ahead, device))

    def _told(
        self, place: int, last: Sequence[int], before: Sequence[int], device: torch.device
    ) -> Told:
        places = list(range(place, place + len(last)))
        return Told(*torch.tensor([places, last, before], device=device).unbind(0))


def entropy(chances: torch.Tensor) -> torch.Tensor:
    """HeteroSpec's Phi [] of a path, given the top-K chances [levels, K] of each of its levels."""
    shares = chances / chances.sum(-1, keepdim=True)
    return -torch.xlogy(shares, shares).sum()


def attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, hidden: torch.Tensor | None
) -> torch.Tensor:
    """q [n, heads, D], keys and values [m, heads, D], ``hidden`` bool [n, m] -> [n, heads, D]."""
    scores = torch.einsum("nhd,mhd->hnm", q, keys) * q.shape[-1] ** -0.5
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1), values)
