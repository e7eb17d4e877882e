"""The measurement: rows, the one runner of them, and the frames that they are shown.

All rows take every frame in turn, so that drift of the machine hits all alike.
"""

from __future__ import annotations

import gc
import statistics
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from vla_ros.core.clock import SystemClock
from vla_ros.core.console import Report
from vla_ros.core.errors import UserError
from vla_ros.core.types import Image, Observation
from vla_ros.engine.families.registry import source_of
from vla_ros.engine.io.quantize import read_origin
from vla_ros.engine.layers.devices import synchronize
from vla_ros.engine.options import EngineOptions
from vla_ros_lab.bench.options import BenchOptions

CLOCK = SystemClock()
Figures = dict[str, Any]  # of a row, by the keys of the JSON
T = TypeVar("T")


def silent(text: str, done: int, total: int) -> None:
    """Report to nobody."""


def begin(options: BenchOptions, report: Report) -> None:
    """Set the threads that the options ask for, and report what is loaded."""
    if options.engine.num_threads:
        torch.set_num_threads(options.engine.num_threads)
    report(f"loading {options.engine.checkpoint}", 0, 0)


@dataclass(slots=True)
class PhaseTimes:
    """Seconds of one call by phase: of the process and on the wall."""

    cpu: dict[str, float] = field(default_factory=dict)
    wall: dict[str, float] = field(default_factory=dict)

    def total(self, cpu: bool) -> float:
        return sum((self.cpu if cpu else self.wall).values())


class Stopwatch:
    """Sum of the time of calls by phase, the device's work included."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.spent = PhaseTimes()

    def time(self, phase: str, call: Callable[[], T]) -> T:
        """Call it; what it takes belongs to ``phase`` alone."""
        cpu, wall = self._now()
        out = call()
        cpu_end, wall_end = self._now()
        self.spent.cpu[phase] = self.spent.cpu.get(phase, 0.0) + cpu_end - cpu
        self.spent.wall[phase] = self.spent.wall.get(phase, 0.0) + wall_end - wall
        return out

    def rest(self, phase: str, whole: str) -> None:
        """Give ``phase`` the part of ``whole`` that no other phase took."""
        for spent in (self.spent.cpu, self.spent.wall):
            total = spent.pop(whole)
            spent[phase] = total - sum(spent.values())

    def _now(self) -> tuple[float, float]:
        synchronize(self._device)
        return time.process_time(), time.perf_counter()


@dataclass(slots=True)
class Row:
    """One row of the table: a program that answers frames, and what was measured of it.

    ``call``: the number of a frame -> its answer (None: none yet) and the time of its phases.
    ``depth``: calls from a frame to its answer. ``times`` leave the warm-up out, ``answers`` do
    not.
    """

    call: Callable[[int], tuple[Any, PhaseTimes]]
    lossless: bool = True
    depth: int = 1
    times: list[PhaseTimes] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)

    @property
    def counted(self) -> list[Any]:
        """The answers behind the warm-up."""
        first = len(self.answers) - len(self.times)
        return [answer for answer in self.answers[first:] if answer is not None]

    def spent(self, cpu: bool) -> list[float]:
        """Seconds of each call."""
        return [times.total(cpu) for times in self.times]

    def figures(self, cpu: bool) -> Figures:
        """The figures that every row has; ms a call."""
        spent = self.spent(cpu)
        median = statistics.median(spent)
        return {
            "median_ms": median * 1e3,
            "p95_ms": float(np.percentile(spent, 95)) * 1e3,
            "wall_median_ms": statistics.median(self.spent(False)) * 1e3,
            "rate_hz": 1.0 / median,
        }


def run_rows(rows: Mapping[str, Row], warm_up: int, timed: int, report: Report = silent) -> None:
    """Measure: every frame through every row; another row begins each time, since the first finds
    the caches cold. ``report`` is called between frames, when no clock runs."""
    total, names = warm_up + timed, list(rows)
    gc.collect()
    gc.disable()
    try:
        for number in range(total):
            report("warming up" if number < warm_up else "measuring", number, total)
            first = number % len(names)
            for name in (*names[first:], *names[:first]):
                row = rows[name]
                answer, took = row.call(number)
                row.answers.append(answer)
                if number >= warm_up:
                    row.times.append(took)
        report("measuring", total, total)
    finally:
        gc.enable()


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Figures by row, the shapes they were measured with, and ``more`` for the JSON; ``notes`` are
    lines for people."""

    rows: dict[str, Figures]
    shapes: dict[str, int] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"shapes": self.shapes, "decodings": self.rows, **self.more}


def as_floats(engine: EngineOptions) -> bool:
    """Whether the weights are floats, which is all that other people's programs have."""
    source = source_of(engine.checkpoint)
    return not engine.weights and (isinstance(source, str) or read_origin(source) is None)


def observe(stamp: int, image: Image) -> Observation:
    """A frame as the benchmark feeds it: one camera, shown to the wrist too."""
    return Observation(stamp, stamp, CLOCK.steady_ns(), image, wrist_image=image)


def load_frames(path: Path) -> list[Image]:
    """uint8 ``images`` [N, h, w, 3] of an .npz file, in order. OSError, UserError."""
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise UserError(f"{path}: no .npz file, such as numpy.savez writes")
    try:
        with np.load(path, allow_pickle=False) as archive:
            if "images" not in archive:
                raise UserError(f"{path} has no array 'images': there is {', '.join(archive)}")
            images = archive["images"]
    except (ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8 or not len(images):
        found = f"images are {images.dtype} {images.shape}"
        raise UserError(f"{path}: {found}, not uint8 [N, h, w, 3] with N above 0")
    return list(images)


def drifting_frames(count: int, seed: int = 0, side: int = 224) -> list[Image]:
    """A scene of colored squares that move a pixel or two a frame, and rest now and then."""
    rng = np.random.default_rng(seed)
    colors = rng.integers(40, 255, (6, 3))
    centers = rng.uniform(0.1, 0.9, (6, 2)) * side
    speed = rng.normal(0, 1.0, (6, 2))
    frames = []
    for number in range(count):
        if number % 20 < 12:  # moving for 12 frames, then at rest for 8
            centers = np.clip(centers + speed, 20, side - 20)
        image = np.full((side, side, 3), 96, np.uint8)
        for (x, y), color in zip(centers.astype(int), colors, strict=True):
            image[max(y - 15, 0) : y + 15, max(x - 15, 0) : x + 15] = color
        frames.append(image)
    return frames
