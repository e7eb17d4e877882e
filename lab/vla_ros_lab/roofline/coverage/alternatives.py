"""How often a token is among the alternatives: those one would think of, and those of a fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vla_ros.engine.decoding.temporal_prediction import WIDTH, TemporalMarginals
from vla_ros_lab.roofline.coverage.episodes import (
    SINGLE,
    Chunks,
    Tokens,
    expectations,
    held_out,
    triples,
)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares per token of an action, and of the actions that are covered in all but their last
    token: ``joint`` as counted, ``product`` were the tokens independent."""

    name: str
    shares: tuple[float, ...]
    joint: float
    product: float


def coverage(episodes: Sequence[Tokens], chunks: Chunks = SINGLE) -> list[Coverage]:
    """Coverage, held out, of alternatives that one would think of and of those that a fit gives."""
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
            apart = [np.abs(np.subtract(own, last)) for _, last, own in triples(e, chunks)]
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
    """Each frame from the third on: its tokens, the last chunk shifted (-1 where it says
    nothing), and the step before each in the same chunk, before its first step what was executed
    last."""
    width = episode.shape[1]
    dim = width // chunks.steps
    for number, expecting in enumerate(expectations(episode, chunks)):
        if number < 2:
            continue
        own, last = episode[number], episode[number - 1]
        row = expecting.row
        shifted = np.full(width, -1, np.int32)
        shifted[: width - row * dim] = last[row * dim :]
        before = last[max(row - 1, 0) * dim :][:dim]
        yield own, shifted, np.concatenate((before, own[:-dim]))


def _counted(
    name: str,
    episodes: Sequence[Tokens],
    near: Callable[[Tokens], npt.NDArray[np.bool_]] | None,
    count: int = 0,
    chunks: Chunks = SINGLE,
) -> Coverage:
    if near is not None:
        hits = np.concatenate([near(e) for e in episodes])
    else:
        hits = np.concatenate(
            [fold_hits(e, f, count, chunks) for e, f in held_out(episodes, chunks)]
        )
    shares, drafted = hits.mean(0), hits[:, :-1]
    product = float(np.prod(drafted.mean(0)))
    return Coverage(name, tuple(map(float, shares)), float(drafted.all(1).mean()), product)


def fold_hits(
    episode: Tokens, fitted: TemporalMarginals, count: int, chunks: Chunks = SINGLE
) -> npt.NDArray[np.bool_]:
    """[frames - 2, K]: whether a token is among the ``count`` likeliest alternatives."""
    hits = np.zeros((max(len(episode) - 2, 0), episode.shape[1]), bool)
    for row, (before, last, own) in enumerate(triples(episode, chunks)):
        there = fitted.candidates(last, before).tokens
        hits[row] = [token in options[:count] for token, options in zip(own, there, strict=True)]
    return hits
