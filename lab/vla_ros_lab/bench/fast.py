"""pi0-FAST: passes and time of a chunk by way of decoding, over one stream.

A frame's chunk is executed by ``executed`` actions before the next frame, which is what drafts are
moved on by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from vla_ros.core.console import Report
from vla_ros.core.errors import user_errors
from vla_ros.core.types import Executing, Observation, Timeline
from vla_ros.engine.decoding.draft_head_folder import FOLDER
from vla_ros.engine.engine import Engine
from vla_ros.engine.families.registry import source_of
from vla_ros.engine.load import load_engine
from vla_ros.engine.options import EngineOptions
from vla_ros_lab.bench.flow import weights_of
from vla_ros_lab.bench.measure import (
    CLOCK,
    BenchResult,
    Figures,
    PhaseTimes,
    Row,
    Stopwatch,
    as_floats,
    begin,
    drifting_frames,
    run_rows,
    silent,
)
from vla_ros_lab.bench.options import INSTRUCTION, BenchOptions
from vla_ros_lab.bench.suite import untrained_recursive
from vla_ros_lab.reference import GenerateFast

GENERATE = "generate"  # transformers'
_ALWAYS = {"adaptive_draft": False}
#: what a row changes of the options
ROWS: Mapping[str, Mapping[str, Any]] = {
    "autoregressive": {"decoding": "autoregressive"},
    GENERATE: {},
    "speculative": {"decoding": "speculative"},
    "speculative_full": {"decoding": "speculative", **_ALWAYS},
    "temporal_tree": {"decoding": "speculative", "drafter": "temporal_tree"},
    "temporal_tree_full": {"decoding": "speculative", "drafter": "temporal_tree", **_ALWAYS},
    "head": {"decoding": "speculative", "drafter": "head"},
    "head_full": {"decoding": "speculative", "drafter": "head", **_ALWAYS},
}


def run_fast_bench(options: BenchOptions, report: Report = silent) -> BenchResult:
    """Measure the rows, over a drifting scene and a wandering state. UserError: an unknown row, or
    options that do not go together."""
    options.refuse_unknown(tuple(ROWS))
    begin(options, report)
    asked, count = options.engine, options.warm_up + options.timed
    with user_errors(ValueError):
        names = options.rows or [row for row in ROWS if row != GENERATE or as_floats(asked)]
        first = load_engine(asked)
        engines = {name: engine_of(first, name, replace(asked, **ROWS[name])) for name in names}
    random, config = np.random.default_rng(asked.seed), first.policy.config
    walk = random.normal(0, 0.05, (count, config.state_dim)).cumsum(0)
    frames = [
        Observation(n, n, 0, image, image, state)
        for n, (image, state) in enumerate(zip(drifting_frames(count), walk, strict=True))
    ]
    found = measure(engines, INSTRUCTION, frames, 1, options.warm_up, options.cpu_clock, report)
    return BenchResult(found, {"warm_up": options.warm_up, "timed": options.timed})


def engine_of(first: Engine, row: str, options: EngineOptions) -> Engine:
    """The engine of a row, over the weights of ``first``. A draft head is the one that the options
    or the checkpoint name; where there is none, one of random weights, which costs what one costs.
    """
    if row == GENERATE:
        if not as_floats(options):
            raise ValueError("generate is transformers', which has no quantized weights here")
        return GenerateFast(first.policy, options, weights_of(options, first.policy.config))
    source, head = source_of(options.checkpoint), None
    if options.drafter != "head":
        options = replace(options, draft_checkpoint="")
    elif not options.draft_checkpoint and not (Path(source) / FOLDER).is_dir():
        model = first.model
        head = untrained_recursive(
            model.config.shapes.text, model.config.max_tokens, 1, model.actions
        )
        head = head.to(model.device, model.dtype)
    return Engine(first.policy, options, head=head)


def measure(
    engines: Mapping[str, Engine],
    instruction: str,
    frames: Sequence[Observation],
    executed: int,
    warm_up: int = 0,
    cpu_clock: bool = True,
    report: Report = silent,
) -> dict[str, Figures]:
    """Figures of every engine on every frame, the first ``warm_up`` of them not counted.

    Of a chunk: milliseconds, passes, tokens, drafted tokens, and how many of all drafted ones were
    right; ``same``: chunks whose tokens are those of the first row.
    """
    frames = [
        replace(frame, executing=Executing(last.stamp_ns, executed, 0)) if last else frame
        for last, frame in zip((None, *frames), frames, strict=False)
    ]
    rows = {name: _row(engine, instruction, frames) for name, engine in engines.items()}
    run_rows(rows, warm_up, len(frames) - warm_up, report)
    reference = [one.tokens for one in next(iter(rows.values())).counted]
    return {name: _figures(row, reference, cpu_clock) for name, row in rows.items()}


def _row(engine: Engine, instruction: str, frames: Sequence[Observation]) -> Row:
    engine.reset(instruction)

    def call(number: int) -> tuple[Any, PhaseTimes]:
        watch = Stopwatch(engine.model.device)
        timeline = Timeline(CLOCK.steady_ns())
        found = watch.time("chunk", lambda: engine.step(frames[number], timeline, CLOCK))
        assert found is not None, "it answers every frame"
        return found, watch.spent

    return Row(call)


def _figures(row: Row, reference: Sequence[tuple[int, ...]], cpu_clock: bool) -> Figures:
    chunks = row.counted
    drafted, accepted = (
        sum(sum(getattr(one, n)) for one in chunks) for n in ("drafted", "accepted")
    )
    return {
        "median_ms": row.figures(cpu_clock)["median_ms"],
        "passes": fmean(one.target_passes for one in chunks),
        "tokens": fmean(len(one.tokens) for one in chunks),
        "drafted": drafted / len(chunks),
        "accepted": accepted / drafted if drafted else 0.0,
        "same": sum(one.tokens == own for one, own in zip(chunks, reference, strict=True)),
        "chunks": len(chunks),
    }
