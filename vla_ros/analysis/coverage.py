"""What drafts a policy's recorded tokens would allow: coverage of alternatives, and passes.

An *alternative* is a guess at a token from the same place of the actions before it. Coverage is
the share of tokens that are among so many alternatives; passes are those of drafts verified
behind the prompt and then behind each correction, replayed on the tokens. What is fitted is
fitted on other episodes than it is judged by. numpy only.

Of a chunk of several actions a token has been said before by the last chunk, *shifted* by the steps
that were executed in between, and lies near the same token of the *previous step* of its own
chunk: there those stand for the actions before (:mod:`vla_ros.engine.trees.expecting`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vla_ros.engine.trees.expected import Budget, TreePlan, due, plan_trees
from vla_ros.engine.trees.expecting import Expecting
from vla_ros.engine.trees.marginals import WIDTH, TemporalMarginals
from vla_ros.engine.trees.shape import ROOT, DraftTree

Tokens = npt.NDArray[np.int32]  # [frames, K] of an episode
Floats = npt.NDArray[np.float64]

FOLDS = 2


@dataclass(frozen=True, slots=True)
class Chunks:
    """Answers of ``steps`` actions, of which ``executed`` are carried out before the next one;
    None: as many as would have been right of late."""

    steps: int = 1
    executed: int | None = None


SINGLE = Chunks()


@dataclass(frozen=True, slots=True)
class Covered:
    """Shares per token of an action, and of the actions that are covered in all but their last
    token: ``joint`` as counted, ``product`` were the tokens independent."""

    name: str
    shares: tuple[float, ...]
    joint: float
    product: float


@dataclass(frozen=True, slots=True)
class Replayed:
    """Passes an action; the draft tokens that stood and were verified in a pass that had any.

    ``expected`` is what the recursion says of the same marginals; None: not asked.
    """

    name: str
    frames: int
    passes: float
    accepted: float
    verified: float
    expected: float | None = None


def coverage(episodes: Sequence[Tokens], chunks: Chunks = SINGLE) -> list[Covered]:
    """Of the alternatives that one would think of, and of those that a fit gives, held out."""
    fixed = FIXED if chunks.steps == 1 else _of_chunks(chunks)
    return [
        *(_counted(name, episodes, near) for name, near in fixed.items()),
        *(_counted(f"fitted, {n}", episodes, None, n, chunks) for n in (1, 2, 3, 5, 8, WIDTH)),
    ]


def _repeat(within: int) -> Callable[[Tokens], npt.NDArray[np.bool_]]:
    return lambda e: np.abs(e[2:] - e[1:-1]) <= within


def _linear(within: int) -> Callable[[Tokens], npt.NDArray[np.bool_]]:
    return lambda e: np.abs(e[2:] - 2 * e[1:-1] + e[:-2]) <= within


#: name -> frames of an episode, from the third on, that it covers [frames - 2, K]
FIXED: dict[str, Callable[[Tokens], npt.NDArray[np.bool_]]] = {
    "repeat": _repeat(0),
    "linear": _linear(0),
    "repeat, linear": lambda e: _repeat(0)(e) | _linear(0)(e),
    "repeat ± 1": _repeat(1),
    "repeat ± 2": _repeat(2),
    "linear ± 1": _linear(1),
    "linear ± 2": _linear(2),
}


def _of_chunks(chunks: Chunks) -> dict[str, Callable[[Tokens], npt.NDArray[np.bool_]]]:
    """The free drafts of chunks. Where the last chunk says nothing of a step it covers nothing."""

    def shifted(e: Tokens) -> npt.NDArray[np.bool_]:
        return _rows(e, [own == guess for own, guess, _ in _looked(e, chunks)])

    def previous(e: Tokens) -> npt.NDArray[np.bool_]:
        return _rows(e, [own == guess for own, _, guess in _looked(e, chunks)])

    def drafted(within: int) -> Callable[[Tokens], npt.NDArray[np.bool_]]:
        def hits(e: Tokens) -> npt.NDArray[np.bool_]:
            apart = [np.abs(np.subtract(own, last)) for _, last, own in _triples(e, chunks)]
            return _rows(e, [one <= within for one in apart])

        return hits

    return {
        "last chunk, shifted": shifted,
        "previous step": previous,
        "either": lambda e: shifted(e) | previous(e),
        "as temporal drafts": drafted(0),
        "the same ± 1": drafted(1),
        "the same ± 2": drafted(2),
    }


def _rows(episode: Tokens, rows: list[npt.NDArray[np.bool_]]) -> npt.NDArray[np.bool_]:
    """[frames - 2, K], also of an episode that was over after two chunks."""
    return np.array(rows, np.bool_).reshape(-1, episode.shape[1])


def _looked(episode: Tokens, chunks: Chunks) -> Iterable[tuple[Tokens, Tokens, Tokens]]:
    """Of every frame from the third on: what was said, the last chunk shifted (-1 where it says
    nothing), and the step before each in the same chunk, before its first step what was executed
    last."""
    width = episode.shape[1]
    dim = width // chunks.steps
    for number, expecting in enumerate(_expecting(episode, chunks)):
        if number < 2:
            continue
        own, last = episode[number], episode[number - 1]
        row = expecting.row
        shifted = np.full(width, -1, np.int32)
        shifted[: width - row * dim] = last[row * dim :]
        before = last[max(row - 1, 0) * dim :][:dim]
        yield own, shifted, np.concatenate((before, own[:-dim]))


def _expecting(episode: Tokens, chunks: Chunks) -> Iterable[Expecting]:
    """Frame by frame as a drafter would have it before the frame is said."""
    width = episode.shape[1]
    expecting = Expecting(width // chunks.steps, chunks.steps, window_of([episode]))
    for number, own in enumerate(episode.tolist()):
        told = None if chunks.executed is None or not number else (number - 1, chunks.executed)
        expecting.begin(number, told)
        yield expecting
        expecting.observe(own)


def _counted(
    name: str,
    episodes: Sequence[Tokens],
    near: Callable[[Tokens], npt.NDArray[np.bool_]] | None,
    count: int = 0,
    chunks: Chunks = SINGLE,
) -> Covered:
    if near is not None:
        hits = np.concatenate([near(e) for e in episodes])
    else:
        hits = np.concatenate(
            [fold_hits(e, f, count, chunks) for e, f in _held_out(episodes, chunks)]
        )
    shares, drafted = hits.mean(0), hits[:, :-1]
    product = float(np.prod(drafted.mean(0)))
    return Covered(name, tuple(map(float, shares)), float(drafted.all(1).mean()), product)


def fold_hits(
    episode: Tokens, fitted: TemporalMarginals, count: int, chunks: Chunks = SINGLE
) -> npt.NDArray[np.bool_]:
    """[frames - 2, K]: whether a token is among the ``count`` likeliest alternatives."""
    hits = np.zeros((max(len(episode) - 2, 0), episode.shape[1]), bool)
    for row, (before, last, own) in enumerate(_triples(episode, chunks)):
        there = fitted.alternatives(last, before)
        hits[row] = [token in options[:count] for token, options in zip(own, there, strict=True)]
    return hits


def fit(episodes: Iterable[Tokens], window: range, chunks: Chunks = SINGLE) -> TemporalMarginals:
    """All frames weigh the same."""
    known = list(episodes)
    learned = TemporalMarginals(known[0].shape[1], window, decay=1.0)
    for episode in known:
        _learn(learned, episode, chunks)
    return learned


def _learn(learned: TemporalMarginals, episode: Tokens, chunks: Chunks) -> None:
    for before, last, own in _triples(episode, chunks):
        learned.update(last, before, own, learned.alternatives(last, before))


def _triples(
    episode: Tokens, chunks: Chunks = SINGLE
) -> Iterable[tuple[list[int], list[int], list[int]]]:
    """Every frame from the third on, behind what it is expected to say and what stood before."""
    if chunks.steps == 1:
        rows = episode.tolist()
        return zip(rows, rows[1:], rows[2:], strict=False)
    return list(_frames(episode, chunks))[1:]


def window_of(episodes: Iterable[Tokens]) -> range:
    """From the least to the greatest token there is."""
    known = list(episodes)
    least, most = min(int(e.min()) for e in known), max(int(e.max()) for e in known)
    return range(least, most + 1)


def _held_out(episodes: Sequence[Tokens], chunks: Chunks) -> list[tuple[Tokens, TemporalMarginals]]:
    """Every episode with what was fitted on the other folds'."""
    window = window_of(episodes)
    fits = [
        fit((e for n, e in enumerate(episodes) if n % FOLDS != fold), window, chunks)
        for fold in range(FOLDS)
    ]
    return [(e, fits[n % FOLDS]) for n, e in enumerate(episodes)]


