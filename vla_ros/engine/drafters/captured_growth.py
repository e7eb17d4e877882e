"""A draft tree that grows within captured graphs: all levels of a draft are one replay.

Eagerly a level is dozens of launches of tiny kernels, more than the head's arithmetic. Here every
level has as many rows as the widest tree that may come has there (:class:`Frame`); which node a row
is, whom it follows and whom it does not see are numbers in buffers that never move, and so is how
much of the answer is known. So a graph belongs to a number of levels and to nothing else: choosing
a level's tokens, embedding them and the head's pass over them are all inside. Rows that no node
needs see the known part only, and nobody sees them.

The numbers are those of :mod:`.growth` up to the order of sums. What is drafted changes no token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from vla_ros.engine.drafters.growth import Expected, Growing, Shape, attend, entropy
from vla_ros.engine.drafters.spacing import spaced
from vla_ros.engine.packed.graphs import Capture, Outputs
from vla_ros.engine.recursive_head import RANKED, Embed, RecursiveHead, Told

FRESH = 16  # known tokens taken in at once: more rows than a draft's levels, one tile of a GPU
Segment = tuple[int, int]  # levels [from, to) that one graph grows; from 0: with the root


@dataclass(frozen=True, slots=True)
class Frame:
    """What every shape fits in: so many rows on each level from 1 on, and so many nodes."""

    widths: tuple[int, ...] = ()
    nodes: int = 0

    @classmethod
    def around(cls, shapes: Sequence[Shape]) -> Frame:
        """The smallest."""
        deepest = max((len(shape.levels) for shape in shapes), default=0)
        widths = [
            max(len(s.levels[n].parents) for s in shapes if len(s.levels) > n)
            for n in range(deepest)
        ]
        return cls(tuple(widths), max((len(shape.nodes) for shape in shapes), default=0))

    def start(self, level: int) -> int:
        """The first row of a level; level 0 is the root's row."""
        return 0 if level == 0 else 1 + sum(self.widths[: level - 1])


@dataclass(frozen=True, slots=True, eq=False)
class Laid:
    """A shape in a frame of R rows. ``numbers`` int64 [2, R] and then [nodes]: which row names a
    row, as which alternative; and of every node where its token is among all alternatives.
    ``hidden`` bool [R, R]: drafted rows that a row does not see. Row n is n - 1 here."""

    numbers: torch.Tensor
    hidden: torch.Tensor


