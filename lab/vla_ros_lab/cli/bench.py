"""`vla-ros bench`: the inference engine measured against its references. Needs no ROS.

Prints a table and, last, one line of JSON (`--json`: that line alone); `--output` also keeps
both in files, with an image.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.cli.arguments import Verbs, add_fields, add_flag, add_verb, command
from vla_ros.core.console import Progress, Table, show, text_of
from vla_ros.core.errors import UserError, user_errors
from vla_ros.engine.options import OPTIONS, EngineOptions

if TYPE_CHECKING:
    from vla_ros.core.console import Report
    from vla_ros.engine.layers.tuner import KernelChoice
    from vla_ros_lab.bench.fleet import FleetResult
    from vla_ros_lab.bench.flow import FlowBenchOptions, FlowBenchResult, FlowRow
    from vla_ros_lab.bench.measure import RowResult
    from vla_ros_lab.bench.passes import PassTime
    from vla_ros_lab.bench.suite import BenchOptions, BenchResult, PassesResult
    from vla_ros_lab.roofline.devices import Device
    from vla_ros_lab.roofline.roofline import StageTime
    from vla_ros_lab.roofline.work import Precision

DESCRIPTION = """\
Measure every way of decoding and its references on one model; of a flow policy
(random:smolvla-small, a LeRobot folder) the phases vision, prefix and step, beside a plain program,
transformers and LeRobot; of OpenVLA-OFT and BitVLA vision, pass and head; of pi0-FAST passes and
time of a chunk, with drafts and without, beside transformers' generate. With --fleet several
robots ask at once: unbatched, batched, and with a worker each."""

FILE_WIDTH = 160  # of bench.txt
#: Options of the engine that are flags.
ENGINE = (
    "unnorm_key", "embodiment", "device", "dtype", "weights", "num_threads", "calibration",
    "cuda_graphs", "attention", "image_steps", "gemm",
    "state_in_prompt",
)  # fmt: skip
#: checkpoint, draft, device, dtype, threads, and whether CPU time is the clock
PRESETS: dict[str, dict[str, Any]] = {
    "cpu": {"checkpoint": "random:cpu", "draft": "random:small", "device": "cpu", "num_threads": 1},
    "openvla-7b": {
        "checkpoint": "random:openvla-7b", "draft": "random:minivla", "device": "cuda",
        "num_threads": 0,
    },
}  # fmt: skip
#: options that belong to token policies
TOKENS_ONLY = (
    "draft", "unnorm_key", "frames", "tokens", "sweep", "compile_ablation",
)  # fmt: skip


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "bench", DESCRIPTION)
    add = parser.add_argument
    add("--preset", choices=sorted(PRESETS), default="cpu", help="model and device (cpu)")
    add("--checkpoint", help="a directory, a hub id or random:NAME, instead of the preset's")
    add("--draft", help="checkpoint of the draft model")
    add_fields(parser, EngineOptions, *ENGINE, device=None, dtype="bfloat16", num_threads=None)
    add("--clock", choices=("cpu", "wall"), help="time of the process or of the wall")
    add("--warm-up", type=int, help="frames before the clock runs (10; flow: 2)")
    add("--timed", type=int, help="frames measured (100; flow: 5)")
    add("--tokens", type=int, help="tokens of an action of random weights (7)")
    add("--rows", help="comma-separated rows (all)")
    add("--head", type=Path, metavar="DIR", help="of the rows that draft with a head (draft_head in"
        " the checkpoint; else one of random weights)")  # fmt: skip
    add("--frames", type=Path, help=".npz with uint8 images [N, h, w, 3] (a synthetic scene)")
    add("--sweep", action="store_true", help="over action lengths and prompt lengths")
    add("--passes", action="store_true", help="each pass by itself, beside the roofline of this"
        " machine")  # fmt: skip
    add("--fleet", metavar="N,N", help="so many robots on one policy, and on one each: how old"
        " their answers are (1,2,4,8)")  # fmt: skip
    add("--rate", type=float, default=10.0, metavar="HZ", help="fleet: frames a second (10)")
    add("--max-age", type=float, default=0.0, metavar="S", help="fleet: what each robot asks the"
        " server to keep to (0: nothing)")  # fmt: skip
    add("--lerobot-python", metavar="PYTHON", help="flow: an interpreter with LeRobot"
        " (that of `vla-ros lerobot setup`)")  # fmt: skip
    add("--compile-ablation", action="store_true", help="with and without torch.compile")
    add("--output", type=Path, help="directory for bench.json, bench.txt and bench.png")
    add_flag(parser, "--json", help="print the JSON line only")


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    if args.output and args.output.suffix == ".json":
        raise UserError(f"--output {args.output}: a directory; bench.json will be in it")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise UserError("torch is not installed: pip install torch transformers") from error
    from vla_ros.engine.families.registry import group_of
    from vla_ros.engine.options import TOKENS
    from vla_ros_lab.bench import fast, flow

    if args.fleet:
        return _run_fleet(args)
    if args.checkpoint is not None and fast.is_fast(args.checkpoint):
        return _run_fast(args)
    if args.checkpoint is not None and group_of(args.checkpoint) != TOKENS:
        return _run_flow(args, flow.ROWS, flow.run_flow_bench, "is a flow policy")
    if args.embodiment:
        raise UserError(f"--embodiment is for flow policies, {args.checkpoint or 'this'} is none")
    if _is_single_pass(args.checkpoint) and not args.passes:
        what = "says its chunk in one pass"
        return _run_flow(args, flow.SINGLE_PASS_ROWS, flow.run_single_pass, what)
    options = _options(args)
    _prepare(args, options.engine.device)
    if args.passes:
        return _run_passes(args, options)
    with Progress() as progress:
        runs, figures = _measure(args, options, progress)
    _print(args, options, runs, figures)
    return 0


def _is_single_pass(checkpoint: str | None) -> bool:
    """Whether it says its chunk in one pass: OpenVLA-OFT's architecture, BitVLA."""
    from vla_ros.engine.errors import CheckpointError
    from vla_ros.engine.families.registry import config_of, source_of

    if checkpoint is None:
        return False
    try:
        return bool(getattr(config_of(source_of(checkpoint)), "parallel", False))
    except (CheckpointError, OSError):
        return False  # said in one line where it is loaded


