"""`vla-ros bench`: the inference engine measured against its references. Needs no ROS.

Prints a table, or with `--json` one line of JSON alone; `--output` also keeps
both in files, with an image.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vla_ros.cli.arguments import Verbs, add_fields, add_flag, add_verb, command
from vla_ros.core.console import Progress, Report, Table, log_line, show, text_of
from vla_ros.core.errors import UserError, user_errors
from vla_ros.engine.options import FAST, FLOW, OPTIONS, TOKENS, EngineOptions
from vla_ros_lab.bench.options import WAYS, BenchOptions, FleetOptions
from vla_ros_lab.decodings.options import HeteroSpecOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vla_ros_lab.bench.fleet import FleetResult
    from vla_ros_lab.bench.measure import BenchResult

DESCRIPTION = """\
Measure every way of decoding and its references on one model; of a flow policy
(random:smolvla-small, a LeRobot folder) the phases vision, prefix and step, beside a plain program,
transformers and LeRobot; of OpenVLA-OFT and BitVLA vision, pass and head; of pi0-FAST passes and
time of a chunk, with drafts and without, beside transformers' generate. With --fleet several
robots ask at once: unbatched, batched, and with a worker each."""

FILE_WIDTH = 160  # of bench.txt
SINGLE_PASS = "policies of a single pass"
#: Options of the engine that are flags.
ENGINE = (
    "unnorm_key", "embodiment", "device", "dtype", "weights", "num_threads",
    "cuda_graphs", "attention", "image_steps", "gemm",
    "state_in_prompt",
)  # fmt: skip
#: checkpoint, draft, device and threads
PRESETS: dict[str, dict[str, Any]] = {
    "cpu": {"checkpoint": "random:cpu", "draft": "random:small", "device": "cpu", "num_threads": 1},
    "openvla-7b": {
        "checkpoint": "random:openvla-7b", "draft": "random:minivla", "device": "cuda",
        "num_threads": 0,
    },
}  # fmt: skip


class Kind(NamedTuple):
    """A kind of policies: frames by default, and the flags that mean nothing to it, since it is
    ``what``."""

    warm_up: int
    timed: int
    idle: tuple[str, ...] = ()
    what: str = ""


_IDLE = ("draft", "unnorm_key", "frames", "tokens", "sweep", "compile_ablation", "attention",
         "image_steps")  # fmt: skip
KINDS = {
    TOKENS: Kind(10, 100),
    FLOW: Kind(2, 5, _IDLE, "is a flow policy"),
    SINGLE_PASS: Kind(2, 5, _IDLE, "makes its chunk in one pass"),
    FAST: Kind(2, 20, (*_IDLE, "passes", "gemm"), "has FAST tokens"),
}


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "bench", DESCRIPTION)
    add = parser.add_argument
    add("--preset", choices=sorted(PRESETS), default="cpu", help="model and device (cpu)")
    add("--checkpoint", help="a directory, a hub id or random:NAME, instead of the preset's")
    add_fields(parser, EngineOptions, *ENGINE, device=None, dtype="bfloat16", num_threads=None)
    add_fields(
        parser, BenchOptions, "draft", "warm_up", "timed", "tokens", "rows", "head", "frames",
        "lerobot", draft=None, warm_up=None, timed=None, tokens=None,
    )  # fmt: skip
    add_fields(parser, HeteroSpecOptions, "calibration")
    add("--clock", choices=("cpu", "wall"), help="time of the process or of the wall")
    add("--sweep", action="store_true", help="over action lengths and prompt lengths")
    add("--passes", action="store_true", help="each pass by itself, beside the roofline of this"
        " machine")  # fmt: skip
    add("--fleet", metavar="N,N", help="so many robots on one policy, and on one each: how old"
        " their answers are (1,2,4,8)")  # fmt: skip
    add_fields(parser, FleetOptions, "rate_hz", "max_age_s")
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
    if args.fleet:
        return _run_fleet(args)
    kind = _kind(args)
    options = _options(args, kind)
    _prepare(args, options.engine.device)
    return _run_passes(args, options) if args.passes else _run_rows(args, kind, options)


def _kind(args: argparse.Namespace) -> str:
    """Which of :data:`KINDS` the checkpoint is. UserError: a flag that means nothing to it."""
    from vla_ros.engine.families.registry import group_of

    kind = TOKENS if args.checkpoint is None else group_of(args.checkpoint)
    if kind == TOKENS and args.embodiment:
        raise UserError(f"--embodiment is for flow policies, {args.checkpoint or 'this'} is none")
    if kind == TOKENS and not args.passes and _is_single_pass(args.checkpoint):
        kind = SINGLE_PASS
    if kind == TOKENS and args.lerobot:
        raise UserError("--lerobot-python is for flow policies: LeRobot has no token policy")
    unset: dict[str, Any] = {name: option.default for name, option in OPTIONS.items()}
    for name in KINDS[kind].idle:
        if getattr(args, name) not in (None, False, unset.get(name, "")):
            flag = name.replace("_", "-")
            raise UserError(f"--{flag} is for token policies, {args.checkpoint} {KINDS[kind].what}")
    return kind


def _is_single_pass(checkpoint: str | None) -> bool:
    """Whether it makes its chunk in one pass: OpenVLA-OFT's architecture, BitVLA."""
    from vla_ros.engine.errors import CheckpointError
    from vla_ros.engine.families.registry import config_of, source_of

    if checkpoint is None:
        return False
    try:
        return bool(getattr(config_of(source_of(checkpoint)), "parallel", False))
    except (CheckpointError, OSError):
        return False  # reported in one line where it is loaded


