"""A draft tree grows out of the recursive head, level by level, within CUDA graphs.

A level is one pass of the head over the nodes that have children; what it makes of a node names the
children's tokens. Which nodes those are is the tree's *shape*, known before the round, so the host
reads nothing while a tree grows. Keys and values of the tokens that are known are kept from round
to round, made of the target's own taps; those of drafted nodes are for one round, since next time
the target will have run there (EAGLE's ``stable_kv``).

Launched one by one, a level is dozens of tiny kernels, which take longer than the head's
arithmetic. So all levels of a draft are one function over buffers that never move, and where passes
are captured one CUDA graph. A graph has fixed shapes and reads no host value: every level has as
many rows as the widest planned tree has there (:class:`TreeFrame`); which node a row is, whom it
follows and whom it does not see are numbers in buffers, and so is how much of the answer is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import torch
import torch.nn.functional as F

from vla_ros.engine.decoding.draft_heads import RANKED, Embed, Expected, RecursiveHead
from vla_ros.engine.decoding.draft_tree import ROOT, DraftTree, branches
from vla_ros.engine.layers.devices import pinned
from vla_ros.engine.layers.graphs import Capture, Outputs

FRESH = 16  # known tokens taken in at once: more rows than a draft's levels, one tile of a GPU

#: bins expected of some places, and the bins a step before each; -1 where unknown
ExpectedBins = tuple[Sequence[int], Sequence[int]]
Path = tuple[int, ...]  # of a node: the ranks from level 1 down to it
Segment = tuple[int, int]  # grown at once: levels (after, to], the root being level 0


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """How a tree grows: per level from 1 on the nodes that have children, and the nodes drafted."""

    levels: tuple[tuple[Path, ...], ...]
    nodes: tuple[Path, ...]


@lru_cache(1024)
def shape_of(tree: DraftTree, whole: DraftTree | None = None) -> Shape:
    """Shape of a tree, or of a part of ``whole``, which is then what grows. The likeliest path's
    node is the first of its level."""
    grown = tree if whole is None else whole
    paths = paths_of(grown)
    inner = {paths[parent] for parent in grown.parents if parent != ROOT}
    levels = groupby(sorted(inner, key=lambda path: (len(path), path)), len)
    return Shape(tuple(tuple(level) for _, level in levels), tuple(paths_of(tree)))


def paths_of(tree: DraftTree) -> list[Path]:
    """Branch of every node."""
    return [tuple(tree.ranks[node] for node in branch) for branch in branches(tree.parents)]


def merged(trees: Sequence[DraftTree]) -> DraftTree:
    """Every path of any of them."""
    paths = sorted({path for tree in trees for path in paths_of(tree)}, key=lambda p: (len(p), p))
    place = {(): ROOT} | {path: n for n, path in enumerate(paths)}
    return DraftTree(tuple(place[p[:-1]] for p in paths), tuple(p[-1] for p in paths))


@dataclass(frozen=True, slots=True)
class TreeFrame:
    """Frame that every planned shape fits in: rows of each level from 1 on, and drafted nodes."""

    widths: tuple[int, ...] = ()
    nodes: int = 0

    @classmethod
    def around(cls, shapes: Sequence[Shape]) -> TreeFrame:
        """The smallest."""
        deepest = max((len(shape.levels) for shape in shapes), default=0)
        widths = (
            max(len(s.levels[n]) for s in shapes if len(s.levels) > n) for n in range(deepest)
        )
        return cls(tuple(widths), max((len(shape.nodes) for shape in shapes), default=0))

    def start(self, level: int) -> int:
        """The first row of a level; level 0 is the root's row."""
        return 0 if level == 0 else 1 + sum(self.widths[: level - 1])


@dataclass(frozen=True, slots=True, eq=False)
class TreeLayout:
    """A shape in a frame of R drafted rows, as tensors on the device.

    ``numbers`` int64 [2 R + nodes]: of every row which row names it and as which candidate; of
    every node where its token is among the candidates of all rows, the root's first.
    ``hidden`` bool [R, R]: the drafted rows that a row does not see, all but its ancestors and
    itself. A row that no node needs sees itself and the known part, and nobody sees it.
    """

    numbers: torch.Tensor
    hidden: torch.Tensor