# ------------------------------------------------------------------ passes


def chain(episodes: Sequence[Tokens], chunks: Chunks = SINGLE) -> Replayed:
    """The last action as the draft of the next, redrafted after every miss; an episode's first
    action has no draft. Of chunks what ``temporal`` drafts."""
    drafted = episodes[0].shape[1] - 1
    if chunks.steps == 1:
        hits = [e[1:] == e[:-1] for e in episodes]
    else:
        hits = [
            np.array([np.equal(own, last) for _, last, own in _frames(e, chunks)]) for e in episodes
        ]
    stood = np.concatenate([one[:, :drafted] for one in hits])
    frames = sum(map(len, episodes))
    passes = len(stood) + int((~stood).sum()) + len(episodes) * (drafted + 1)
    count = _Count()
    for row in stood:
        known = 0
        while known < drafted:
            rest = row[known:]
            first = int(rest.argmin()) if not rest.all() else len(rest)
            count.drafted(first, len(rest))
            known += first + 1
    expected = 1.0 + float((~stood).mean(0).sum())
    return Replayed("chain", frames, passes / frames, *count.means, expected)


def trees(
    episodes: Sequence[Tokens], budget: Budget, name: str, chunks: Chunks = SINGLE
) -> Replayed:
    """Trees fitted on the other folds' episodes, kept as they are."""
    window, count, expected, frames = window_of(episodes), _Count(), [], 0
    for fold in range(FOLDS):
        others = (e for n, e in enumerate(episodes) if n % FOLDS != fold)
        fitted = fit(others, window, chunks)
        plan = plan_trees(fitted.chances[:-1], budget)
        expected.append(plan.passes)
        for episode in episodes[fold::FOLDS]:
            count.first(episode.shape[1])
            for before, last, own in _frames(episode, chunks):
                _play(own, fitted.alternatives(last, before), plan, count)
            frames += len(episode)
    return Replayed(name, frames, count.passes / frames, *count.means, float(np.mean(expected)))