def _options(args: argparse.Namespace, kind: str) -> BenchOptions:
    """What to measure. UserError: a count that cannot be."""
    preset, more = PRESETS[args.preset], dict[str, Any]()
    warm_up, timed = _counts(args, KINDS[kind].warm_up, KINDS[kind].timed)
    if kind == TOKENS:
        more = {"decoding": "autoregressive"}  # what the rows are drafted and compared with
    elif kind == FAST:
        more = {"decoding": "speculative", "draft_checkpoint": args.head}
    engine = _engine(args, None if kind == TOKENS else 1, **more)
    tokens = 7 if args.tokens is None else args.tokens
    if tokens < 1:
        raise UserError(f"--tokens {tokens}: needs at least 1")
    return BenchOptions(
        engine, args.draft or preset["draft"], warm_up, timed, tokens, args.rows, args.head,
        args.frames, args.lerobot or _lerobot(kind),
        cpu_clock=(args.clock or ("cpu" if engine.device == "cpu" else "wall")) == "cpu",
    )  # fmt: skip


def _engine(args: argparse.Namespace, threads: int | None, **more: Any) -> EngineOptions:
    """The engine's options; ``threads`` on a CPU by default, None: as the preset has them."""
    preset = PRESETS[args.preset]
    given = {name: getattr(args, name) for name in ENGINE}
    given["device"] = device = args.device or preset["device"]
    if threads is None:
        threads = preset["num_threads"]
    elif device != "cpu":
        threads = 0
    given["num_threads"] = args.num_threads or threads
    if args.calibration:
        given["extra"] = (f"calibration={args.calibration}",)
    return EngineOptions(checkpoint=args.checkpoint or preset["checkpoint"], **given, **more)


def _lerobot(kind: str) -> str:
    """The interpreter of `vla-ros lerobot setup`; "" where there is none, or no use for it."""
    from vla_ros.policies.load import lerobot_python

    python = lerobot_python()
    return str(python) if kind == FLOW and python.is_file() else ""


def _counts(args: argparse.Namespace, warm_up: int, timed: int) -> tuple[int, int]:
    """Frames before the clock runs and frames measured: given, or these. UserError."""
    warm_up = warm_up if args.warm_up is None else args.warm_up
    timed = timed if args.timed is None else args.timed
    if timed < 1 or warm_up < 0:
        raise UserError(f"--timed {timed}: needs at least 1; --warm-up {warm_up}: at least 0")
    return warm_up, timed


def _prepare(args: argparse.Namespace, device: str) -> None:
    """Refuse what must not fail after an hour of measuring. UserError: there is no such device."""
    from vla_ros.engine.layers.devices import usable_device

    usable_device(device)
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)


def _head(args: argparse.Namespace, engine: EngineOptions, load: float) -> dict[str, Any]:
    """What every JSON begins with."""
    import torch

    from vla_ros_lab.bench.report import machine

    return {
        "command": command(),
        "preset": args.preset,
        "checkpoint": engine.checkpoint,
        "device": engine.device,
        "dtype": engine.dtype,
        "weights": engine.weights,
        "threads": torch.get_num_threads(),
        "load": load,
        "machine": machine(torch.device(engine.device)),
    }


