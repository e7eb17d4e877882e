"""Does a process grow? Resident memory and open files over its life, and a line through them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PAGE_MB = 4096 / 1e6
SETTLING_S = (600.0, 900.0)  # at least, at most; between them a quarter of a life
BLOCKS = 10  # of the series: neighboring samples are no independent witnesses
_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31}  # 95 %, both sides


@dataclass(frozen=True, slots=True)
class MemorySample:
    """One look at a process. ``life`` tells processes that followed one another apart: a worker
    that was killed has a successor."""

    at_s: float
    life: int
    memory_mb: float
    files: int


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth in an hour with its 95 % interval; NaN where there is too little to say."""

    per_hour: float
    low: float
    high: float

    def verdict(self, limit: float) -> str:
        """ "grows" and "steady" where the interval says so, else "not shown"."""
        if self.low > limit:
            return "grows"
        return "steady" if self.high < limit else "not shown"


def look(pid: int) -> tuple[float, int] | None:
    """Resident memory in MB and open files of a process; None where it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except (OSError, IndexError):
        return None
    return pages * PAGE_MB, files


def slope(samples: Sequence[MemorySample]) -> Slope:
    """A line through the memory of all lives at once: each life has a height of its own, the slope
    is common. How a life begins is left out: a process grows until it has seen each trouble once,
    so a life of less than ten minutes says nothing.
    The series is cut into blocks, whose means are taken for independent."""
    times: list[float] = []
    sizes: list[float] = []
    lives = sorted({sample.life for sample in samples})
    total = sum(_span(samples, life) for life in lives)
    for life in lives:
        own = _settled(samples, life)
        if len(own) < 4 or not total:
            continue
        blocks = max(2, round(BLOCKS * _span(samples, life) / total))
        parts = [part for part in np.array_split(np.array(own), blocks) if len(part)]
        means = np.array([part.mean(axis=0) for part in parts])
        means -= means.mean(axis=0)
        times += list(means[:, 0])
        sizes += list(means[:, 1])
    freedom = len(times) - 1 - sum(1 for life in lives if len(_settled(samples, life)) >= 4)
    x, y = np.array(times) / 3600.0, np.array(sizes)
    spread = float(x @ x) if len(x) else 0.0
    if freedom < 1 or spread == 0.0:
        return Slope(math.nan, math.nan, math.nan)
    rate = float(x @ y) / spread
    error = math.sqrt(float(((y - rate * x) ** 2).sum()) / freedom / spread)
    width = _T.get(freedom, 2.2) * error
    return Slope(rate, rate - width, rate + width)


def _settled(samples: Sequence[MemorySample], life: int) -> list[tuple[float, float]]:
    own = [sample for sample in samples if sample.life == life]
    first = min((sample.at_s for sample in own), default=0.0)
    whole = max((sample.at_s for sample in own), default=0.0) - first
    begin = first + min(max(whole / 4, SETTLING_S[0]), SETTLING_S[1])
    return [(sample.at_s, sample.memory_mb) for sample in own if sample.at_s >= begin]


def _span(samples: Sequence[MemorySample], life: int) -> float:
    own = _settled(samples, life)
    return own[-1][0] - own[0][0] if len(own) >= 4 else 0.0


def poisson(count: int) -> tuple[float, float]:
    """The 95 % interval of a count, by Byar's approximation (within 1 % of the exact one)."""

    def bound(number: int, sign: float) -> float:
        if not number:
            return 0.0
        return number * (1 - 1 / (9 * number) + sign * 1.96 / (3 * math.sqrt(number))) ** 3

    return bound(count, -1.0), bound(count + 1, 1.0)


def daily(count: int, hours: float) -> tuple[float, float, float]:
    """Events a day from ``count`` in ``hours``, with the 95 % interval of a Poisson count."""
    if hours <= 0:
        return math.nan, math.nan, math.nan
    low, high = poisson(count)
    day = 24 / hours
    return count * day, low * day, high * day