@lru_cache(1024)
def laid(shape: Shape, frame: Frame, device: torch.device) -> Laid:
    """ValueError where it does not fit; read from the device once for every shape."""
    total = sum(frame.widths)
    parents, ranks, hidden = [0] * total, [0] * total, torch.ones(total, total, dtype=torch.bool)
    hidden.fill_diagonal_(False)
    if len(shape.levels) > len(frame.widths) or len(shape.nodes) > frame.nodes:
        raise ValueError("a draft tree that was not planned for")
    rows = [0]  # of the shape's rows, the frame's
    for number, level in enumerate(shape.levels, 1):
        start, count = frame.start(number), len(level.parents)
        if count > frame.widths[number - 1]:
            raise ValueError("a draft tree that was not planned for")
        before = frame.start(number - 1)
        rows += range(start, start + count)
        parents[start - 1 : start - 1 + count] = [before + p for p in level.parents.tolist()]
        ranks[start - 1 : start - 1 + count] = level.ranks.tolist()
        seen = [row - 1 for row in rows[1:]]
        for place, row in enumerate(level.hidden.tolist()):
            hidden[start - 1 + place, seen] = torch.tensor(row)
    nodes = [rows[at // RANKED] * RANKED + at % RANKED for at in shape.nodes.tolist()]
    nodes += [0] * (frame.nodes - len(nodes))
    return Laid(torch.tensor([*parents, *ranks, *nodes], device=device), hidden.to(device))


class CapturedGrowing(Growing):
    """As :class:`Growing`, of trees within ``frame``; a graph for each of ``segments``.

    ``watched``: graphs say the entropy of the likeliest path too.
    """

    def __init__(
        self,
        head: RecursiveHead,
        embed: Embed,
        first: int,
        reach: Callable[[int], int],
        capture: Capture,
        frame: Frame,
        segments: Sequence[Segment],
        watched: bool = False,
    ) -> None:
        super().__init__(head, embed, first, reach)
        self.frame, self._segments, self._watched = frame, tuple(segments), watched
        self._capture, self._graphs = capture, dict[Segment | None, Callable[[], Outputs]]()
        config, like = head.config, head.bins.weight
        rows, levels = 1 + sum(frame.widths), 1 + len(frame.widths)
        self._count = config.tokens
        self._fresh = min(FRESH, config.tokens)
        # The answer's entries, one for every drafted row, and one that nothing reads.
        shape = (config.tokens + rows, config.heads, config.width // config.heads)
        self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)
        self._taps_in = like.new_zeros(self._fresh, len(config.layers) * config.hidden)
        self._states = like.new_zeros(rows, config.width)
        self._ranked = torch.zeros(rows, RANKED, dtype=torch.long, device=like.device)
        self._chances = torch.zeros(levels, RANKED, device=like.device)
        self._at = torch.arange(config.tokens, device=like.device)
        # What the host tells a round: where the root's row is and how much is known; of each fresh
        # token itself, its place, what was expected and before, its entry; of each level likewise,
        # and whether alternatives lie apart there.
        sizes = 2, 5 * self._fresh, 4 * levels
        self._numbers = torch.zeros(sum(sizes), dtype=torch.long, device=like.device)
        ends, fresh, ahead = self._numbers.split(sizes)
        self._root, self._known = ends[:1], ends[1:]
        self._told_fresh, self._told_ahead = fresh.view(5, -1), ahead.view(4, -1)
        self._apart = max((reach(place) for place in range(config.tokens)), default=0)
        self._shape = torch.zeros(
            2 * (rows - 1) + frame.nodes, dtype=torch.long, device=like.device
        )
        self._hidden = torch.ones(rows - 1, rows - 1, dtype=torch.bool, device=like.device)
        self._parents, self._ranks, self._nodes = self._shape.split(
            (rows - 1, rows - 1, frame.nodes)
        )
        self.loaded: Shape | None = None

    # ------------------------------------------------------------------ what the host does

    def prepare(self) -> None:
        """Capture every graph. Forgets the answer."""
        levels = len(self._told_ahead[0])
        with torch.inference_mode():
            self._feed([self.first], ([-1], [-1]), ([-1] * levels, [-1] * levels), 0)
            if self._count > self._fresh:
                self._replay(None)
            for segment in self._segments:
                self._replay(segment)
        self.forget()

    def clear(self) -> None:
        super().clear()
        self._states.zero_()
        self._taps_in.zero_()

    def begin(self, tokens: Sequence[int], known: Expected, ahead: Expected) -> CapturedGrowth:
        """As there, but the pass over the root waits for ``CapturedGrowth.through``."""
        taps = torch.cat(self._taps) if len(self._taps) > 1 else self._taps[0]
        if len(taps) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens, but {len(taps)} states of the target")
        done = 0
        while True:
            part = slice(done, done + self._fresh)
            self._taps_in[: len(taps[part])].copy_(taps[part])
            self._feed(tokens[part], (known[0][part], known[1][part]), ahead, self.known + done)
            done += self._fresh
            if done >= len(tokens):
                break
            self._replay(None)
        self.known += len(tokens)
        self._taps.clear()
        return CapturedGrowth(self)

    def _feed(self, tokens: Sequence[int], behind: Expected, ahead: Expected, start: int) -> None:
        """Tell of so many fresh tokens, the first of position ``start``."""
        missing, count, end = self._fresh - len(tokens), self._count, start + len(tokens)
        nowhere, levels = len(self.keys) - 1, len(self._told_ahead[0])

        def filled(numbers: Sequence[int], filler: int) -> list[int]:
            return [*numbers, *[filler] * missing]

        told = [min(end + level, count - 1) for level in range(levels)]
        lasts = [[*part, *[-1] * levels][:levels] for part in ahead]
        numbers = [
            len(tokens) - 1, end,
            *filled(tokens, self.first),
            *filled(range(start + 1, end + 1), 0),
            *filled(behind[0], -1), *filled(behind[1], -1),
            *filled(range(start, end), nowhere),
            *told, *lasts[0], *lasts[1],
            *(int(self.reach(place) > 0) for place in told),
        ]  # fmt: skip
        self._numbers.copy_(torch.tensor(numbers))

    def replay(self, shape: Shape, segment: Segment) -> Outputs:
        """Tokens int64 [nodes] of the shape, and with ``watched`` the entropy; till the next
        replay."""
        if shape is not self.loaded:
            new = laid(shape, self.frame, self.keys.device)
            self._shape.copy_(new.numbers)
            self._hidden.copy_(new.hidden)
            self.loaded = shape
        return self._replay(segment)

    def _replay(self, segment: Segment | None) -> Outputs:
        graph = self._graphs.get(segment)
        if graph is None:
            graph = self._graphs[segment] = self._capture(lambda: self._run(segment))
        return graph()

    # ------------------------------------------------------------------ what a graph holds

    def _run(self, segment: Segment | None) -> Outputs:
        if segment is None:
            self._take()
            return ()
        start, end = segment
        unknown = (self._at >= self._known)[None]
        if not start:
            self._begin(unknown)
        for level in range(start + 1, end + 1):
            self._grow(level, unknown)
        tokens = self.first + self._ranked.flatten()[self._nodes]
        return (tokens, entropy(self._chances[: end + 1])) if self._watched else (tokens,)

    def _take(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Fresh tokens into the memory -> their states and queries."""
        tokens, places, last, before, entries = self._told_fresh.unbind(0)
        told, state = Told(places, last, before), self.head.seen(self._taps_in)
        q, k, v = self.head.project(state, self.embed(tokens), told, places - 1)
        self.keys.index_copy_(0, entries, k)
        self.values.index_copy_(0, entries, v)
        return state, q

    def _begin(self, unknown: torch.Tensor) -> None:
        state, q = (x.index_select(0, self._root) for x in self._take())
        out = attend(q, self.keys[: self._count], self.values[: self._count], unknown)
        self._states[:1] = self.head.finish(state, out)
        self._name(0)

    def _grow(self, level: int, unknown: torch.Tensor) -> None:
        start, end = self.frame.start(level), self.frame.start(level + 1)
        own, entries = slice(start - 1, end - 1), self._count + end - 1
        parents = self._parents[own]
        tokens = self.first + self._ranked[parents, self._ranks[own]]
        told, state = self._told_level(level, end - start), self._states[parents]
        q, k, v = self.head.project(state, self.embed(tokens), told, told.places - 1)
        self.keys[self._count + start - 1 : entries] = k
        self.values[self._count + start - 1 : entries] = v
        hidden = torch.cat((unknown.expand(end - start, -1), self._hidden[own, : end - 1]), 1)
        out = attend(q, self.keys[:entries], self.values[:entries], hidden)
        self._states[start:end] = self.head.finish(state, out)
        self._name(level)

    def _told_level(self, level: int, rows: int) -> Told:
        return Told(*(self._told_ahead[n, level : level + 1].expand(rows) for n in range(3)))

    def _name(self, level: int) -> None:
        """Rank what a level's rows say; the first of them is of the likeliest path."""
        start, end = self.frame.start(level), self.frame.start(level + 1)
        told = self._told_level(level, end - start)
        logits = self.head.logits(self._states[start:end], told).float()
        width = min(RANKED, logits.shape[1])
        values, there = logits.topk(width)
        if self._apart:
            apart = spaced(logits.softmax(-1), self._apart, width)
            there = torch.where(self._told_ahead[3, level] > 0, apart, there)
        self._ranked[start:end, :width] = there
        self._chances[level, :width] = (values[0] - logits[0].logsumexp(-1)).exp()


class CapturedGrowth:
    """One round, see :class:`vla_ros.engine.drafters.growth.Growth`."""

    def __init__(self, growing: CapturedGrowing) -> None:
        self._growing, self._level = growing, -1
        self._found: Outputs = ()

    def through(self, shape: Shape, levels: int) -> None:
        """Grow the levels up to that one; those that have grown stand. Of another shape, which
        must be alike so far, its nodes are named even where nothing is left to grow."""
        growing = self._growing
        if levels > self._level or shape is not growing.loaded:
            self._found = growing.replay(shape, (max(self._level, 0), levels))
            self._level = levels

    def tokens(self, shape: Shape) -> torch.Tensor:
        """Of a tree's nodes, int64 [N]; ``through`` must have named it last."""
        return self._found[0][: len(shape.nodes)].clone()

    def entropy(self) -> float:
        """Phi of the likeliest path so far, in nats. Reads the device."""
        return float(self._found[1])
