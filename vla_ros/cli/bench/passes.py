"""`vla-ros bench --passes`: every pass of a token policy beside the roofline of this machine."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from vla_ros.console.progress import Progress
from vla_ros.console.streams import show, text_of
from vla_ros.console.tables import Table
from vla_ros.errors import UserError

if TYPE_CHECKING:
    from vla_ros.analysis.devices import Device
    from vla_ros.analysis.roofline import Roofline, StageTime
    from vla_ros.benchmark.passes import PassTime
    from vla_ros.benchmark.suite import BenchOptions, PassesResult
    from vla_ros.engine.gemm.tuner import Choice

FILE_WIDTH = 160


def run_passes(args: argparse.Namespace, options: BenchOptions) -> int:
    """Measure and print."""
    from vla_ros.analysis.bench_file import DTYPES
    from vla_ros.analysis.model_files import load_model
    from vla_ros.analysis.roofline import Roofline
    from vla_ros.analysis.work import parse_precision, precision_of_weights
    from vla_ros.benchmark.suite import measure_passes

    with Progress() as progress:
        result = measure_passes(
            options, lambda text, done, total: progress.update(text, text, done, total)
        )
        progress.update("this machine", "measuring this machine", 0, 0)
        try:
            shape = load_model(options.checkpoint).with_prompt(result.prompt)
            shape = replace(shape, action_tokens=result.tokens)
            precision = parse_precision(DTYPES[options.dtype])
            if options.weights:
                precision = precision_of_weights(options.weights)
        except ValueError as error:
            raise UserError(str(error)) from error
        device = _machine(options)
        roof = Roofline(shape, device, precision)
        try:
            rows = {n: _row(n, time, roof, result.tokens) for n, time in result.passes.items()}
        except ValueError as error:
            raise UserError(str(error)) from error
    _print(args, options, rows, device, result)
    return 0


def _machine(options: BenchOptions) -> Device:
    """What this machine reaches, measured now."""
    import torch

    from vla_ros.analysis.machine import measure
    from vla_ros.engine.packed.devices import on_device

    device = torch.device(options.device)
    with on_device(device):
        return measure(1 << 29, threads=options.threads, gpu=device.type == "cuda")


def _row(name: str, time: PassTime, roof: Roofline, tokens: int) -> dict[str, Any]:
    """A pass beside its roofline; ``efficiency`` is the share of the least time there can be."""
    from vla_ros.benchmark import passes

    stages: dict[str, StageTime] = {
        passes.VISION: roof.vision(),
        passes.PROJECTOR: roof.projector(),
        passes.PREFILL: roof.prefill(),
        passes.VERIFY: roof.prefill(tokens - 1),
        passes.DECODE: roof.decode(),
        passes.REVERIFY: roof.decode(tokens),
        passes.PACKED: roof.packed(),
    }
    stage = stages.get(name)
    return {
        "tokens": time.tokens,
        "median_ms": time.median_ms,
        "best_ms": time.best_ms,
        "operators": time.operators,
        "kernels": time.kernels,
        "roofline_ms": None if stage is None else stage.ms,
        "bound": None if stage is None else stage.bound,
        "efficiency": None if stage is None else stage.ms / time.median_ms,
    }


def _table(rows: dict[str, dict[str, Any]]) -> Table:
    heads = ["", "new", "ms", "best\nms", "roofline\nms", "bound by", "reached\n%", "operators",
             "kernels"]  # fmt: skip

    def cell(value: Any, form: str) -> str:
        return "-" if value is None else form.format(value)

    return Table(
        heads,
        [
            (
                name,
                str(row["tokens"]),
                cell(row["median_ms"], "{:.3f}"),
                cell(row["best_ms"], "{:.3f}"),
                cell(row["roofline_ms"], "{:.3f}"),
                cell(row["bound"], "{}"),
                cell(None if row["efficiency"] is None else 100 * row["efficiency"], "{:.0f}"),
                cell(row["operators"], "{}"),
                cell(row["kernels"], "{}"),
            )
            for name, row in rows.items()
        ],
        ("best\nms", "operators"),
    )


def _products(chosen: Sequence[Choice]) -> Table:
    """Which way was taken for which product, and what torch's takes."""
    return Table(
        ["product\nrows", "N x K", "way", "us", "torch\nus", "times\nfaster"],
        [
            (str(c.rows), f"{c.count} x {c.width}", c.way, f"{c.us:.1f}", f"{c.torch_us:.1f}",
             f"{c.torch_us / c.us:.2f}")
            for c in chosen
        ],
    )  # fmt: skip


def _print(
    args: argparse.Namespace,
    options: BenchOptions,
    rows: dict[str, dict[str, Any]],
    device: Device,
    result: PassesResult,
) -> None:
    import torch

    from vla_ros.benchmark.report import json_line, machine

    head: dict[str, Any] = {
        "command": "vla-ros " + shlex.join(w for w in sys.argv[1:] if w != "--json"),
        "checkpoint": options.checkpoint,
        "device": options.device,
        "dtype": options.dtype,
        "threads": torch.get_num_threads(),
        "attention": result.attention,
        "gemm": options.gemm,
        "cuda_graphs": options.cuda_graphs,
        "compile": options.compile,
        "prompt_tokens": result.prompt,
        "machine": machine(torch.device(options.device)),
        "reached_gb_s": device.bandwidth() / 1e9,
        "reached_tflops": {name: rate.achieved / 1e12 for name, rate in device.compute.items()},
        "remark": device.notes,
    }
    line = json_line({**head, "passes": rows, "products": [asdict(c) for c in result.gemm]})
    text: list[str | Table] = [
        f"{options.checkpoint} on {device.title}",
        f"{options.dtype}, {result.attention}; {result.prompt} prompt tokens; this machine reads"
        f" {head['reached_gb_s']:.0f} GB/s, measured now",
        _table(rows),
        *([_products(result.gemm)] if result.gemm else ()),
        *filter(None, [device.notes]),
    ]
    if not args.json:
        show(*text, "")
    if args.output:
        written = text_of(f"$ {head['command']}", *text, width=FILE_WIDTH)
        (args.output / "passes.txt").write_text(f"{written.rstrip()}\n")
        (args.output / "passes.json").write_text(json.dumps(json.loads(line), indent=1) + "\n")
    print(line)