def _prepare(args: argparse.Namespace, device: str) -> None:
    """What must not fail after an hour of measuring. UserError: there is no such device."""
    from vla_ros.engine.layers.devices import usable_device

    usable_device(device)
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)


def _counts(args: argparse.Namespace, warm_up: int, timed: int) -> tuple[int, int]:
    """Frames before the clock runs and frames measured: given, or these. UserError."""
    warm_up = warm_up if args.warm_up is None else args.warm_up
    timed = timed if args.timed is None else args.timed
    if timed < 1 or warm_up < 0:
        raise UserError(f"--timed {timed}: needs at least 1; --warm-up {warm_up}: at least 0")
    return warm_up, timed


def _cpu_clock(args: argparse.Namespace, device: str) -> bool:
    return (args.clock or ("cpu" if device == "cpu" else "wall")) == "cpu"


def _finish(
    args: argparse.Namespace,
    name: str,
    head: Mapping[str, Any],
    figures: Mapping[str, Any],
    text: Sequence[str | Table],
) -> None:
    """Show the text, keep text and JSON in --output as NAME.txt and NAME.json, print the JSON."""
    from vla_ros_lab.bench.report import json_line

    line = json_line({**head, **figures})
    if not args.json:
        show(*text, "")
    if args.output:
        written = text_of(f"$ {head['command']}", *text, width=FILE_WIDTH)
        (args.output / f"{name}.txt").write_text(f"{written.rstrip()}\n")
        (args.output / f"{name}.json").write_text(json.dumps(json.loads(line), indent=1) + "\n")
    print(line)


def _machine(device: str) -> dict[str, Any]:
    import torch

    from vla_ros_lab.bench.report import machine

    return machine(torch.device(device))


# Token policies: a row a way of decoding.


def _options(args: argparse.Namespace) -> BenchOptions:
    from vla_ros_lab.bench.suite import BenchOptions

    preset = PRESETS[args.preset]
    device = args.device or preset["device"]
    warm_up, timed = _counts(args, 10, 100)
    tokens = 7 if args.tokens is None else args.tokens
    if tokens < 1:
        raise UserError(f"--tokens {tokens}: needs at least 1")
    if args.lerobot_python:
        raise UserError("--lerobot-python is for flow policies: LeRobot has no token policy")
    return BenchOptions(
        engine=EngineOptions(
            checkpoint=args.checkpoint or preset["checkpoint"],
            device=device,
            dtype=args.dtype,
            weights=args.weights,
            decoding="autoregressive",  # what the rows are drafted and compared with
            unnorm_key=args.unnorm_key,
            calibration=args.calibration,
            num_threads=args.num_threads or preset["num_threads"],
            cuda_graphs=args.cuda_graphs,
            attention=args.attention,
            image_steps=args.image_steps,
            gemm=args.gemm,
        ),
        draft=args.draft or preset["draft"],
        head=str(args.head or ""),
        rows=tuple(args.rows.split(",")) if args.rows else _all_rows(args),
        warm_up=warm_up,
        timed=timed,
        tokens=tokens,
        cpu_clock=_cpu_clock(args, device),
        frames=args.frames,
    )


