"""The measurement: all rows take every frame in turn, so that drift of the machine hits all."""

from __future__ import annotations

import gc
import statistics
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from vla_ros.benchmark.margins import Matches
from vla_ros.benchmark.split import Parts, Split, split_clock, split_of
from vla_ros.core import Image, Observation, Timeline
from vla_ros.engine.engine import Engine
from vla_ros.engine.packed.devices import synchronise
from vla_ros.engine.request import Decoded
from vla_ros.engine.schedules.base import Schedule
from vla_ros.timing import SystemClock

CLOCK = SystemClock()

#: what is done, how many frames of it, of how many (0: not counted)
Report = Callable[[str, int, int], None]


def silent(text: str, done: int, total: int) -> None:
    """The report of who wants none."""


@dataclass(slots=True)
class Samples:
    """What one row did: seconds per call in the chosen clock and on the wall, and answers."""

    spent: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    answers: list[Decoded] = field(default_factory=list)
    tokens: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by stamp, warm-up too
    peak_bytes: int = 0
    parts: list[Parts] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row of the table; times in ms per call, one call a frame. ``said``: of every frame from
    the first, eight hexadecimal digits of the tokens it was answered with, "-" where it was not;
    so that rows of different processes can be compared."""

    median_ms: float
    p95_ms: float
    wall_median_ms: float
    rate_hz: float
    latency_ms: float
    passes_per_action: float
    draft_passes_per_action: float
    acceptance: float | None
    speedup_vs_generate: float | None
    speedup_vs_autoregressive: float | None
    token_match: float | None
    action_match: float | None
    mismatch_margin: float | None
    lossless: bool
    actions_per_call: int
    peak_memory_mb: float | None
    split: Split | None
    said: str = ""


def observe(stamp: int, image: Image) -> Observation:
    """A frame as the benchmark feeds it: one camera, shown to the wrist too."""
    return Observation(stamp, stamp, CLOCK.steady_ns(), image, wrist_image=image)


def answer(engine: Engine, schedule: Schedule, stamp: int, image: Image) -> Decoded | None:
    """One observation through preprocessing, vision and a schedule."""
    timeline = Timeline(CLOCK.steady_ns())
    return schedule.step(engine.request(observe(stamp, image), timeline, CLOCK))


def run_rows(
    engine: Engine,
    rows: Mapping[str, Schedule],
    images: Sequence[Image],
    warm_up: int,
    cpu_clock: bool,
    report: Report = silent,
) -> dict[str, Samples]:
    """Every frame through every row, frame by frame; the first ``warm_up`` are not counted."""
    cuda = engine.model.device.type == "cuda"
    samples = {name: Samples() for name in rows}
    clocks = {name: split_clock(schedule, cpu_clock) for name, schedule in rows.items()}
    gc.collect()
    gc.disable()
    try:
        for stamp, image in enumerate(images):
            report("warming up" if stamp < warm_up else "measuring", stamp, len(images))
            for name, schedule in rows.items():
                spent, wall, decoded = _timed(engine, schedule, stamp, image, cpu_clock)
                if decoded is not None:
                    samples[name].tokens[decoded.stamp_ns] = decoded.tokens
                clock = clocks[name]
                parts = clock.take() if clock is not None else None
                if stamp < warm_up:
                    continue
                samples[name].spent.append(spent)
                samples[name].wall.append(wall)
                if parts is not None:
                    samples[name].parts.append(parts)
                if decoded is not None:
                    samples[name].answers.append(decoded)
        report("measuring", len(images), len(images))
    finally:
        gc.enable()
    if cuda:
        for name, schedule in rows.items():
            samples[name].peak_bytes = _peak(engine, schedule, images)
    return samples


def _timed(
    engine: Engine, schedule: Schedule, stamp: int, image: Image, cpu_clock: bool
) -> tuple[float, float, Decoded | None]:
    synchronise(engine.model.device)
    cpu, wall = time.process_time(), time.perf_counter()
    decoded = answer(engine, schedule, stamp, image)
    synchronise(engine.model.device)
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    return (cpu if cpu_clock else wall), wall, decoded


def _peak(engine: Engine, schedule: Schedule, images: Sequence[Image]) -> int:
    device = engine.model.device
    torch.cuda.reset_peak_memory_stats(device)
    for stamp, image in enumerate(images[: schedule.depth + 1]):
        answer(engine, schedule, stamp, image)
    return torch.cuda.max_memory_allocated(device)


def summarise(
    name: str,
    schedule: Schedule,
    samples: Mapping[str, Samples],
    matches: Matches,
) -> RowResult:
    """Samples -> a row."""
    mine = samples[name]
    median = statistics.median(mine.spent)
    passes = [d.target_passes for d in mine.answers]
    tokens, actions, margin = matches.rates(mine.answers)
    return RowResult(
        median_ms=median * 1e3,
        p95_ms=float(np.percentile(mine.spent, 95)) * 1e3,
        wall_median_ms=statistics.median(mine.wall) * 1e3,
        rate_hz=1.0 / median,
        latency_ms=_latency(mine.spent, schedule.depth) * 1e3,
        passes_per_action=_passes(passes, schedule),
        draft_passes_per_action=_mean([d.draft_passes for d in mine.answers]) or 0.0,
        acceptance=_acceptance(mine.answers),
        speedup_vs_generate=_ratio(samples, "generate", median),
        speedup_vs_autoregressive=_ratio(samples, "autoregressive", median),
        token_match=tokens,
        action_match=actions,
        mismatch_margin=margin,
        lossless=schedule.lossless,
        actions_per_call=_chunk(mine.answers),
        peak_memory_mb=mine.peak_bytes / 2**20 if mine.peak_bytes else None,
        split=split_of(mine.parts, mine.spent),
        said=_said(mine.tokens),
    )


def _said(tokens: Mapping[int, tuple[int, ...]]) -> str:
    frames = range(max(tokens, default=-1) + 1)
    digests = (zlib.crc32(repr(tokens[n]).encode()) if tokens.get(n) else None for n in frames)
    return " ".join("-" if digest is None else f"{digest:08x}" for digest in digests)


def _chunk(answers: Sequence[Decoded]) -> int:
    return 1 if not answers or answers[0].actions is None else len(answers[0].actions)


def _latency(spent: Sequence[float], depth: int) -> float:
    """Free-running observation-to-action latency: the frame's own call and those it waits for."""
    windows = [sum(spent[i : i + depth]) for i in range(len(spent) - depth + 1)]
    return statistics.median(windows) if windows else float("nan")


def _passes(passes: Sequence[int], schedule: Schedule) -> float:
    """Passes of the target per action: a pass that serves K frames counts 1/K for each."""
    mean = _mean(passes) or 0.0
    return mean / schedule.depth


def _mean(values: Sequence[int]) -> float | None:
    return statistics.fmean(values) if values else None


def _ratio(samples: Mapping[str, Samples], other: str, median: float) -> float | None:
    return statistics.median(samples[other].spent) / median if other in samples else None


def _acceptance(answers: Sequence[Decoded]) -> float | None:
    drafted = sum(sum(d.drafted) for d in answers)
    return sum(sum(d.accepted) for d in answers) / drafted if drafted else None
