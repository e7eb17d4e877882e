"""`vla-ros bench`: the inference engine measured against its references. Needs no ROS.

Prints a table and, last, one line of JSON (`--json`: that line alone); `--output` also keeps
both in files, with a picture.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.errors import UserError

if TYPE_CHECKING:
    from vla_ros.benchmark.suite import BenchOptions, BenchResult

#: checkpoint, draft, device, dtype, threads, and whether CPU time is the clock
PRESETS: dict[str, dict[str, Any]] = {
    "cpu": {"checkpoint": "random:cpu", "draft": "random:small", "device": "cpu", "threads": 1},
    "openvla-7b": {
        "checkpoint": "random:openvla-7b", "draft": "random:minivla", "device": "cuda",
        "threads": None,
    },
}  # fmt: skip


def add_parser(verbs: Any) -> None:
    """Declare the verb's options."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "bench",
        help="measure the inference engine, without ROS",
        description="Measure every decoding schedule and its references on one model.",
    )
    add = parser.add_argument
    add("--preset", choices=sorted(PRESETS), default="cpu", help="model and device (cpu)")
    add("--checkpoint", help="a directory, a hub id or random:NAME, instead of the preset's")
    add("--draft", help="checkpoint of the draft model")
    add("--unnorm-key", help="data set whose statistics scale the actions")
    add("--device", help="cpu or cuda")
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16")
    add("--threads", type=int, help="threads of torch (preset cpu: 1)")
    add("--clock", choices=("cpu", "wall"), help="time of the process or of the wall")
    add("--warm-up", type=int, default=10, help="frames before the clock runs (10)")
    add("--timed", type=int, default=100, help="frames measured (100)")
    add("--tokens", type=int, default=7, help="tokens of an action of random weights (7)")
    add("--rows", help="comma-separated rows (all)")
    add("--frames", type=Path, help=".npz with uint8 images [N, h, w, 3] (a synthetic scene)")
    add("--no-cuda-graphs", action="store_true", help="run eagerly on CUDA")
    add("--attention", choices=("sdpa", "varlen"), default="sdpa", help="kernel (sdpa)")
    add("--sweep", action="store_true", help="over action lengths and prompt lengths")
    add("--compile-ablation", action="store_true", help="with and without torch.compile")
    add("--output", type=Path, help="directory for bench.json, bench.txt and bench.png")
    add("--json", action="store_true", help="print the JSON line only")


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    try:
        import torch
    except ImportError as error:
        raise UserError("torch is not installed: pip install torch transformers") from error
    from vla_ros.engine.errors import CheckpointError

    options = _options(args)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"preset {args.preset} needs a GPU, torch finds none: try --device cpu")
    try:
        text, result, rows = _measure(args, options)
    except (CheckpointError, ValueError) as error:
        raise UserError(str(error)) from error
    _print(args, options, text, result, rows)
    return 0


def _options(args: argparse.Namespace) -> BenchOptions:
    from vla_ros.benchmark.suite import ROWS, BenchOptions

    preset = PRESETS[args.preset]
    device = args.device or preset["device"]
    clock = args.clock or ("cpu" if device == "cpu" else "wall")
    if args.timed < 1 or args.warm_up < 0 or args.tokens < 1:
        raise UserError("--timed and --tokens need at least 1, --warm-up at least 0")
    return BenchOptions(
        checkpoint=args.checkpoint or preset["checkpoint"],
        draft=args.draft or preset["draft"],
        device=device,
        dtype=args.dtype,
        rows=tuple(args.rows.split(",")) if args.rows else ROWS,
        warm_up=args.warm_up,
        timed=args.timed,
        tokens=args.tokens,
        threads=args.threads or preset["threads"],
        cpu_clock=clock == "cpu",
        frames=args.frames,
        unnorm_key=args.unnorm_key,
        cuda_graphs=not args.no_cuda_graphs,
        attention=args.attention,
    )


def _measure(
    args: argparse.Namespace, options: BenchOptions
) -> tuple[str, dict[str, Any], BenchResult]:
    """The text, the JSON, and the run that the picture shows."""
    from vla_ros.benchmark import suite
    from vla_ros.benchmark.report import table

    if args.sweep:
        runs = suite.run_sweep(options)
        parts = [f"{_shape_line(r)}\n{table(r.rows)}" for r in runs]
        return "\n\n".join(parts), {"sweep": [r.as_json() for r in runs]}, runs[0]
    if args.compile_ablation:
        ablation = suite.run_ablation(options)
        parts = [f"compiled: {name}\n{table(r.rows)}" for name, r in ablation.items()]
        found = {name: r.as_json() for name, r in ablation.items()}
        return "\n\n".join(parts), {"compile_ablation": found}, ablation["eager"]
    result = suite.run_bench(options)
    return f"{_shape_line(result)}\n{table(result.rows)}", result.as_json(), result


def _shape_line(result: BenchResult) -> str:
    shapes = result.shapes
    return (
        f"{shapes['parameters'] / 1e6:.0f}M parameters, {shapes['vision_tokens']} vision tokens,"
        f" {shapes['prompt_tokens']} prompt tokens, {shapes['action_tokens']} action tokens,"
        f" {shapes['timed']} frames after {shapes['warm_up']} of warm-up"
    )


def _print(
    args: argparse.Namespace, options: BenchOptions, text: str, result: dict[str, Any],
    shown: BenchResult,
) -> None:  # fmt: skip
    import torch

    from vla_ros.benchmark.report import json_line, machine, picture

    words = [w for w in sys.argv[1:] if w != "--json"]
    head = {
        "command": "vla-ros " + shlex.join(words),
        "preset": args.preset,
        "checkpoint": options.checkpoint,
        "device": options.device,
        "dtype": options.dtype,
        "threads": torch.get_num_threads(),
        "clock": "cpu time" if options.cpu_clock else "wall time",
        "machine": machine(torch.device(options.device)),
    }
    line = json_line({**head, **result})
    titled = "\n".join([
        f"{options.checkpoint} on {head['machine']['cpu']}" if options.device == "cpu"
        else f"{options.checkpoint} on {head['machine'].get('gpu', options.device)}",
        f"{options.dtype}, {head['threads']} threads, {head['clock']}; one call a frame",
    ])  # fmt: skip
    text = f"{titled}\n{text}"
    if not args.json:
        print(text, end="\n\n")
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "bench.txt").write_text(f"$ {head['command']}\n{text}\n")
        (args.output / "bench.json").write_text(json.dumps(json.loads(line), indent=1) + "\n")
        if not picture(shown.rows, titled, args.output / "bench.png"):
            print("no picture: matplotlib is not installed", file=sys.stderr)
    print(line)