def _all_rows(args: argparse.Namespace) -> tuple[str, ...]:
    """Every row that fits the checkpoint; heterospec where there is a calibration for it."""
    from vla_ros.cli.defaults import actions_of
    from vla_ros.engine.decoding.calibration import FILE
    from vla_ros.engine.decoding.draft_head_folder import FOLDER
    from vla_ros.engine.io.hub import SHIPPED, shipped
    from vla_ros.engine.io.weights import QUANTIZED
    from vla_ros_lab.bench.suite import HEAD_HETEROSPEC, HETEROSPEC, LATE, ROWS

    name = args.checkpoint or ""
    folder = shipped(name) if name.startswith(SHIPPED) else Path(name)
    head = args.head or (folder / FOLDER)
    rows = list(ROWS)
    if args.calibration or (name and (folder / FILE).is_file()):
        rows.append(HETEROSPEC)
    if name and (head / FILE).is_file():
        rows += HEAD_HETEROSPEC
    left_out = set(LATE) if name and actions_of(name) > 1 else set()
    if args.weights or (name and (folder / QUANTIZED).is_file()):
        left_out.add("generate")  # which has them as they are stored
    return tuple(row for row in rows if row not in left_out)


def _measure(
    args: argparse.Namespace, options: BenchOptions, progress: Progress
) -> tuple[dict[str, BenchResult], dict[str, Any]]:
    """The runs by what to say over their tables, and the JSON."""
    from vla_ros_lab.bench import suite

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
    from vla_ros_lab.bench.report import COLUMNS, cell

    columns = [c for c in COLUMNS if any(cell(row, c) != "-" for row in rows.values())]
    shown = [
        (name if row.lossless else f"{name} *", *(cell(row, column) for column in columns))
        for name, row in rows.items()
    ]
    return Table(
        ("* lossy", *(column.head for column in columns)),
        shown,
        ("p95\nms", "tokens\nsame", "drafts\ntaken"),
    )


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

    from vla_ros_lab.bench.report import picture

    head = {
        "command": command(),
        "preset": args.preset,
        "checkpoint": options.engine.checkpoint,
        "device": options.engine.device,
        "dtype": options.engine.dtype,
        "weights": options.engine.weights,
        "threads": torch.get_num_threads(),
        "clock": "cpu time" if options.cpu_clock else "wall time",
        "machine": _machine(options.engine.device),
    }
    where = head["machine"]["cpu" if options.engine.device == "cpu" else "gpu"]
    precision = f"{options.engine.weights} {options.engine.dtype}".strip()
    title = [
        f"{options.engine.checkpoint} on {where}",
        f"{precision}, {head['threads']} threads, {head['clock']}; one call a frame",
    ]
    parts = [
        part for name, run in runs.items() for part in (name, _table(run.rows), "", *_splits(run))
    ]
    if args.output:
        rows = next(iter(runs.values())).rows
        if not picture(rows, "\n".join(title), args.output / "bench.png"):
            print("no image: matplotlib is not installed", file=sys.stderr)
    _finish(args, "bench", head, figures, [*title, *parts])


# What has an action head: its phases beside references on the same inputs.


def _run_flow(
    args: argparse.Namespace,
    rows: tuple[str, ...],
    run_bench: Callable[[FlowBenchOptions, Report], FlowBenchResult],
    what: str,
) -> int:
    options = _flow_options(args, rows, what)
    _prepare(args, options.engine.device)
    if args.passes:
        return _run_flow_passes(args, options)
    load = os.getloadavg()[0]
    with Progress() as progress:
        result = run_bench(
            options, lambda text, done, total: progress.update(text, text, done, total)
        )
    _print_flow(args, options, result, load)
    return 0


