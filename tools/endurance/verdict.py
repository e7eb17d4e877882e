"""What a record amounts to: which rules were broken, how often, and what grows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from endurance.growth import Slope, daily, slope
from endurance.judge import RULES
from endurance.record import Record
from vla_ros.core.types import CommandKind

GROWTH_MB = 5.0  # an hour
FALSE_HOLDS = 1.0  # a day


@dataclass(frozen=True, slots=True)
class Process:
    """One process over all its lives."""

    name: str
    lives: int
    first_mb: float
    last_mb: float
    files: tuple[int, int]  # fewest and most
    slope: Slope

    @property
    def verdict(self) -> str:
        return self.slope.verdict(GROWTH_MB)


@dataclass(frozen=True, slots=True)
class SoakVerdict:
    """``broken``: reasons to fail, in words. ``lines``: all figures, in words."""

    rules: Counter[str]
    processes: tuple[Process, ...]
    false_holds: tuple[float, float, float]  # a day, with the 95 % interval
    ages: dict[str, float]  # ms
    broken: tuple[str, ...]
    lines: tuple[str, ...]
    summary: dict[str, Any]


def verdict(record: Record) -> SoakVerdict:
    """Judge a record."""
    rules = Counter(dict.fromkeys(RULES, 0))
    rules.update(one.rule for one in record.violations)
    processes = tuple(_process(name, series) for name, series in sorted(record.samples.items()))
    false = sum(1 for hold in record.holds if not hold.provoked)
    rate = daily(false, record.calm_s / 3600)
    ages = _ages(record.ages)
    broken = [f"{RULES[rule]}: broken {count} times" for rule, count in rules.items() if count]
    broken += [
        f"{one.name} grows by {one.slope.per_hour:.1f} MB/h "
        f"({one.slope.low:.1f} to {one.slope.high:.1f})"
        for one in processes
        if one.verdict == "grows"
    ]
    if rate[1] > FALSE_HOLDS:
        broken.append(f"{rate[0]:.1f} false HOLDs a day, at least {rate[1]:.1f}")
    commands = sum(record.kinds.values())
    lines = [
        f"{record.ran_s / 60:.1f} minutes, {len(record.troubles)} troubles, {commands} commands",
        *(f"{count:6d}  {RULES[rule]}" for rule, count in rules.items()),
        f"{sum(record.motion.values())} messages of motion judged: "
        + ", ".join(f"{name} {count}" for name, count in sorted(record.motion.items())),
        f"false HOLDs: {false} in {record.calm_s / 60:.1f} calm minutes: "
        f"{rate[0]:.1f} a day (95 %: {rate[1]:.1f} to {rate[2]:.1f})",
        *(
            f"{one.name}: {one.first_mb:.0f} to {one.last_mb:.0f} MB, "
            f"{one.slope.per_hour:+.1f} MB/h "
            f"({one.slope.low:.1f} to {one.slope.high:.1f}): {one.verdict}; "
            f"{one.files[0]} to {one.files[1]} files"
            for one in processes
        ),
        "nothing was broken" if not broken else "BROKEN: " + "; ".join(broken),
    ]
    summary = {
        "minutes": round(record.ran_s / 60, 2),
        "troubles": len(record.troubles),
        "commands": {kind.name: record.kinds[kind] for kind in CommandKind},
        "rules": dict(rules),
        "motion": dict(record.motion),
        "false_holds": false,
        "false_holds_a_day": rate,
        "ages_ms": ages,
        "growth_mb_h": {
            one.name: (one.slope.per_hour, one.slope.low, one.slope.high) for one in processes
        },
        "broken": broken,
    }
    return SoakVerdict(rules, processes, rate, ages, tuple(broken), tuple(lines), summary)


def _process(name: str, series: list[Any]) -> Process:
    files = [sample.files for sample in series]
    memory = [sample.memory_mb for sample in series]
    return Process(
        name,
        len({sample.life for sample in series}),
        memory[0],
        memory[-1],
        (min(files), max(files)),
        slope(series),
    )


def _ages(counts: Counter[int]) -> dict[str, float]:
    if not counts:
        return {}
    values = np.repeat(list(counts.keys()), list(counts.values()))
    p50, p95, p99 = (float(x) for x in np.percentile(values, [50, 95, 99]))
    return {"p50": p50, "p95": p95, "p99": p99, "max": float(values.max())}
