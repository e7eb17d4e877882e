"""Success with its interval, and spreads put together. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from vla_ros.evaluation.records import QUANTILES, Spread

Z95 = 1.959963984540054  # of the normal distribution, both sides together 5 %
_POINTS = 200  # that stand for one spread among others


def wilson(successes: int, episodes: int, z: float = Z95) -> tuple[float, float]:
    """Interval of a share (Wilson 1927): (0, 1) without episodes. ValueError: more successes
    than episodes.

    Unlike the usual one it is no point at 0 and 100 %, where few episodes prove little.
    """
    if not 0 <= successes <= episodes:
        raise ValueError(f"{successes} successes of {episodes} episodes")
    if episodes == 0:
        return 0.0, 1.0
    share, part = successes / episodes, z * z / episodes
    middle = (share + part / 2) / (1 + part)
    half = z / (1 + part) * math.sqrt(share * (1 - share) / episodes + part / (4 * episodes))
    low = 0.0 if successes == 0 else middle - half
    high = 1.0 if successes == episodes else middle + half
    return max(0.0, low), min(1.0, high)


def mcnemar(won: int, lost: int) -> float:
    """Two-sided p of a paired comparison (McNemar 1947, the exact binomial form).

    ``won``, ``lost``: episodes that ended differently from the same initial state, one way and the
    other; those that end alike say nothing. 1.0 where there is none; ValueError for less than 0.
    """
    if won < 0 or lost < 0:
        raise ValueError(f"{won} won, {lost} lost: give 0 or more")
    count = won + lost
    tail = sum(math.comb(count, k) for k in range(min(won, lost) + 1))
    return min(1.0, 2 * tail / 2**count)


def pooled(spreads: Iterable[Spread]) -> Spread:
    """The spread of all samples together: count, mean, least and most are exact, the other
    quantiles as near as 21 quantiles of each allow."""
    some = [spread for spread in spreads if spread.count]
    if len(some) < 2:
        return some[0] if some else Spread()
    total = sum(spread.count for spread in some)
    mean = sum(spread.count * spread.mean for spread in some) / total
    places = (np.arange(_POINTS) + 0.5) * (100.0 / _POINTS)
    values = np.concatenate([np.interp(places, QUANTILES, s.quantiles) for s in some])
    weights = np.repeat([s.count / total / _POINTS for s in some], _POINTS)
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    shares = 100.0 * (np.cumsum(weights) - weights / 2)
    marks = np.interp(QUANTILES, shares, values)
    marks[0] = min(spread.quantiles[0] for spread in some)
    marks[-1] = max(spread.quantiles[-1] for spread in some)
    return Spread(total, mean, tuple(map(float, marks)))