def _run_fast(args: argparse.Namespace) -> int:
    """pi0-FAST: measure and print."""
    from vla_ros_lab.bench import fast

    _refuse_idle(args, "says FAST tokens", "passes", "gemm")
    device = args.device or "cpu"
    _prepare(args, device)
    warm_up, timed = _counts(args, 2, 20)
    options = EngineOptions(
        checkpoint=args.checkpoint, device=device, dtype=args.dtype, weights=args.weights,
        state_in_prompt=args.state_in_prompt,
        cuda_graphs=args.cuda_graphs, num_threads=args.num_threads or (1 if device == "cpu" else 0),
        decoding="speculative", draft_checkpoint=str(args.head or ""),
    )  # fmt: skip
    rows = tuple(args.rows.split(",")) if args.rows else fast.rows_for(options)
    cpu_clock = _cpu_clock(args, device)
    with Progress() as progress, user_errors(ValueError):
        found = fast.run_fast_bench(
            options, rows, warm_up, timed, cpu_clock,
            lambda text, done, total: progress.update(text, text, done, total),
        )  # fmt: skip
    head = {
        "command": command(),
        "checkpoint": args.checkpoint,
        "dtype": args.dtype,
        "clock": "cpu time" if cpu_clock else "wall time",
        "machine": _machine(device),
    }
    heads, lines = fast.table(found)
    text: list[str | Table] = [
        f"{args.checkpoint}, {args.dtype}, {head['clock']}; {warm_up} + {timed} chunks",
        Table(heads, lines),
    ]
    _finish(args, "bench", head, fast.as_json(found), text)
    return 0


# --fleet: several robots.


def _run_fleet(args: argparse.Namespace) -> int:
    from vla_ros.policies.base import PolicySpec
    from vla_ros_lab.bench import fleet

    preset = PRESETS[args.preset]
    device = args.device or preset["device"]
    checkpoint = args.checkpoint or preset["checkpoint"]
    names = ("unnorm_key", "dtype", "weights", "calibration", "cuda_graphs", "attention", "gemm",
             "image_steps", "embodiment")  # fmt: skip
    with user_errors(ValueError):
        sizes = tuple(int(word) for word in args.fleet.split(","))
        engine = EngineOptions(
            checkpoint=checkpoint,
            device=device,
            num_threads=args.num_threads or preset["num_threads"],
            **{name: getattr(args, name) for name in names},
        )
    warm_up, timed = _counts(args, 5, 50)
    scale = (1.0,) * 6 if checkpoint.startswith("random:") else None
    rows = tuple(args.rows.split(",")) if args.rows else fleet.WAYS
    options = fleet.FleetOptions(
        PolicySpec("vla", engine=engine, action_scale=scale),
        sizes, args.rate, args.max_age, warm_up, timed, rows,
    )  # fmt: skip
    _prepare(args, device)
    load = os.getloadavg()[0]
    with Progress() as progress, user_errors(RuntimeError):
        result = fleet.run_fleet(
            options, lambda text, done, total: progress.update("fleet", text, done, total)
        )
    head: dict[str, Any] = {
        "command": command(),
        "checkpoint": checkpoint,
        "device": device,
        "dtype": args.dtype,
        "weights": args.weights,
        "threads": engine.num_threads,
        "rate_hz": args.rate,
        "max_age_s": args.max_age,
        "load": load,
        "machine": _machine(device),
    }
    where = head["machine"]["cpu" if device == "cpu" else "gpu"]
    asked = f"{args.rate:g} Hz each" + (f", age limit {args.max_age:g} s" if args.max_age else "")
    title = [
        f"{checkpoint} on {where}",
        f"{args.weights} {args.dtype}".strip() + f", {result.info.decoding}, {engine.num_threads}"
        f" threads a process, {head['machine']['cores']} cores, load {load:.1f} before",
        f"{asked}; {warm_up} + {timed} frames of each",
    ]
    costs = [(str(n), f"{1e3 * s:.1f}", f"{1e3 * s / n:.1f}") for n, s in result.costs.items()]
    if args.output and not fleet.picture(result.rows, "\n".join(title), args.output / "fleet.png"):
        print("no image: matplotlib is not installed", file=sys.stderr)
    text: list[str | Table] = [
        *title,
        Table(["robots\nin a pass", "ms", "ms each"], costs),
        _capacity(result, args.rate, args.max_age),
        "",
        Table(*fleet.table(result.rows), ("fair", "refused", "a pass")),
    ]
    _finish(args, "fleet", head, result.as_json(), text)
    return 0


def _capacity(result: FleetResult, rate_hz: float, max_age_s: float) -> str:
    """By what a pass costs."""
    from vla_ros.runtime.scheduler import BatchCosts, capacity

    count = capacity(BatchCosts(result.costs), rate_hz, max_age_s)
    within = f" and {max_age_s:g} s" if max_age_s else ""
    return f"by these times `vla-ros serve` lets {count} robots in at {rate_hz:g} Hz{within}"


