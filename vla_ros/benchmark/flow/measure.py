"""What every bench of chunks measures: rows in turn on the same inputs, and their medians."""

from __future__ import annotations

import gc
import statistics
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from vla_ros.benchmark.flow.memory import Held
from vla_ros.benchmark.flow.row import Inputs, Row, Spent
from vla_ros.benchmark.measure import Report


@dataclass(frozen=True, slots=True)
class FlowBenchOptions:
    """What to measure. ``lerobot``: its interpreter, None where there is none; ``weights``: their
    formats."""

    checkpoint: str
    rows: tuple[str, ...]
    device: str = "cpu"
    dtype: str = "bfloat16"
    warm_up: int = 1
    timed: int = 5
    threads: int | None = 1
    cpu_clock: bool = True
    cuda_graphs: bool = True
    lerobot: str | None = None
    seed: int = 0
    embodiment: str | None = None
    weights: str = ""


@dataclass(frozen=True, slots=True)
class FlowRow:
    """One row: ms a chunk. ``stages_ms`` are medians by phase, ``step_ms`` one solver step.
    ``speedup`` over each other row; ``difference``: the largest from the naive row's chunk."""

    median_ms: float
    p95_ms: float
    wall_median_ms: float
    rate_hz: float
    latency_ms: float
    stages_ms: dict[str, float]
    step_ms: float
    passes_per_action: float
    actions_per_call: int
    speedup: dict[str, float]
    difference: float | None
    lossless: bool = True


@dataclass(frozen=True, slots=True)
class FlowBenchResult:
    """Rows by name; ``skipped`` says of the others why."""

    rows: dict[str, FlowRow]
    shapes: dict[str, int]
    memory: Held
    skipped: dict[str, str]
    versions: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        memory = {**asdict(self.memory), "within_20_percent": self.memory.good}
        return {
            "shapes": self.shapes, "memory": memory, "skipped": self.skipped,
            "versions": self.versions, "schedules": {n: asdict(r) for n, r in self.rows.items()},
        }  # fmt: skip


def measure_rows(
    options: FlowBenchOptions, rows: dict[str, Row], inputs: Inputs, report: Report
) -> tuple[dict[str, list[Spent]], dict[str, torch.Tensor]]:
    """Chunk by chunk in turn, so that drift of the machine hits all rows alike; another row
    begins each time, since the first finds the caches cold."""
    spent: dict[str, list[Spent]] = {name: [] for name in rows}
    chunks: dict[str, torch.Tensor] = {}
    total, names = options.warm_up + options.timed, list(rows)
    gc.collect()
    gc.disable()
    try:
        for number in range(total):
            report("warming up" if number < options.warm_up else "measuring", number, total)
            for name in [*names[number % len(names) :], *names[: number % len(names)]]:
                chunks[name], took = rows[name].chunk(inputs)
                if number >= options.warm_up:
                    spent[name].append(took)
        report("measuring", total, total)
    finally:
        gc.enable()
    return spent, chunks


def summaries(
    options: FlowBenchOptions,
    steps: int,
    horizon: int,
    spent: dict[str, list[Spent]],
    chunks: dict[str, torch.Tensor],
) -> dict[str, FlowRow]:
    """The rows of the table, by name, for a head of so many solver steps (0: a single pass)."""
    cpu = options.cpu_clock
    medians = {n: statistics.median(s.total(cpu) for s in each) for n, each in spent.items()}
    out = {}
    for name, each in spent.items():
        took = [s.total(cpu) * 1e3 for s in each]
        stages = {
            phase: statistics.median((s.cpu if cpu else s.wall)[phase] for s in each) * 1e3
            for phase in each[0].wall
        }
        median = medians[name]
        comparable = {"naive", name} <= chunks.keys() and name != "naive"
        out[name] = FlowRow(
            median_ms=median * 1e3,
            p95_ms=float(np.percentile(took, 95)),
            wall_median_ms=statistics.median(s.total(False) for s in each) * 1e3,
            rate_hz=1.0 / median,
            latency_ms=median * 1e3,
            stages_ms={n: stages[n] for n in ("vision", "prefill", "decode")},
            step_ms=stages["decode"] / max(steps, 1),
            passes_per_action=float(1 + steps),
            actions_per_call=horizon,
            speedup={o: m / median for o, m in medians.items() if o != name},
            difference=_difference(chunks[name], chunks["naive"]) if comparable else None,
        )
    return out


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())
