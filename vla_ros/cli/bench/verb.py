"""`vla-ros bench`: the inference engine measured against its references. Needs no ROS.

Prints a table and, last, one line of JSON (`--json`: that line alone); `--output` also keeps
both in files, with a picture.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.console.progress import Progress
from vla_ros.console.streams import show, text_of
from vla_ros.console.tables import Table
from vla_ros.errors import UserError

if TYPE_CHECKING:
    from vla_ros.benchmark.measure import RowResult
    from vla_ros.benchmark.suite import BenchOptions, BenchResult

SPARE = ("p95\nms", "tokens\nsame", "drafts\ntaken")  # columns where there is no room
FILE_WIDTH = 160  # of bench.txt
WARM_UP, TIMED, TOKENS = 10, 100, 7

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
        description="Measure every decoding schedule and its references on one model; of a flow"
        " policy (random:smolvla-small, a LeRobot folder) the phases vision, prefix and step,"
        " beside a plain program, transformers and LeRobot; of OpenVLA-OFT and BitVLA vision,"
        " pass and head.",
    )
    add = parser.add_argument
    add("--preset", choices=sorted(PRESETS), default="cpu", help="model and device (cpu)")
    add("--checkpoint", help="a directory, a hub id or random:NAME, instead of the preset's")
    add("--draft", help="checkpoint of the draft model")
    add("--unnorm-key", help="data set whose statistics scale the actions")
    add("--embodiment", help="flow policies: the robot, where a checkpoint was trained for several")
    add("--device", help="cpu or cuda")
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16")
    add("--weights", default="", metavar="F", help="formats of the weights, such as int8, fp8 or"
        " decoder=int4,head=int8; no rows of others then (as stored)")  # fmt: skip
    add("--threads", type=int, help="threads of torch (preset cpu: 1)")
    add("--clock", choices=("cpu", "wall"), help="time of the process or of the wall")
    add("--warm-up", type=int, help="frames before the clock runs (10; flow: 2)")
    add("--timed", type=int, help="frames measured (100; flow: 5)")
    add("--tokens", type=int, help="tokens of an action of random weights (7)")
    add("--rows", help="comma-separated rows (all)")
    add("--calibration", type=Path, metavar="FILE", help="of row heterospec (heterospec.json beside"
        " the checkpoint)")  # fmt: skip
    add("--head", type=Path, metavar="DIR", help="of the rows that draft with a head (draft_head in"
        " the checkpoint; else one of random weights)")  # fmt: skip
    add("--frames", type=Path, help=".npz with uint8 images [N, h, w, 3] (a synthetic scene)")
    add("--no-cuda-graphs", action="store_true", help="run eagerly on CUDA")
    add(
        "--attention",
        choices=("auto", "torch"),
        default="auto",
        help="of a tail: Triton's kernel or torch (auto)",
    )
    add(
        "--image-steps",
        choices=("auto", "cpu", "device"),
        default="auto",
        help="where images are resized (auto: on the GPU where there is one)",
    )
    add("--no-vision-streams", action="store_true", help="one vision tower after the other on CUDA")
    add("--compile", action="append", choices=("vision", "decoder"), default=[],
        help="by torch.compile; may be repeated")  # fmt: skip
    add("--gemm", choices=("auto", "torch"), default="auto", help="products of captured passes: the"
        " fastest of Triton's and torch's, timed, or torch's (auto)")  # fmt: skip
    add("--sweep", action="store_true", help="over action lengths and prompt lengths")
    add("--passes", action="store_true", help="each pass by itself, beside the roofline of this"
        " machine")  # fmt: skip
    add("--lerobot-python", metavar="PYTHON", help="flow: an interpreter with LeRobot"
        " (that of `vla-ros lerobot setup`)")  # fmt: skip
    add("--compile-ablation", action="store_true", help="with and without torch.compile")
    add("--output", type=Path, help="directory for bench.json, bench.txt and bench.png")
    add("--json", action="store_true", help="print the JSON line only")


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    if args.output and args.output.suffix == ".json":
        raise UserError(f"--output {args.output}: a directory; bench.json will be in it")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise UserError("torch is not installed: pip install torch transformers") from error
    from vla_ros.cli.bench.flow import is_flow, is_single_pass, run_flow, run_single_pass

    if is_flow(args.checkpoint):
        return run_flow(args)
    if args.embodiment:
        raise UserError(f"--embodiment is for flow policies, {args.checkpoint or 'this'} is none")
    if is_single_pass(args.checkpoint) and not args.passes:
        return run_single_pass(args)
    from vla_ros.engine.device import usable_device

    options = _options(args)
    usable_device(options.device)
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)  # not after an hour of measuring
    if args.passes:
        from vla_ros.cli.bench.passes import run_passes

        return run_passes(args, options)
    with Progress() as progress:
        runs, figures = _measure(args, options, progress)
    _print(args, options, runs, figures)
    return 0


def _options(args: argparse.Namespace) -> BenchOptions:
    from vla_ros.benchmark.suite import BenchOptions

    preset = PRESETS[args.preset]
    device = args.device or preset["device"]
    clock = args.clock or ("cpu" if device == "cpu" else "wall")
    timed = TIMED if args.timed is None else args.timed
    warm_up = WARM_UP if args.warm_up is None else args.warm_up
    tokens = TOKENS if args.tokens is None else args.tokens
    if args.lerobot_python:
        raise UserError("--lerobot-python is for flow policies: LeRobot has no token policy")
    if args.compile and args.compile_ablation:
        raise UserError("--compile-ablation compiles each part in turn: leave out --compile")
    if timed < 1 or warm_up < 0 or tokens < 1:
        raise UserError("--timed and --tokens need at least 1, --warm-up at least 0")
    return BenchOptions(
        checkpoint=args.checkpoint or preset["checkpoint"],
        draft=args.draft or preset["draft"],
        device=device,
        dtype=args.dtype,
        weights=args.weights,
        rows=tuple(args.rows.split(",")) if args.rows else _all_rows(args),
        calibration=str(args.calibration) if args.calibration else None,
        head=str(args.head) if args.head else None,
        warm_up=warm_up,
        timed=timed,
        tokens=tokens,
        threads=args.threads or preset["threads"],
        cpu_clock=clock == "cpu",
        frames=args.frames,
        unnorm_key=args.unnorm_key,
        cuda_graphs=not args.no_cuda_graphs,
        attention=args.attention,
        image_steps=args.image_steps,
        vision_streams=not args.no_vision_streams,
        compile=tuple(args.compile),
        gemm=args.gemm,
    )


def _all_rows(args: argparse.Namespace) -> tuple[str, ...]:
    """Every row that fits the checkpoint; heterospec where there is a calibration for it."""
    from vla_ros.benchmark.rows import HEAD_HETEROSPEC, HETEROSPEC, LATE, ROWS
    from vla_ros.cli.defaults import actions_of
    from vla_ros.engine.checkpoints.draft_head import FOLDER
    from vla_ros.engine.checkpoints.shipped import PREFIX, shipped
    from vla_ros.engine.checkpoints.weights import QUANTISED
    from vla_ros.engine.trees.calibration import FILE

    name = args.checkpoint or ""
    folder = shipped(name) if name.startswith(PREFIX) else Path(name)
    head = args.head or (folder / FOLDER)
    rows = list(ROWS)
    if args.calibration or (name and (folder / FILE).is_file()):
        rows.append(HETEROSPEC)
    if name and (head / FILE).is_file():
        rows += HEAD_HETEROSPEC
    left_out = set(LATE) if name and actions_of(name) > 1 else set()
    if args.weights or (name and (folder / QUANTISED).is_file()):
        left_out.add("generate")  # which has them as they are stored
    return tuple(row for row in rows if row not in left_out)


def _measure(
    args: argparse.Namespace, options: BenchOptions, progress: Progress
) -> tuple[dict[str, BenchResult], dict[str, Any]]:
    """The runs by what to say over their tables, and the JSON."""
    from vla_ros.benchmark import suite

    def report(text: str, done: int, total: int) -> None:
        progress.update(text, text, done, total)

    if args.sweep:
        runs = suite.run_sweep(options, report)
        return {_shapes(run): run for run in runs}, {"sweep": [run.as_json() for run in runs]}
    if args.compile_ablation:
        ablation = suite.run_ablation(options, report)
        found = {name: run.as_json() for name, run in ablation.items()}
        named = {f"compiled: {name}": run for name, run in ablation.items()}
        return named, {"compile_ablation": found}
    result = suite.run_bench(options, report)
    return {_shapes(result): result}, result.as_json()


def _table(rows: Mapping[str, RowResult]) -> Table:
    """One line a row, with a star behind the lossy ones."""
    from vla_ros.benchmark.report import COLUMNS, cell

    columns = [c for c in COLUMNS if any(cell(row, c) != "-" for row in rows.values())]
    shown = [
        (name if row.lossless else f"{name} *", *(cell(row, column) for column in columns))
        for name, row in rows.items()
    ]
    return Table(("* lossy", *(column.head for column in columns)), shown, SPARE)


def _splits(run: BenchResult) -> Iterator[Table | str]:
    """Where the time of speculation goes, and what it verifies; nothing without such rows."""
    heads = ("ms an action", "draft", "verify", "other", "tokens\nverified", "taken\na pass",
             "passes", "draft\npasses")  # fmt: skip
    shown = [
        (name, f"{s.draft_ms:.1f}", f"{s.verify_ms:.1f}", f"{s.other_ms:.1f}",
         f"{s.verified:.1f}", f"{s.accepted:.2f}", f"{row.passes_per_action:.2f}",
         f"{row.draft_passes_per_action:.2f}")
        for name, row in run.rows.items()
        if (s := row.split) is not None
    ]  # fmt: skip
    bound = run.hindsight
    if shown and bound is not None:
        counts = f"{bound.verified:.1f}", f"{bound.accepted:.2f}", f"{bound.passes:.2f}", "-"
        shown.append(("best in hindsight (not run)", "-", "-", "-", *counts))
    if shown:
        yield Table(heads, shown)
        yield ""


def _shapes(result: BenchResult) -> str:
    shapes = result.shapes
    return (
        f"{shapes['parameters'] / 1e6:.0f}M parameters; tokens: {shapes['vision_tokens']} vision,"
        f" {shapes['prompt_tokens']} prompt, {shapes['action_tokens']} action;"
        f" {shapes['warm_up']} + {shapes['timed']} frames"
    )


def _print(
    args: argparse.Namespace,
    options: BenchOptions,
    runs: Mapping[str, BenchResult],
    figures: Mapping[str, Any],
) -> None:
    import torch

    from vla_ros.benchmark.report import json_line, machine, picture

    words = [w for w in sys.argv[1:] if w != "--json"]
    head = {
        "command": "vla-ros " + shlex.join(words),
        "preset": args.preset,
        "checkpoint": options.checkpoint,
        "device": options.device,
        "dtype": options.dtype,
        "weights": options.weights,
        "threads": torch.get_num_threads(),
        "clock": "cpu time" if options.cpu_clock else "wall time",
        "machine": machine(torch.device(options.device)),
    }
    line = json_line({**head, **figures})
    where = head["machine"]["cpu" if options.device == "cpu" else "gpu"]
    precision = f"{options.weights} {options.dtype}".strip()
    title = [
        f"{options.checkpoint} on {where}",
        f"{precision}, {head['threads']} threads, {head['clock']}; one call a frame",
    ]
    parts = [
        part for name, run in runs.items() for part in (name, _table(run.rows), "", *_splits(run))
    ]
    if not args.json:
        show(*title, *parts)
    if args.output:
        text = text_of(f"$ {head['command']}", *title, *parts, width=FILE_WIDTH)
        (args.output / "bench.txt").write_text(f"{text.rstrip()}\n")
        (args.output / "bench.json").write_text(json.dumps(json.loads(line), indent=1) + "\n")
        if not picture(next(iter(runs.values())).rows, "\n".join(title), args.output / "bench.png"):
            print("no picture: matplotlib is not installed", file=sys.stderr)
    print(line)