def learning(
    episodes: Sequence[Tokens], budget: Budget, anew: bool, name: str, chunks: Chunks = SINGLE
) -> Replayed:
    """Learned while it goes, as the drafter does: from episode to episode, or anew in each."""
    window, count = window_of(episodes), _Count()
    learned = TemporalMarginals(episodes[0].shape[1], window)
    seen = 0
    for episode in episodes:
        count.first(episode.shape[1])
        if anew:
            learned.forget()
            seen = 0
        for before, last, own in _frames(episode, chunks):
            if due(seen):
                plan = plan_trees(learned.chances[:-1], budget)
            there = learned.alternatives(last, before)
            _play(own, there, plan, count)
            learned.update(last, before, own, there)
            seen += 1
    frames = sum(map(len, episodes))
    return Replayed(name, frames, count.passes / frames, *count.means)


def _frames(
    episode: Tokens, chunks: Chunks = SINGLE
) -> Iterable[tuple[list[int], list[int], list[int]]]:
    """Every frame but the first, behind what is expected of it and what stood before that: of
    single actions the two before it; the second has one only."""
    rows = episode.tolist()
    if chunks.steps == 1:
        yield from zip([[], *rows], rows, rows[1:], strict=False)
        return
    for number, expecting in enumerate(_expecting(episode, chunks)):
        if number:
            last, before = expecting.look(rows[number], 0, len(rows[number]))
            yield list(before), list(last), rows[number]


class _Count:
    """Passes, and of those with a draft how many tokens stood and were verified."""

    def __init__(self) -> None:
        self.passes = self._with = self._accepted = self._verified = 0

    def first(self, tokens: int) -> None:
        """An action without any draft."""
        self.passes += tokens

    def drafted(self, accepted: int, verified: int) -> None:
        self._with += 1
        self._accepted += accepted
        self._verified += verified

    @property
    def means(self) -> tuple[float, float]:
        """Accepted and verified tokens of a pass with a draft."""
        each = max(self._with, 1)
        return self._accepted / each, self._verified / each


def _play(own: Sequence[int], there: Sequence[Sequence[int]], plan: TreePlan, to: _Count) -> None:
    """The passes of one action."""
    known = 0
    while known < len(own):
        to.passes += 1
        tree = plan.trees[known] if known < len(plan.trees) else DraftTree()
        stood = stands(tree, own[known:], there[known:])
        if len(tree):
            to.drafted(stood, len(tree))
        known += stood + 1


def stands(tree: DraftTree, own: Sequence[int], there: Sequence[Sequence[int]]) -> int:
    """Levels of a tree that stand: from the root on, the child that says what the target says."""
    node = ROOT
    places = {edge: n for n, edge in enumerate(zip(tree.parents, tree.ranks, strict=True))}
    for level, (token, options) in enumerate(zip(own, there, strict=True)):
        rank = options.index(token) if token in options else -1
        if (node, rank) not in places:
            return level
        node = places[node, rank]
    return len(own)
