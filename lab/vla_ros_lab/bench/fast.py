"""`vla-ros bench` of pi0-FAST: passes and time of a chunk by way of decoding, over one stream.

Every frame goes through every row; a frame's chunk is executed by ``executed`` actions before the
next frame, which is what drafts are moved on by.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.core.console import Report
from vla_ros.core.errors import UserError
from vla_ros.core.types import Executing, Observation, Timeline
from vla_ros.engine.decoding.draft_head_folder import FOLDER
from vla_ros.engine.engine import Engine
from vla_ros.engine.families.registry import group_of, source_of
from vla_ros.engine.load import load_engine
from vla_ros.engine.options import FAST, EngineOptions
from vla_ros_lab.bench.flow import as_floats, weights_of
from vla_ros_lab.bench.measure import CLOCK, drifting_frames, silent
from vla_ros_lab.bench.suite import INSTRUCTION, untrained_recursive
from vla_ros_lab.reference import GenerateFast

GENERATE = "generate"  # transformers'
#: what a row changes of the options
ROWS: Mapping[str, Mapping[str, Any]] = {
    "autoregressive": {"decoding": "autoregressive"},
    GENERATE: {},
    "speculative": {"decoding": "speculative"},
    "speculative_full": {"decoding": "speculative", "adaptive_draft": False},
    "temporal_tree": {"decoding": "speculative", "drafter": "temporal_tree"},
    "temporal_tree_full": {
        "decoding": "speculative", "drafter": "temporal_tree", "adaptive_draft": False,
    },
    "head": {"decoding": "speculative", "drafter": "head"},
    "head_full": {"decoding": "speculative", "drafter": "head", "adaptive_draft": False},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FastRow:
    """Of all frames: milliseconds, passes and tokens a chunk, drafted tokens a chunk and how many
    of all of them were right; ``same``: chunks whose tokens are those of the first row."""

    median_ms: float
    passes: float
    tokens: float
    drafted: float
    accepted: float
    same: int
    chunks: int


def is_fast(checkpoint: str) -> bool:
    """Whether it is pi0-FAST. CheckpointError: there is no such checkpoint."""
    return group_of(checkpoint) == FAST


def rows_for(options: EngineOptions) -> tuple[str, ...]:
    """Every row that fits the checkpoint."""
    return tuple(row for row in ROWS if row != GENERATE or as_floats(options))


def run_fast_bench(
    options: EngineOptions,
    rows: Sequence[str],
    warm_up: int,
    timed: int,
    cpu_clock: bool,
    report: Report = silent,
) -> dict[str, FastRow]:
    """Rows by name, over a drifting scene and a wandering state. UserError: an unknown row."""
    if unknown := sorted(set(rows) - set(ROWS)):
        raise UserError(f"rows {', '.join(unknown)} are unknown: there are {', '.join(ROWS)}")
    report(f"loading {options.checkpoint}", 0, 0)
    first = load_engine(options)
    engines = {name: engine_of(first, name, replace(options, **ROWS[name])) for name in rows}
    random, config = np.random.default_rng(options.seed), first.policy.config
    walk = random.normal(0, 0.05, (warm_up + timed, config.state_dim)).cumsum(0)
    images = drifting_frames(warm_up + timed)
    frames = [
        Observation(n, n, 0, image, image, state)
        for n, (image, state) in enumerate(zip(images, walk, strict=True))
    ]
    return measure(engines, INSTRUCTION, frames, 1, warm_up, cpu_clock, report)


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
) -> dict[str, FastRow]:
    """Every frame through every engine, the first ``warm_up`` of them not counted."""
    clock = time.process_time if cpu_clock else time.perf_counter
    spent: dict[str, list[float]] = {name: [] for name in engines}
    said: dict[str, list[Any]] = {name: [] for name in engines}
    for engine in engines.values():
        engine.reset(instruction)
    for number, frame in enumerate(frames):
        report("warming up" if number < warm_up else "measuring", number, len(frames))
        if number:
            executing = Executing(frames[number - 1].stamp_ns, executed, 0)
            frame = replace(frame, executing=executing)
        for name, engine in engines.items():
            began = clock()
            found = engine.step(frame, Timeline(CLOCK.steady_ns()), CLOCK)
            assert found is not None
            if number >= warm_up:
                spent[name].append(clock() - began)
                said[name].append(found)
    reference = [one.tokens for one in next(iter(said.values()))]
    return {name: _row(spent[name], said[name], reference) for name in engines}


def _row(spent: list[float], said: list[Any], reference: list[tuple[int, ...]]) -> FastRow:
    drafted, accepted = (sum(sum(getattr(one, n)) for one in said) for n in ("drafted", "accepted"))
    return FastRow(
        1e3 * statistics.median(spent),
        statistics.fmean(one.target_passes for one in said),
        statistics.fmean(len(one.tokens) for one in said),
        drafted / len(said),
        accepted / drafted if drafted else 0.0,
        sum(one.tokens == wanted for one, wanted in zip(said, reference, strict=True)),
        len(said),
    )


def as_json(rows: Mapping[str, FastRow]) -> dict[str, Any]:
    """For the JSON line."""
    return {"decodings": {name: asdict(row) for name, row in rows.items()}}


def table(rows: Mapping[str, FastRow]) -> tuple[list[str], list[list[str]]]:
    """Heads and lines for a person."""
    heads = ["", "chunk\nms", "passes", "tokens", "drafted", "right\n%", "same\ntokens"]
    lines = [
        [
            name,
            f"{row.median_ms:.1f}",
            f"{row.passes:.1f}",
            f"{row.tokens:.1f}",
            f"{row.drafted:.1f}",
            f"{100 * row.accepted:.0f}",
            f"{row.same} of {row.chunks}",
        ]
        for name, row in rows.items()
    ]
    return heads, lines