def _refuse_idle(args: argparse.Namespace, what: str, *more: str) -> None:
    """UserError where an option was given that is for token policies of bins; ``more`` names of
    such."""
    default = {name: option.default for name, option in OPTIONS.items()}
    given = [name for name in TOKENS_ONLY if getattr(args, name)]
    choices = ("attention", "image_steps", *more)
    given += [name for name in choices if getattr(args, name) != default.get(name, False)]
    if given:
        option = given[0].replace("_", "-")
        raise UserError(f"--{option} is for token policies, {args.checkpoint} {what}")


def _flow_options(args: argparse.Namespace, rows: tuple[str, ...], what: str) -> FlowBenchOptions:
    from vla_ros.policies.load import lerobot_python
    from vla_ros_lab.bench.flow import FlowBenchOptions

    _refuse_idle(args, what)
    warm_up, timed = _counts(args, 2, 5)
    device = args.device or "cpu"
    python = lerobot_python()
    return FlowBenchOptions(
        engine=EngineOptions(
            checkpoint=args.checkpoint,
            device=device,
            dtype=args.dtype,
            weights=args.weights,
            embodiment=args.embodiment,
            state_in_prompt=args.state_in_prompt,
            cuda_graphs=args.cuda_graphs,
            gemm=args.gemm,
            num_threads=args.num_threads or (1 if device == "cpu" else 0),
        ),
        rows=tuple(args.rows.split(",")) if args.rows else rows,
        warm_up=warm_up,
        timed=timed,
        cpu_clock=_cpu_clock(args, device),
        lerobot=args.lerobot_python or (str(python) if python.is_file() else None),
    )


def _flow_table(rows: Mapping[str, FlowRow]) -> Table:
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
    return Table(heads, lines, ("p95\nms", "wall\nms", "differs\nby"))


def _print_flow(
    args: argparse.Namespace, options: FlowBenchOptions, result: FlowBenchResult, load: float
) -> None:
    import torch

    head: dict[str, Any] = {
        "command": command(),
        "checkpoint": options.engine.checkpoint,
        "device": options.engine.device,
        "dtype": options.engine.dtype,
        "weights": options.engine.weights,
        "threads": torch.get_num_threads(),
        "clock": "cpu time" if options.cpu_clock else "wall time",
        "load": load,
        "machine": _machine(options.engine.device),
    }
    where = head["machine"]["cpu" if options.engine.device == "cpu" else "gpu"]
    shapes, precision = result.shapes, f"{options.engine.weights} {options.engine.dtype}".strip()
    steps = f"{shapes['steps']} steps" if shapes["steps"] else "a single pass"
    text: list[str | Table] = [
        f"{options.engine.checkpoint} on {where}",
        f"{precision}, {head['threads']} threads, {head['clock']}; load {load:.1f}",
        f"{shapes['parameters'] / 1e6:.0f}M parameters; {shapes['views']} views,"
        f" {shapes['prompt_tokens']} prefix tokens, {steps},"
        f" {shapes['action_tokens']} actions; {shapes['warm_up']} + {shapes['timed']} chunks",
        _flow_table(result.rows),
        str(result.memory),
        *(f"{name} {version}" for name, version in result.versions.items()),
        *(f"left out: {why}" for why in result.skipped.values()),
    ]
    _finish(args, "bench", head, result.as_json(), text)


# --passes: every pass beside the roofline of this machine.


def _run_passes(args: argparse.Namespace, options: BenchOptions) -> int:
    """Measure and print."""
    from vla_ros_lab.bench import passes
    from vla_ros_lab.bench.suite import measure_passes
    from vla_ros_lab.roofline.roofline import Roofline
    from vla_ros_lab.roofline.shapes import load_model

    with Progress() as progress:
        result = measure_passes(
            options, lambda text, done, total: progress.update(text, text, done, total)
        )
        progress.update("this machine", "measuring this machine", 0, 0)
        with user_errors(ValueError):
            shape = load_model(options.engine.checkpoint).with_prompt(result.prompt)
            shape = replace(shape, action_tokens=result.tokens)
            precision = _precision(options.engine)
        device = _device(options.engine)
        roof = Roofline(shape, device, precision)
        stages = {
            passes.VISION: roof.vision(),
            passes.PROJECTOR: roof.projector(),
            passes.PREFILL: roof.prefill(),
            passes.VERIFY: roof.prefill(result.tokens - 1),
            passes.DECODE: roof.decode(),
            passes.REVERIFY: roof.decode(result.tokens),
            passes.PACKED: roof.packed(),
        }
        rows = {n: _pass_row(time, stages.get(n)) for n, time in result.passes.items()}
    _print_passes(args, options.engine, rows, device, result)
    return 0


