"""Speculation calculated: expected tokens and passes, speedup, break-even, the landscape.

alpha is the probability that a drafted token is the target's own, taken as independent from
token to token; gamma the drafted tokens a round; c the time of a draft step over the time of a
target pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from vla_ros.engine.decoding.draft_tree import level_sums, likeliest, passes_from
from vla_ros.engine.decoding.temporal_prediction import PRIOR, WIDTH

Floats = npt.NDArray[np.float64]

#: of the tokens that are none of the alternatives to the last action, the share that a head that
#: reads the target's hidden states misses too: an assumption, fitted to the shipped policy
MISSED = 0.6


def _probability(alpha: float) -> float:
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha is {alpha:g}: it is a probability, 0 to 1")
    return float(alpha)


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens a round yields: (1 - alpha^(gamma + 1)) / (1 - alpha).

    Source: Leviathan, Kalman and Matias, "Fast inference from transformers via speculative
    decoding", ICML 2023, equation 1. Written as the sum it is of, so that alpha = 1 is no case.
    """
    alpha = _probability(alpha)
    return float(sum(alpha**i for i in range(gamma + 1)))


def speedup(alpha: float, gamma: int, c: float) -> float:
    """E[tokens] / (1 + c gamma): over plain decoding, prefill left aside.

    Source: Leviathan et al. 2023, theorem 3.8 (their factor, with the costs of a round).
    """
    return expected_tokens(alpha, gamma) / (1.0 + c * gamma)


def break_even(gamma: int, c: float) -> float | None:
    """The acceptance from which a round gains time; None where even alpha = 1 does not pay.

    Root of E[tokens] = 1 + c gamma by bisection: the left side grows with alpha, from 1 to
    gamma + 1, so c = 1 is the dearest draft that can ever pay (Leviathan et al., corollary 3.9).
    """
    return None if c >= 1.0 else least(60, lambda alpha: speedup(alpha, gamma, c) >= 1.0)


def least(halvings: int, enough: Callable[[float], bool]) -> float:
    """The least chance that is enough, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def best_gamma(alpha: float, c: float, longest: int = 16) -> int:
    """The draft length of the greatest speedup; 0 where none pays (Leviathan et al., 3.4)."""
    gains = [1.0] + [speedup(alpha, gamma, c) for gamma in range(1, longest + 1)]
    return int(np.argmax(gains))


def landscape(gamma: int, alphas: Sequence[float], costs: Sequence[float]) -> Floats:
    """Speedup [len(costs), len(alphas)] over acceptance and draft cost."""
    return np.array([[speedup(a, gamma, c) for a in alphas] for c in costs])


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected target passes of an action, and tokens drafted for it."""

    passes: float
    drafted: float


def fused(alpha: float, tokens: int, gamma: int | None = None) -> Expected:
    """Passes of prefill-fused speculation: this project's ``speculative`` decoding.

    The first pass is the prefill with the draft behind it; each pass yields its accepted draft
    tokens and one token of the target, and is what the next draft starts from. With n tokens
    left and g = min(gamma, n - 1) drafted,

        E(n) = 1 + sum_{j < g} alpha^j (1 - alpha) E(n - j - 1) + alpha^g E(n - g - 1),

    E(0) = 0. With gamma >= tokens - 1 that is 1 + (tokens - 1) (1 - alpha): each drafted token
    that is wrong costs one pass, whichever it is. Derived here from Leviathan et al., algorithm
    1, with the bonus token that it has.
    """
    return _expected(_probability(alpha), tokens, gamma or max(tokens - 1, 1), lone=False)


def unfused(alpha: float, tokens: int, gamma: int) -> Expected:
    """Passes of the ETH report's decoding: a plain prefill, then rounds of draft, verification, and
    a pass for the correction or bonus token alone. The prefill is counted as a pass."""
    after = _expected(_probability(alpha), tokens, gamma, lone=True)
    return Expected(1.0 + after.passes, after.drafted)


def _expected(alpha: float, tokens: int, gamma: int, lone: bool) -> Expected:
    """``lone``: a correction needs a pass of its own, and a last single token needs none."""
    passes, drafted = [0.0], [0.0]
    for left in range(1, tokens + 1):
        g = min(gamma, left - 1)
        if lone and left == 1:
            passes.append(0.0)
            drafted.append(0.0)
            continue
        p, d = 1.0, float(g)
        for j in range(g + 1):
            chance = alpha**j * ((1.0 - alpha) if j < g else 1.0)
            rest = left - j - 1
            p += chance * (passes[rest] + (1.0 if lone and rest else 0.0))
            d += chance * drafted[rest]
        passes.append(p)
        drafted.append(d)
    return Expected(passes[tokens], drafted[tokens])


def alternatives(alpha: float) -> list[float]:
    """Chances of a token's alternatives, the likeliest being right with ``alpha``.

    The others fall with (1 + rank) to the power of -1.5 as far as the rest allows, an assumption
    that fits the shipped policy (benchmarks/trees): at its mean of 0.55 it gives trees 2.5 passes
    where 2.6 were counted.
    """
    falling = [(1.0 + rank) ** -PRIOR for rank in range(1, WIDTH)]
    return [alpha, *(min(alpha, (1.0 - alpha) / sum(falling)) * part for part in falling)]


# Trees that a recursive draft head makes of a chunk, token by token.


#: level sums (S_0 = 1, S_1, ...) of a tree of at most so many levels
Sums = Callable[[int], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Rounds:
    """A chunk's expected target passes and passes of the head, of trees ``levels`` deep, and
    E[s] of every number s of known tokens."""

    passes: float
    head_passes: float
    levels: int
    expected: tuple[float, ...]


def covered(coverage: float) -> Sums:
    """Trees whose every level holds the right token with the same chance, if all before it did."""
    return lambda levels: [coverage**level for level in range(levels + 1)]


def ranked(alpha: float, nodes: int) -> Sums:
    """The likeliest trees of so many nodes, the alternatives' chances as those of `temporal_tree`,
    but that the head misses :data:`MISSED` of what the last chunk misses."""
    return lambda levels: _ranked(1.0 - MISSED * (1.0 - alpha), nodes, levels)


@lru_cache(maxsize=512)
def _ranked(seen: float, nodes: int, levels: int) -> tuple[float, ...]:
    marginals = [alternatives(seen)] * levels
    return tuple(level_sums(likeliest(marginals, nodes), marginals))


def rounds(tokens: int, later: Sums, levels: int, first: Sequence[float] = (1.0,)) -> Rounds:
    """Rounds of a chunk: ``first`` are the level sums of the draft behind the prompt, which is none
    of the head's; in every later pass it drafts ``levels``, or what is left.

    The recursion of :mod:`vla_ros.engine.decoding.draft_tree`. The last token comes with its
    predecessor's pass, so with s tokens known there are at most tokens - 1 - s levels. Far from
    the end a round yields (1 - c^(levels + 1)) / (1 - c) tokens of coverage c.
    """
    expected, drafting = [0.0] * (tokens + 1), [0.0] * (tokens + 1)
    for known in reversed(range(tokens)):
        depth = min(levels, tokens - 1 - known) if known else 0
        sums = later(depth) if known else first
        expected[known] = passes_from(known, sums, expected)
        # the same sum of the head's passes: its own now instead of one pass of the target
        drafting[known] = passes_from(known, sums, drafting) - 1.0 + depth
    return Rounds(expected[0], drafting[0], levels, tuple(expected))
