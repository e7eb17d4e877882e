"""A regression tree on one number: the thresholds that cut it into bins of like outcome.

Breiman et al.'s CART for a scalar: every part is cut where the squared error of the two means is
least, then each half again, so 3 levels make at most 8 bins (HeteroSpec, section 4.2, eq. 2).
With one number, sorting once is all there is to it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

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
    """Of sorted ``x`` [n]: how many samples lie below the cut of least squared error.

    None where none lessens it: too few samples, equal values, equal targets.
    """
    count = len(x)
    if count < 2 * least:
        return None
    centred = y - y.mean()  # no square of a large mean is subtracted from another
    below = np.cumsum(centred)[:-1]
    sizes = np.arange(1, count)
    # The error falls by what the two means explain: s^2 / n below and above, with s_above = -s.
    gain = below**2 / sizes + below**2 / (count - sizes)
    allowed = (x[1:] > x[:-1]) & (sizes >= least) & (count - sizes >= least)
    gain = np.where(allowed, gain, 0.0)
    place = int(gain.argmax())
    noise = 1e-12 * float(centred @ centred)
    return place + 1 if gain[place] > noise else None


def _between(low: float, high: float) -> float:
    """A threshold that keeps ``low`` below and ``high`` above, however close they are."""
    middle = low + (high - low) / 2
    return middle if low <= middle < high else low


def bin_of(value: float, thresholds: Sequence[float]) -> int:
    """The bin of a value, 0 being the lowest."""
    return bisect_left(thresholds, value)
