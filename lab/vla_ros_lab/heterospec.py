"""HeteroSpec's calibration and what it is held against, on recorded tokens: no model runs.

*CART* (Breiman et al.) for a scalar: the thresholds that cut an entropy into bins of like outcome.
Every part is cut where the squared error of the two means is least, then each half again, so 3
levels make at most 8 bins (HeteroSpec, section 4.2, eq. 2).

*Replayed rounds*: greedy verification changes no token, so what a policy said tells what every
draft would have come to. An action is a few rounds: with s tokens known a tree is verified, the
levels that stand and one token more become known, and so on. The first action of an episode has no
draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from vla_ros.engine.decoding.draft_tree import ROOT, DraftTree
from vla_ros.engine.decoding.temporal_prediction import (
    Candidates,
    TemporalMarginals,
    TemporalPredictor,
)
from vla_ros_lab.decodings.calibration import VERSION, Calibration, top_entropy

Floats = npt.NDArray[np.float64]

LEVELS = 3


def fit_thresholds(
    values: Sequence[float], targets: Sequence[float], levels: int = LEVELS, least: int = 1
) -> tuple[float, ...]:
    """Rising thresholds, at most 2 ** levels - 1; a value on one belongs to the bin below it.

    No bin has fewer than ``least`` samples; where no cut lessens the error there is none.
    ValueError for lists of different length.
    """
    if len(values) != len(targets):
        raise ValueError(f"{len(values)} values for {len(targets)} targets")
    x, y = np.asarray(values, np.float64), np.asarray(targets, np.float64)
    order = np.argsort(x, kind="stable")
    return tuple(_cuts(x[order], y[order], levels, max(least, 1)))


def _cuts(x: Floats, y: Floats, levels: int, least: int) -> list[float]:
    place = best_split(x, y, least) if levels else None
    if place is None:
        return []
    below = _cuts(x[:place], y[:place], levels - 1, least)
    above = _cuts(x[place:], y[place:], levels - 1, least)
    return [*below, _between(float(x[place - 1]), float(x[place])), *above]


def best_split(x: Floats, y: Floats, least: int = 1) -> int | None:
    """How many samples of sorted ``x`` [n] lie below the cut of least squared error.

    None where none lessens it: too few samples, equal values, equal targets.
    """
    count = len(x)
    if count < 2 * least:
        return None
    centered = y - y.mean()  # no square of a large mean is subtracted from another
    below = np.cumsum(centered)[:-1]
    sizes = np.arange(1, count)
    # The error falls by what the two means explain: s^2 / n below and above, with s_above = -s.
    gain = below**2 / sizes + below**2 / (count - sizes)
    allowed = (x[1:] > x[:-1]) & (sizes >= least) & (count - sizes >= least)
    gain = np.where(allowed, gain, 0.0)
    place = int(gain.argmax())
    noise = 1e-12 * float(centered @ centered)
    return place + 1 if gain[place] > noise else None


def _between(low: float, high: float) -> float:
    """A threshold that keeps ``low`` below and ``high`` above, however close they are."""
    middle = low + (high - low) / 2
    return middle if low <= middle < high else low


Chances = npt.NDArray[np.float32]
Ranks = npt.NDArray[np.int8]
#: the actions of an episode, in order; each has the same number of tokens
Episode = Sequence[Sequence[int]]
#: an offer of the open places and the number of known tokens -> the tree to verify
Choose = Callable[[Candidates, int], DraftTree]


@dataclass(frozen=True, slots=True)
class DraftedFrame:
    """A frame: what was offered for it (None: an episode's first), what was said, and the
    ``ranks`` of that among what was offered, -1 where it was not."""

    offer: Candidates | None
    own: tuple[int, ...]
    ranks: tuple[int, ...] = ()

    def open(self, known: int) -> Candidates | None:
        """What is offered of the places behind ``known``, the last one too."""
        return None if self.offer is None else self.offer.behind(known)

    def right(self, known: int) -> Sequence[int]:
        """The rank of what was said at each place behind ``known``."""
        return self.ranks[known:]


@dataclass(frozen=True, slots=True)
class Unrolled(DraftedFrame):
    """A frame that a recursive head drafted: what it offers depends on what is known.

    ``offer`` and ``ranks`` are of what is drafted behind the prompt. With s + 1 tokens known,
    ``chances`` [s, level, ranks] are those of its likeliest path, and ``found`` [s, level] the rank
    of what was said, given that all before it was drafted; -1 where it was not offered.
    """

    chances: Chances = field(default_factory=lambda: np.zeros((0, 0, 0), np.float32))
    found: Ranks = field(default_factory=lambda: np.zeros((0, 0), np.int8))

    def open(self, known: int) -> Candidates | None:
        if not known:
            return DraftedFrame.open(self, 0)
        if known > len(self.chances):
            return None
        open_ = self.chances[known - 1][: len(self.chances) + 1 - known]
        levels = tuple(tuple(level) for level in open_.tolist())
        return Candidates((), (*levels, (1.0,)))  # the last token, which is not drafted

    def right(self, known: int) -> Sequence[int]:
        if not known:
            return self.ranks
        if known > len(self.found):
            return ()
        ranks: list[int] = self.found[known - 1][: len(self.found) + 1 - known].tolist()
        return ranks


@dataclass(frozen=True, slots=True)
class DraftRound:
    """A pass. ``node`` is the deepest of ``tree`` that stood, ROOT where none did."""

    shown: DraftedFrame
    known: int
    tree: DraftTree
    node: int

    @property
    def stood(self) -> int:
        """Levels."""
        return 0 if self.node == ROOT else self.tree.levels[self.node]

    @property
    def offered(self) -> tuple[tuple[float, ...], ...]:
        """The chances of the open tokens."""
        offer = self.shown.open(self.known)
        assert offer is not None
        return offer.chances

    @property
    def rank(self) -> int:
        """TCR: the rank by V, from 1 on, of the deepest node that stood; N + 1 where none did.

        V by this round's own chances. The paper leaves out rounds that fail; with them left out
        a bin that always fails would look like a sure one.
        """
        if self.node == ROOT:
            return len(self.tree) + 1
        chances = self.tree.chances(self.offered)
        mine = chances[self.node]
        before = sum(c > mine for c in chances)
        return 1 + before + sum(c == mine for c in chances[: self.node])


def shown(
    episodes: Iterable[Episode],
    window: range,
    anew: bool = False,
    positions: int | None = None,
    steps: int = 1,
) -> list[DraftedFrame]:
    """The frames of all episodes; what is learned goes on from one to the next, or ``anew``.

    Of a policy that gives chunks an answer has ``steps`` actions. What is offered for a step that
    the last chunk does not speak of is offered as if the step before it were known.
    """
    found: list[DraftedFrame] = []
    learned: TemporalMarginals | None = None
    expecting: TemporalPredictor | None = None
    for episode in episodes:
        if learned is None or expecting is None:
            count = positions or len(episode[0])
            learned = TemporalMarginals(count, window)
            expecting = TemporalPredictor(count // steps, steps, window)
        elif anew:
            learned.forget()
        expecting.forget(anew)
        for number, own in enumerate(episode):
            expecting.begin(number)
            last, before = expecting.predict(own, 0, len(own))
            if last:
                offer = learned.candidates(last, before)
                ranks = tuple(map(rank_of, own, offer.tokens))
                found.append(DraftedFrame(offer, tuple(own), ranks))
                learned.update(last, before, own, offer.tokens)
            else:
                found.append(DraftedFrame(None, tuple(own)))
            expecting.observe(own)
    return found


def rank_of(token: int, there: Sequence[int]) -> int:
    """Its place among the alternatives; -1: it is none of them."""
    return there.index(token) if token in there else -1


def rounds(frames: Iterable[DraftedFrame], choose: Choose) -> Iterator[DraftRound]:
    """Every pass of every frame, one without a draft as one of an empty tree."""
    for frame in frames:
        known = 0
        while known < len(frame.own):
            offer = frame.open(known) if len(frame.own) - known > 1 else None
            tree = choose(offer, known) if offer is not None else EMPTY
            node = deepest(tree, frame.right(known))
            yield DraftRound(frame, known, tree, node)
            known += 1 + (0 if node == ROOT else tree.levels[node])


def hindsight(frames: Iterable[DraftedFrame]) -> Iterator[DraftRound]:
    """A bound: of each round only the path that stands, as far as its tokens were offered."""
    for frame in frames:
        known = 0
        while known < len(frame.own):
            path: list[int] = []
            for rank in frame.right(known)[: len(frame.own) - 1 - known]:
                if rank < 0:
                    break
                path.append(rank)
            tree = DraftTree(tuple(range(ROOT, len(path) - 1)), tuple(path))
            yield DraftRound(frame, known, tree, len(path) - 1)
            known += len(path) + 1


EMPTY = DraftTree()


def deepest(tree: DraftTree, ranks: Sequence[int]) -> int:
    """The last node of the branch of these ranks, as far as the tree has it; ROOT: not even one."""
    places, node = _places(tree), ROOT
    for rank in ranks:
        below = places.get((node, rank))
        if below is None:
            break
        node = below
    return node


@lru_cache(4096)
def _places(tree: DraftTree) -> Mapping[tuple[int, int], int]:
    """(parent, rank) -> node."""
    return {edge: n for n, edge in enumerate(zip(tree.parents, tree.ranks, strict=True))}


SLOPE = 0.2  # of AdaEDL's bound


def least_acceptance(chances: Sequence[float]) -> float:
    """How likely a draft of one token stands at least, by the entropy of its top-K chances.

    AdaEDL's lower bound (Agrawal et al.), 1 - sqrt(slope * H); below 0 it says nothing.
    """
    return 1.0 - sqrt(SLOPE * top_entropy(chances))


def to_json(calibration: Calibration) -> dict[str, Any]:
    """For the file; chances to four digits, without the zeros at the end."""
    return {
        "format": "heterospec",
        "version": VERSION,
        "about": dict(calibration.about),
        "levels": calibration.levels,
        "nodes": [calibration.base.prompt, calibration.base.alone],
        "states": [
            {
                "thresholds": [round(t, 6) for t in state.thresholds],
                "rounds": list(state.rounds),
                "chances": [[_short(level) for level in chances] for chances in state.chances],
            }
            for state in calibration.states
        ],
    }


def _short(level: Sequence[float]) -> list[float]:
    digits = [round(chance, 4) for chance in level]
    while digits and digits[-1] == 0.0:
        digits.pop()
    return digits