def _title(head: Mapping[str, Any], threads: str) -> list[str]:
    """What was measured where, and with what."""
    where = head["machine"]["cpu" if head["device"] == "cpu" else "gpu"]
    precision = f"{head['weights']} {head['dtype']}".strip()
    return [
        f"{head['checkpoint']} on {where}", f"{precision}, {threads}; load {head['load']:.1f}"
    ]  # fmt: skip


def _finish(
    args: argparse.Namespace,
    name: str,
    head: Mapping[str, Any],
    figures: Mapping[str, Any],
    text: Sequence[str | Table],
    figure: Callable[[], Figure | None] | None = None,
) -> int:
    """Show the text, keep text, JSON and figure in --output as NAME.txt, NAME.json and NAME.png,
    print the JSON."""
    from vla_ros_lab.bench.report import json_line, write_png

    line = json_line({**head, **figures})
    if not args.json:
        show(*text, "")
    if args.output:
        written = text_of(f"$ {head['command']}", *text, width=FILE_WIDTH)
        (args.output / f"{name}.txt").write_text(f"{written.rstrip()}\n")
        (args.output / f"{name}.json").write_text(json.dumps(json.loads(line), indent=1) + "\n")
        if figure is not None and not write_png(figure(), args.output / f"{name}.png"):
            log_line("no image: matplotlib is not installed")
    if args.json:
        print(line)
    return 0


def _run_rows(args: argparse.Namespace, kind: str, options: BenchOptions) -> int:
    from vla_ros_lab.bench.report import draw, row_tables

    load = os.getloadavg()[0]
    with Progress() as progress:
        runs, figures = _measured(
            args, kind, options, lambda text, *count: progress.update(text, text, *count)
        )
    head = _head(args, options.engine, load)
    head["clock"] = "cpu time" if options.cpu_clock else "wall time"
    text: list[str | Table] = [*_title(head, f"{head['threads']} threads, {head['clock']}")]
    for name, one in runs.items():
        text += [name, *row_tables(one.rows, one.more.get("hindsight")), *one.notes]
    rows = next(iter(runs.values())).rows
    title = "\n".join(map(str, text[:2]))
    figure = None if kind != TOKENS else lambda: draw(rows, title)
    return _finish(args, "bench", head, figures, text, figure)


def _measured(
    args: argparse.Namespace, kind: str, options: BenchOptions, report: Report
) -> tuple[dict[str, BenchResult], dict[str, Any]]:
    """The runs by the line over their tables, and the JSON."""
    from vla_ros_lab.bench import fast, flow, suite

    if kind == TOKENS and args.sweep:
        runs = suite.run_sweep(options, report)
        return {_shapes(run): run for run in runs}, {"sweep": [run.as_json() for run in runs]}
    if kind == TOKENS and args.compile_ablation:
        ablation = suite.run_ablation(options, report)
        found = {name: run.as_json() for name, run in ablation.items()}
        return {f"compiled: {n}": run for n, run in ablation.items()}, {"compile_ablation": found}
    measure = {TOKENS: suite.run_bench, FAST: fast.run_fast_bench}.get(kind, flow.run_flow_bench)
    result = measure(options, report)
    return {_shapes(result): result}, result.as_json()


def _shapes(result: BenchResult) -> str:
    """What was measured, in one line."""
    shapes = result.shapes
    counts = f"{shapes['warm_up']} + {shapes['timed']}"
    if "parameters" not in shapes:
        return f"{counts} chunks"
    parameters = f"{shapes['parameters'] / 1e6:.0f}M parameters"
    if "steps" not in shapes:
        return (
            f"{parameters}; tokens: {shapes['vision_tokens']} vision, {shapes['prompt_tokens']}"
            f" prompt, {shapes['action_tokens']} action; {counts} frames"
        )
    steps = f"{shapes['steps']} steps" if shapes["steps"] else "a single pass"
    return (
        f"{parameters}; {shapes['views']} views, {shapes['prompt_tokens']} prefix tokens, {steps},"
        f" {shapes['action_tokens']} actions; {counts} chunks"
    )