@lru_cache(1024)
def layout_of(shape: Shape, frame: TreeFrame, device: torch.device) -> TreeLayout:
    """ValueError where the shape does not fit. Waits for the device: once a shape, in preparing."""
    own = TreeFrame.around([shape])
    wider = any(n > most for n, most in zip(own.widths, frame.widths, strict=False))
    if wider or len(own.widths) > len(frame.widths) or own.nodes > frame.nodes:
        raise ValueError("a draft tree that was not planned for")
    total, row = sum(frame.widths), dict[Path, int]({(): 0})
    for number, level in enumerate(shape.levels, 1):
        row |= {path: frame.start(number) + place for place, path in enumerate(level)}
    parents, ranks = [0] * total, [0] * total
    hidden = ~torch.eye(total, dtype=torch.bool)
    for path, at in row.items():
        if path:
            parents[at - 1], ranks[at - 1] = row[path[:-1]], path[-1]
            hidden[at - 1, [row[path[:end]] - 1 for end in range(1, len(path))]] = False
    nodes = [row[path[:-1]] * RANKED + path[-1] for path in shape.nodes]
    nodes += [0] * (frame.nodes - len(nodes))
    return TreeLayout(torch.tensor([*parents, *ranks, *nodes], device=device), hidden.to(device))


class TreeGrower:
    """The head's memory of an answer, and the round that grows in it.

    ``first`` is the token of bin 0 in the order of their ids; ``tolerance`` per place how far from
    the target's choice a token may be and still be accepted; trees are of shapes within ``frame``.
    With ``capture`` every :data:`Segment` becomes a graph.

    Of an answer: ``forget``, then for every round ``add_taps``, ``begin``, ``through`` at least
    once, and ``tokens``.
    """

    def __init__(
        self,
        head: RecursiveHead,
        embed: Embed,
        first: int,
        tolerance: Callable[[int], int],
        frame: TreeFrame,
        capture: Capture | None = None,
    ) -> None:
        self.head, self.embed, self.first, self.tolerance = head, embed, first, tolerance
        self.frame, self._capture = frame, capture
        self._graphs: dict[Segment | None, Callable[[], Outputs]] = {}
        self.known = 0  # positions whose keys and values are there
        self._pending: list[torch.Tensor] = []  # taps of the next ones, in order
        self._level = -1  # grown in this round
        self._found: Outputs = ()
        config, like = head.config, head.bins.weight
        rows, levels = 1 + sum(frame.widths), 1 + len(frame.widths)
        self._count, self._fresh = config.tokens, min(FRESH, config.tokens)

        def numbers(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.long, device=like.device)

        # The answer's entries, one for every drafted row, and a spare one that padding goes to.
        shape = (config.tokens + rows, config.heads, config.width // config.heads)
        self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)
        self._taps = like.new_zeros(self._fresh, len(config.layers) * config.hidden)
        self._states = like.new_zeros(rows, config.width)
        self.ranked = numbers(rows, RANKED)  # the candidates that every row names
        #: chances [RANKED] of the candidates on every level, along the likeliest path
        self.best = torch.zeros(levels, RANKED, device=like.device)
        self._at = torch.arange(config.tokens, device=like.device)
        # What the host tells a round, in one copy: the root's row among the fresh tokens and how
        # much is known; of each fresh token itself, its place, what was expected there and before,
        # its entry; of each level its place, the same two, and whether candidates lie apart.
        sizes = 2, 5 * self._fresh, 4 * levels
        self._numbers = numbers(sum(sizes))
        ends, fresh, ahead = self._numbers.split(sizes)
        self._root, self._end = ends[:1], ends[1:]
        self._fresh_in, self._ahead_in = fresh.view(5, -1), ahead.view(4, -1)
        self._apart = max((tolerance(place) for place in range(config.tokens)), default=0)
        # The shape that is loaded, as in its Layout.
        self._loaded: Shape | None = None
        self._layout = numbers(2 * (rows - 1) + frame.nodes)
        self._hidden = torch.ones(rows - 1, rows - 1, dtype=torch.bool, device=like.device)
        sizes = rows - 1, rows - 1, frame.nodes
        self._parents, self._ranks, self._nodes = self._layout.split(sizes)

    # On the host

    def prepare(self, segments: Sequence[Segment]) -> None:
        """Capture the graph of every segment. Forgets the answer."""
        if self._capture is not None:
            nothing = [-1] * len(self._ahead_in[0])
            with torch.inference_mode():
                self._feed([self.first], ([-1], [-1]), (nothing, nothing), 0)
                if self._count > self._fresh:
                    self._run(None)
                for segment in segments:
                    self._run(segment)
        self.forget()

    def forget(self) -> None:
        """Another answer begins."""
        self.known = 0
        self._pending.clear()

    def clear(self) -> None:
        """Zero what may hold a value that is not finite, and forget."""
        for memory in (self.keys, self.values, self._states, self._taps):
            memory.zero_()
        self.forget()

    def add_taps(self, taps: torch.Tensor) -> None:
        """The target's taps where the next tokens were chosen [r, layers * C]."""
        self._pending.append(taps)

    @property
    def seen(self) -> int:
        """Positions that the target has shown."""
        return self.known + sum(map(len, self._pending))

    def begin(self, tokens: Sequence[int], known: ExpectedBins, ahead: ExpectedBins) -> None:
        """Begin a round. ``tokens`` are those of the positions not taken in yet, the newest last;
        ``known`` [len(tokens)] is what was expected of the token behind each when it was the
        newest, ``ahead`` of the places that are open."""
        taps = torch.cat(self._pending) if len(self._pending) > 1 else self._pending[0]
        if len(taps) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens, but {len(taps)} states of the target")
        for done in range(0, len(tokens), self._fresh):
            if done:
                self._run(None)  # takes in a full part; the last one goes with the root
            part = slice(done, done + self._fresh)
            self._taps[: len(taps[part])].copy_(taps[part])
            self._feed(tokens[part], (known[0][part], known[1][part]), ahead, self.known + done)
        self.known += len(tokens)
        self._pending.clear()
        self._level = -1

    def through(self, shape: Shape, levels: int) -> None:
        """Grow a shape's levels up to that one, 0 being the root; those that have grown stand. Of
        another shape, which must be alike so far, the nodes are named even where nothing is left to
        grow."""
        if levels <= self._level and shape is self._loaded:
            return
        if shape is not self._loaded:
            new = layout_of(shape, self.frame, self.keys.device)
            self._layout.copy_(new.numbers)
            self._hidden.copy_(new.hidden)
            self._loaded = shape
        self._found = self._run((self._level, levels))
        self._level = levels

    def tokens(self) -> torch.Tensor:
        """Tokens of the nodes of the shape that grew last, int64 [N]."""
        assert self._loaded is not None
        return self._found[0][: len(self._loaded.nodes)].clone()

    def entropy(self) -> float:
        """Phi of the likeliest path so far, in nats. Reads the device."""
        return float(self._found[1])

    def _feed(
        self, tokens: Sequence[int], behind: ExpectedBins, ahead: ExpectedBins, start: int
    ) -> None:
        """Fill the round's numbers: so many fresh tokens, the first of position ``start``."""
        missing, end = [0] * (self._fresh - len(tokens)), start + len(tokens)
        spare, levels = len(self.keys) - 1, len(self._ahead_in[0])
        places = [min(end + level, self._count - 1) for level in range(levels)]
        lasts = [[*part, *[-1] * levels][:levels] for part in ahead]
        numbers = [len(tokens) - 1, end]
        numbers += [*tokens, *(self.first for _ in missing)]
        numbers += [*range(start + 1, end + 1), *missing]
        numbers += [*behind[0], *(-1 for _ in missing), *behind[1], *(-1 for _ in missing)]
        numbers += [*range(start, end), *(spare for _ in missing)]
        numbers += [*places, *lasts[0], *lasts[1]]
        numbers += [int(self.tolerance(place) > 0) for place in places]
        self._numbers.copy_(pinned(numbers, self._numbers.device), non_blocking=True)

    def _run(self, segment: Segment | None) -> Outputs:
        """Grow a segment, None: take the fresh tokens in. Outputs are overwritten by the next."""
        if self._capture is None:
            return self._grow_segment(segment)
        graph = self._graphs.get(segment)
        if graph is None:
            graph = self._graphs[segment] = self._capture(lambda: self._grow_segment(segment))
        return graph()

    # Within a graph
    # Nothing here may depend on a value: no read of the device, no shape but the frame's.

    def _grow_segment(self, segment: Segment | None) -> Outputs:
        """-> the tokens of the nodes int64 [nodes], and Phi []."""
        if segment is None:
            self._take_in()
            return ()
        after, end = segment
        unknown = (self._at >= self._end)[None]
        for level in range(after + 1, end + 1):
            if level:
                self._grow_level(level, unknown)
            else:
                self._grow_root(unknown)
        tokens = self.first + self.ranked.flatten()[self._nodes]
        return tokens, entropy(self.best[: end + 1])

    def _take_in(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Fresh tokens into the memory -> their states and queries."""
        tokens, places, last, before, entries = self._fresh_in.unbind(0)
        expected, state = Expected(places, last, before), self.head.seen(self._taps)
        q, k, v = self.head.project(state, self.embed(tokens), expected, places - 1)
        self.keys.index_copy_(0, entries, k)
        self.values.index_copy_(0, entries, v)
        return state, q

    def _grow_root(self, unknown: torch.Tensor) -> None:
        state, q = (x.index_select(0, self._root) for x in self._take_in())
        out = attend(q, self.keys[: self._count], self.values[: self._count], unknown)
        self._states[:1] = self.head.finish(state, out)
        self._rank(0)

    def _grow_level(self, level: int, unknown: torch.Tensor) -> None:
        start, end = self.frame.start(level), self.frame.start(level + 1)
        own, entries = slice(start - 1, end - 1), self._count + end - 1
        parents = self._parents[own]
        tokens = self.first + self.ranked[parents, self._ranks[own]]
        expected, state = self._expected(level, end - start), self._states[parents]
        q, k, v = self.head.project(state, self.embed(tokens), expected, expected.places - 1)
        self.keys[self._count + start - 1 : entries] = k
        self.values[self._count + start - 1 : entries] = v
        hidden = torch.cat((unknown.expand(end - start, -1), self._hidden[own, : end - 1]), 1)
        out = attend(q, self.keys[:entries], self.values[:entries], hidden)
        self._states[start:end] = self.head.finish(state, out)
        self._rank(level)

    def _expected(self, level: int, rows: int) -> Expected:
        return Expected(*(self._ahead_in[n, level : level + 1].expand(rows) for n in range(3)))

    def _rank(self, level: int) -> None:
        """Rank the candidates of a level's rows, the first of which is of the likeliest path."""
        start, end = self.frame.start(level), self.frame.start(level + 1)
        logits = self.head.logits(self._states[start:end], self._expected(level, end - start))
        logits = logits.float()
        width = min(RANKED, logits.shape[1])
        values, there = logits.topk(width)
        if self._apart:
            apart = spaced(logits.softmax(-1), self._apart, width)
            there = torch.where(self._ahead_in[3, level] > 0, apart, there)
        self.ranked[start:end, :width] = there
        self.best[level, :width] = (values[0] - logits[0].logsumexp(-1)).exp()


def entropy(chances: torch.Tensor) -> torch.Tensor:
    """HeteroSpec's Phi [] of a path, given the top-K chances [levels, K] of each of its levels."""
    shares = chances / chances.sum(-1, keepdim=True)
    return -torch.xlogy(shares, shares).sum()


def attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, hidden: torch.Tensor
) -> torch.Tensor:
    """q [n, heads, D], keys and values [m, heads, D], ``hidden`` bool [n, m] -> [n, heads, D]."""
    scores = torch.einsum("nhd,mhd->hnm", q, keys) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hnm,mhd->nhd", weights, values)


def spaced(chances: torch.Tensor, tolerance: int, count: int) -> torch.Tensor:
    """Chances [N, bins] -> ``count`` bins each, the best first; each covers ``tolerance`` bins on
    either side, and what is covered is worth nothing more."""
    left, found = F.pad(chances, (tolerance, tolerance)), []
    at = torch.arange(left.shape[1], device=left.device)
    for _ in range(count):
        place = left.unfold(1, 2 * tolerance + 1, 1).sum(-1).argmax(-1, keepdim=True)
        found.append(place)
        left = left.masked_fill((at >= place) & (at <= place + 2 * tolerance), 0.0)
    return torch.cat(found, 1)
