"""`vla-ros bench` of what has an action head: its phases beside references on the same inputs."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from vla_ros.console.progress import Progress
from vla_ros.console.streams import show, text_of
from vla_ros.console.tables import Table
from vla_ros.errors import UserError

if TYPE_CHECKING:
    from vla_ros.benchmark.flow.measure import FlowBenchOptions, FlowBenchResult, FlowRow
    from vla_ros.benchmark.measure import Report

FILE_WIDTH = 160  # of bench.txt
WARM_UP, TIMED = 2, 5
#: options that belong to token policies
OF_TOKENS = (
    "draft", "unnorm_key", "frames", "tokens", "sweep", "passes", "compile", "compile_ablation",
    "no_vision_streams",
)  # fmt: skip
SPARE = ("p95\nms", "wall\nms", "differs\nby")


def is_flow(checkpoint: str | None) -> bool:
    """Whether these are its options. UserError: there is no such checkpoint."""
    from vla_ros.engine.errors import CheckpointError
    from vla_ros.engine.flow.families import flow_source

    try:
        return checkpoint is not None and flow_source(checkpoint) is not None
    except CheckpointError as error:
        raise UserError(str(error)) from error


def is_single_pass(checkpoint: str | None) -> bool:
    """Whether it says its chunk in one pass: OpenVLA-OFT's architecture, BitVLA."""
    from vla_ros.engine.checkpoints.openvla import read_layout, resolve
    from vla_ros.engine.checkpoints.random import PREFIX, random_config
    from vla_ros.engine.errors import CheckpointError

    if checkpoint is None:
        return False
    if checkpoint.startswith(PREFIX):
        config = random_config(checkpoint)
        return config is not None and config.parallel
    try:
        return read_layout(resolve(checkpoint)).config.parallel
    except (CheckpointError, OSError):
        return False  # said in one line where it is loaded


def run_flow(args: argparse.Namespace) -> int:
    """Measure and print a flow policy."""
    from vla_ros.benchmark.flow.suite import ROWS, run_flow_bench

    return _run(args, ROWS, run_flow_bench, "is a flow policy")


def run_single_pass(args: argparse.Namespace) -> int:
    """The same of a policy with a single pass."""
    from vla_ros.benchmark.flow import single_pass

    what = "says its chunk in one pass"
    return _run(args, single_pass.ROWS, single_pass.run_single_pass, what)


def _run(
    args: argparse.Namespace,
    rows: tuple[str, ...],
    run_bench: Callable[[FlowBenchOptions, Report], FlowBenchResult],
    what: str,
) -> int:
    from vla_ros.engine.device import usable_device

    options = _options(args, rows, what)
    usable_device(options.device)
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    with Progress() as progress:
        result = run_bench(
            options, lambda text, done, total: progress.update(text, text, done, total)
        )
    _print(args, options, result, load)
    return 0


def _options(args: argparse.Namespace, rows: tuple[str, ...], what: str) -> FlowBenchOptions:
    from vla_ros.benchmark.flow.measure import FlowBenchOptions
    from vla_ros.policies.interpreter import lerobot_python

    given = [name for name in OF_TOKENS if getattr(args, name)]
    choices = ("attention", "image_steps", "gemm")
    given += [name for name in choices if getattr(args, name) != "auto"]
    if given:
        option = given[0].replace("_", "-")
        raise UserError(f"--{option} is for token policies, {args.checkpoint} {what}")
    timed = TIMED if args.timed is None else args.timed
    warm_up = WARM_UP if args.warm_up is None else args.warm_up
    if timed < 1 or warm_up < 0:
        raise UserError("--timed needs at least 1, --warm-up at least 0")
    device = args.device or "cpu"
    python = lerobot_python()
    return FlowBenchOptions(
        checkpoint=args.checkpoint,
        device=device,
        dtype=args.dtype,
        rows=tuple(args.rows.split(",")) if args.rows else rows,
        warm_up=warm_up,
        timed=timed,
        threads=args.threads or (1 if device == "cpu" else None),
        cpu_clock=(args.clock or ("cpu" if device == "cpu" else "wall")) == "cpu",
        cuda_graphs=not args.no_cuda_graphs,
        lerobot=args.lerobot_python or (str(python) if python.is_file() else None),
        embodiment=args.embodiment,
        weights=args.weights,
    )


def _table(rows: Mapping[str, FlowRow]) -> Table:
    """One line a row: its phases, the chunk, and how much faster it is than the others."""
    others = [name for name in rows if name not in ("flow", "flow_eager", "parallel")]
    names = ("pass\nms", "head\nms") if "parallel" in rows else ("prefix\nms", "step\nms")
    heads = ["", "vision\nms", *names, "chunk\nms", "p95\nms", "wall\nms"]
    heads += [f"times\n{name}" for name in others] + ["differs\nby"]
    lines = [
        [
            name,
            *(f"{row.stages_ms[phase]:.1f}" for phase in ("vision", "prefill")),
            *(f"{ms:.1f}" for ms in (row.step_ms, row.median_ms, row.p95_ms, row.wall_median_ms)),
            *(f"{row.speedup[other]:.2f}" if other != name else "1" for other in others),
            "-" if row.difference is None else f"{row.difference:.1e}",
        ]
        for name, row in rows.items()
    ]
    return Table(heads, lines, SPARE)


def _print(
    args: argparse.Namespace, options: FlowBenchOptions, result: FlowBenchResult, load: float
) -> None:
    import torch

    from vla_ros.benchmark.report import json_line, machine

    head: dict[str, Any] = {
        "command": "vla-ros " + shlex.join(w for w in sys.argv[1:] if w != "--json"),
        "checkpoint": options.checkpoint,
        "device": options.device,
        "dtype": options.dtype,
        "weights": options.weights,
        "threads": torch.get_num_threads(),
        "clock": "cpu time" if options.cpu_clock else "wall time",
        "load": load,
        "machine": machine(torch.device(options.device)),
    }
    line = json_line({**head, **result.as_json()})
    where = head["machine"]["cpu" if options.device == "cpu" else "gpu"]
    shapes, precision = result.shapes, f"{options.weights} {options.dtype}".strip()
    steps = f"{shapes['steps']} steps" if shapes["steps"] else "a single pass"
    text: list[str | Table] = [
        f"{options.checkpoint} on {where}",
        f"{precision}, {head['threads']} threads, {head['clock']}; load {load:.1f}",
        f"{shapes['parameters'] / 1e6:.0f}M parameters; {shapes['views']} views,"
        f" {shapes['prompt_tokens']} prefix tokens, {steps},"
        f" {shapes['action_tokens']} actions; {shapes['warm_up']} + {shapes['timed']} chunks",
        _table(result.rows),
        str(result.memory),
        *(f"{name} {version}" for name, version in result.versions.items()),
        *(f"left out: {why}" for why in result.skipped.values()),
    ]
    if not args.json:
        show(*text, "")
    if args.output:
        written = text_of(f"$ {head['command']}", *text, width=FILE_WIDTH)
        (args.output / "bench.txt").write_text(f"{written.rstrip()}\n")
        (args.output / "bench.json").write_text(json.dumps(json.loads(line), indent=1) + "\n")
    print(line)
