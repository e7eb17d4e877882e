"""Recorded episodes as a drafter meets them: what is expected of a frame, and learned of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vla_ros.engine.decoding.temporal_prediction import TemporalMarginals, TemporalPredictor

Tokens = npt.NDArray[np.int32]  # [frames, K] of an episode

FOLDS = 2


@dataclass(frozen=True, slots=True)
class Chunks:
    """Answers of ``steps`` actions, of which ``executed`` are carried out before the next one;
    None: as many as would have been right of late."""

    steps: int = 1
    executed: int | None = None


SINGLE = Chunks()


def fit(episodes: Iterable[Tokens], window: range, chunks: Chunks = SINGLE) -> TemporalMarginals:
    """All frames weigh the same."""
    known = list(episodes)
    learned = TemporalMarginals(known[0].shape[1], window, decay=1.0)
    for episode in known:
        _learn(learned, episode, chunks)
    return learned


def _learn(learned: TemporalMarginals, episode: Tokens, chunks: Chunks) -> None:
    for before, last, own in triples(episode, chunks):
        learned.update(last, before, own, learned.candidates(last, before).tokens)


def triples(
    episode: Tokens, chunks: Chunks = SINGLE
) -> Iterable[tuple[list[int], list[int], list[int]]]:
    """Every frame from the third on, behind what it is expected to say and what stood before."""
    if chunks.steps == 1:
        rows = episode.tolist()
        return zip(rows, rows[1:], rows[2:], strict=False)
    return list(met_frames(episode, chunks))[1:]


def window_of(episodes: Iterable[Tokens]) -> range:
    """From the least to the greatest token there is."""
    known = list(episodes)
    least, most = min(int(e.min()) for e in known), max(int(e.max()) for e in known)
    return range(least, most + 1)


def held_out(episodes: Sequence[Tokens], chunks: Chunks) -> list[tuple[Tokens, TemporalMarginals]]:
    """Every episode with what was fitted on the other folds'."""
    window = window_of(episodes)
    fits = [
        fit((e for n, e in enumerate(episodes) if n % FOLDS != fold), window, chunks)
        for fold in range(FOLDS)
    ]
    return [(e, fits[n % FOLDS]) for n, e in enumerate(episodes)]


def met_frames(
    episode: Tokens, chunks: Chunks = SINGLE
) -> Iterable[tuple[list[int], list[int], list[int]]]:
    """Every frame but the first, behind what is expected of it and what stood before that: of
    single actions the two before it; the second has one only."""
    rows = episode.tolist()
    if chunks.steps == 1:
        yield from zip([[], *rows], rows, rows[1:], strict=False)
        return
    for number, expecting in enumerate(expectations(episode, chunks)):
        if number:
            last, before = expecting.predict(rows[number], 0, len(rows[number]))
            yield list(before), list(last), rows[number]


def expectations(episode: Tokens, chunks: Chunks) -> Iterable[TemporalPredictor]:
    """Frame by frame as a drafter would have it before the frame is said."""
    width = episode.shape[1]
    expecting = TemporalPredictor(width // chunks.steps, chunks.steps, window_of([episode]))
    for number, own in enumerate(episode.tolist()):
        told = None if chunks.executed is None or not number else (number - 1, chunks.executed)
        expecting.begin(number, told)
        yield expecting
        expecting.observe(own)
