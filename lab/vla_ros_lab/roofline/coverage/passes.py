"""How many passes drafts would have taken: a chain, fitted trees, trees that learn as they go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vla_ros.engine.decoding.draft_tree import ROOT, Budget, TreePlan, due, plan_trees
from vla_ros.engine.decoding.temporal_prediction import TemporalMarginals
from vla_ros_lab.heterospec import EMPTY, deepest, rank_of
from vla_ros_lab.roofline.coverage.episodes import (
    FOLDS,
    SINGLE,
    Chunks,
    Tokens,
    fit,
    met_frames,
    window_of,
)


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


def chain(episodes: Sequence[Tokens], chunks: Chunks = SINGLE) -> Replayed:
    """The last action as the draft of the next, redrafted after every miss; an episode's first
    action has no draft. Of chunks what ``temporal`` drafts."""
    drafted = episodes[0].shape[1] - 1
    if chunks.steps == 1:
        hits = [e[1:] == e[:-1] for e in episodes]
    else:
        hits = [
            np.array([np.equal(own, last) for _, last, own in met_frames(e, chunks)])
            for e in episodes
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
            for before, last, own in met_frames(episode, chunks):
                _play(own, fitted.candidates(last, before).tokens, plan, count)
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
        for before, last, own in met_frames(episode, chunks):
            if due(seen):
                plan = plan_trees(learned.chances[:-1], budget)
            there = learned.candidates(last, before).tokens
            _play(own, there, plan, count)
            learned.update(last, before, own, there)
            seen += 1
    frames = sum(map(len, episodes))
    return Replayed(name, frames, count.passes / frames, *count.means)


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
    ranks, known = list(map(rank_of, own, there)), 0
    while known < len(own):
        to.passes += 1
        tree = plan.trees[known] if known < len(plan.trees) else EMPTY
        node = deepest(tree, ranks[known:])
        stood = 0 if node == ROOT else tree.levels[node]
        if len(tree):
            to.drafted(stood, len(tree))
        known += stood + 1