def _run_flow_passes(args: argparse.Namespace, options: FlowBenchOptions) -> int:
    """The same of a policy with an action head."""
    from vla_ros_lab.bench import passes
    from vla_ros_lab.bench.flow import measure_flow_passes
    from vla_ros_lab.roofline import roofline
    from vla_ros_lab.roofline.shapes import flow_shape_of

    with Progress() as progress:
        result, config = measure_flow_passes(
            options, lambda text, done, total: progress.update(text, text, done, total)
        )
        progress.update("this machine", "measuring this machine", 0, 0)
        device = _device(options.engine)
    stages: dict[str, StageTime] = {}
    shape = flow_shape_of(config, options.engine.checkpoint)
    if shape.kind == "flow" and shape.expert is not None:
        shape = shape.with_prompt(result.prompt)
        roof = roofline.Roofline(shape, device, _precision(options.engine))
        steps = roofline.repeat(roofline.expert_step(shape), config.steps)
        stages = {
            passes.VISION: roof.time("vision", roofline.vision(shape) + roofline.projector(shape)),
            passes.PREFILL: roof.prefix(),
            passes.STEPS: roof.time(passes.STEPS, roofline.expert_once(shape) + steps),
        }
    rows = {name: _pass_row(time, stages.get(name)) for name, time in result.passes.items()}
    _print_passes(args, options.engine, rows, device, result)
    return 0


def _precision(options: EngineOptions) -> Precision:
    """The formats of the weights, or their type."""
    from vla_ros_lab.roofline.bench_file import DTYPES
    from vla_ros_lab.roofline.work import parse_precision, precision_of_weights

    if options.weights:
        return precision_of_weights(options.weights)
    return parse_precision(DTYPES[options.dtype])


def _device(options: EngineOptions) -> Device:
    """What this machine reaches, measured now."""
    import torch

    from vla_ros.engine.layers.devices import on_device
    from vla_ros_lab.roofline.devices import measure

    device = torch.device(options.device)
    with on_device(device):
        return measure(1 << 29, threads=options.num_threads, gpu=device.type == "cuda")


def _pass_row(time: PassTime, stage: StageTime | None) -> dict[str, Any]:
    """A pass beside its roofline; ``efficiency`` is the share of the least time there can be."""
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


def _pass_table(rows: dict[str, dict[str, Any]]) -> Table:
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


def _products(chosen: Sequence[KernelChoice]) -> Table:
    """Which way was taken for which product, or what lies around it, and what torch's takes."""
    return Table(
        ["", "rows", "N x K", "way", "us", "torch\nus", "times\nfaster"],
        [
            (c.kind, str(c.rows), f"{c.count} x {c.width}", c.way, f"{c.us:.1f}",
             f"{c.torch_us:.1f}", f"{c.torch_us / c.us:.2f}")
            for c in chosen
        ],
    )  # fmt: skip


def _print_passes(
    args: argparse.Namespace,
    options: EngineOptions,
    rows: dict[str, dict[str, Any]],
    device: Device,
    result: PassesResult,
) -> None:
    import torch

    head: dict[str, Any] = {
        "command": command(),
        "checkpoint": options.checkpoint,
        "device": options.device,
        "dtype": options.dtype,
        "threads": torch.get_num_threads(),
        "attention": result.attention,
        "gemm": options.gemm,
        "cuda_graphs": options.cuda_graphs,
        "prompt_tokens": result.prompt,
        "machine": _machine(options.device),
        "reached_gb_s": device.bandwidth() / 1e9,
        "reached_tflops": {name: rate.achieved / 1e12 for name, rate in device.compute.items()},
        "remark": device.notes,
    }
    text: list[str | Table] = [
        f"{options.checkpoint} on {device.title}",
        f"{options.dtype}, {result.attention}; {result.prompt} prompt tokens; this machine"
        f" reads {head['reached_gb_s']:.0f} GB/s, measured now",
        _pass_table(rows),
        *([_products(result.gemm)] if result.gemm else ()),
        *filter(None, [device.notes]),
    ]
    figures = {"passes": rows, "products": [asdict(c) for c in result.gemm]}
    _finish(args, "passes", head, figures, text)