def _run_passes(args: argparse.Namespace, options: BenchOptions) -> int:
    """Measure and print every pass beside the roofline of this machine."""
    from vla_ros_lab.bench import passes
    from vla_ros_lab.bench.report import PASSES, PRODUCTS, table

    engine, load = options.engine, os.getloadavg()[0]
    with Progress() as progress:
        result = passes.measure_passes(
            options, lambda text, *count: progress.update(text, text, *count)
        )
        progress.update("this machine", "measuring this machine", 0, 0)
        device = passes.this_machine(engine)
        rows = passes.beside_roofline(result, engine, device)
    products = [asdict(product) for product in result.products]
    head = _head(args, engine, load) | {
        "attention": result.attention,
        "gemm": engine.gemm,
        "cuda_graphs": engine.cuda_graphs,
        "prompt_tokens": result.prompt,
        "reached_gb_s": device.bandwidth() / 1e9,
        "reached_tflops": {name: rate.achieved / 1e12 for name, rate in device.compute.items()},
        "remark": device.notes,
    }
    text: list[str | Table] = [
        f"{engine.checkpoint} on {device.title}",
        f"{engine.dtype}, {result.attention}; {result.prompt} prompt tokens; this machine"
        f" reads {head['reached_gb_s']:.0f} GB/s, measured now",
        table("", list(rows.items()), PASSES),
    ]
    if products:
        kernels = [
            (one["kind"], {**one, "size": f"{one['count']} x {one['width']}",
                           "faster": one["torch_us"] / one["us"]})
            for one in products
        ]  # fmt: skip
        text.append(table("", kernels, PRODUCTS))
    text += filter(None, [device.notes])
    return _finish(args, "passes", head, {"passes": rows, "products": products}, text)


def _run_fleet(args: argparse.Namespace) -> int:
    """Measure and print several robots."""
    from vla_ros.policies.base import PolicySpec
    from vla_ros_lab.bench import fleet
    from vla_ros_lab.bench.report import FLEET, table

    with user_errors(ValueError):
        sizes = tuple(int(word) for word in args.fleet.split(","))
        engine = _engine(args, None)
    warm_up, timed = _counts(args, 5, 50)
    scale = (1.0,) * 6 if engine.checkpoint.startswith("random:") else None
    spec = PolicySpec("vla", engine=engine, action_scale=scale)
    options = FleetOptions(
        spec, sizes, args.rate_hz, args.max_age_s, warm_up, timed, args.rows or WAYS
    )
    _prepare(args, engine.device)
    load = os.getloadavg()[0]
    with Progress() as progress, user_errors(RuntimeError):
        result = fleet.run_fleet(options, lambda *count: progress.update("fleet", *count))
    head = _head(args, engine, load) | {
        "threads": engine.num_threads,
        "rate_hz": args.rate_hz,
        "max_age_s": args.max_age_s,
    }
    limit = f", age limit {args.max_age_s:g} s" if args.max_age_s else ""
    threads = f"{engine.num_threads} threads a process, {head['machine']['cores']} cores"
    title = [
        *_title(head, f"{result.info.decoding}, {threads}"),
        f"{args.rate_hz:g} Hz each{limit}; {warm_up} + {timed} frames of each",
    ]
    costs = [(str(n), f"{1e3 * s:.1f}", f"{1e3 * s / n:.1f}") for n, s in result.costs.items()]
    text: list[str | Table] = [
        *title,
        Table(["robots\nin a pass", "ms", "ms each"], costs),
        _capacity(result, args.rate_hz, args.max_age_s),
        "",
        table("", [(row.way, row.as_json()) for row in result.rows], FLEET),
    ]
    return _finish(
        args, "fleet", head, result.as_json(), text,
        lambda: fleet.draw(result.rows, "\n".join(title)),
    )  # fmt: skip


def _capacity(result: FleetResult, rate_hz: float, max_age_s: float) -> str:
    """How many robots a server lets in by these costs of a pass."""
    from vla_ros.runtime.scheduler import BatchCosts, capacity

    count = capacity(BatchCosts(result.costs), rate_hz, max_age_s)
    within = f" and {max_age_s:g} s" if max_age_s else ""
    return f"by these times `vla-ros serve` lets {count} robots in at {rate_hz:g} Hz{within}"
