"""One run of a flow policy: the policy, the rows to compare it with, and what they measured."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from vla_ros.benchmark.flow.lerobot_row import LerobotRow
from vla_ros.benchmark.flow.measure import (
    FlowBenchOptions,
    FlowBenchResult,
    measure_rows,
    summaries,
)
from vla_ros.benchmark.flow.memory import Held, forget_peak, peak_bytes, resident_bytes
from vla_ros.benchmark.flow.ours import NaiveLerobotRow, NaiveRow, OwnRow, eager
from vla_ros.benchmark.flow.row import Inputs, Row
from vla_ros.benchmark.flow.transformers_pi0 import TransformersRow, of_weights
from vla_ros.benchmark.measure import Report, silent
from vla_ros.engine.checkpoints.quantised import read_origin
from vla_ros.engine.checkpoints.weights import weight_files
from vla_ros.engine.flow.accepting import refuse_formats
from vla_ros.engine.flow.config import FlowConfig, flow_config_json
from vla_ros.engine.flow.families import family_of, flow_source
from vla_ros.engine.flow.family import Choice, Config, Family, Loaded, Network, Place
from vla_ros.engine.flow.load import WEIGHTS, expected_tensors
from vla_ros.engine.flow.matrices import Record
from vla_ros.engine.flow.random import DrawnWeights
from vla_ros.engine.flow.save import save_weights
from vla_ros.engine.flow.weights import FileWeights, Weights
from vla_ros.engine.packed.graphs import CudaCapture
from vla_ros.engine.quantised.formats import parse_formats
from vla_ros.errors import UserError

#: ours (one graph on CUDA), ours without graphs, and what to compare with
ROWS = ("flow", "flow_eager", "naive", "transformers", "lerobot")
WORDS = 12  # of the prompt, in tokens
OTHER_WEIGHTS = ", random weights of its own"
SMALL = 100_000_000  # parameters up to which LeRobot gets the same random weights, in a file


def run_flow_bench(options: FlowBenchOptions, report: Report = silent) -> FlowBenchResult:
    """Measure the rows. UserError: a checkpoint or rows that cannot be."""
    unknown = sorted(set(options.rows) - set(ROWS))
    if unknown:
        raise UserError(f"rows {', '.join(unknown)} are unknown: there are {', '.join(ROWS)}")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    report(f"loading {options.checkpoint}", 0, 0)
    forget_peak()
    before = resident_bytes(options.device)
    policy, weights = _load(options)
    loading = peak_bytes(options.device) - before
    inputs = inputs_of(policy.model, options.seed)
    own = OwnRow(policy.model)
    own.chunk(inputs)
    held = Held(weights, loading, resident_bytes(options.device) - before)
    with ExitStack() as stack:
        rows, skipped, versions = _rows(options, policy, inputs, own, stack, report)
        if not rows:
            raise UserError(f"no row is left: {'; '.join(skipped.values())}")
        spent, chunks = measure_rows(options, rows, inputs, report)
    if versions.get("lerobot", "").endswith(OTHER_WEIGHTS):
        del chunks["lerobot"]  # it cannot say the same
    return FlowBenchResult(
        summaries(options, policy.config.steps, policy.config.horizon, spent, chunks),
        _shapes(policy.config, options, own),
        held, skipped, versions,
    )  # fmt: skip


def _source(options: FlowBenchOptions) -> Path | str:
    source = flow_source(options.checkpoint)
    assert source is not None, "the caller looked"
    return source


def _family(options: FlowBenchOptions) -> Family[Any]:
    return family_of(_source(options))


def _load(options: FlowBenchOptions) -> tuple[Loaded, int]:
    """The policy, and the bytes of its weights."""
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    capture = CudaCapture(device) if device.type == "cuda" and options.cuda_graphs else None
    source, family = _source(options), _family(options)
    choice = Choice(embodiment=options.embodiment)
    counted = Record(counting=True)
    try:
        formats = parse_formats(options.weights)
        refuse_formats(source, formats, device, dtype)
        family.refuse(choice)
        place = Place(device, dtype, capture, formats, counted)
        policy = family.load(source, choice, place, options.seed)
    except ValueError as error:
        raise UserError(str(error)) from error
    if _stored(source):
        return policy, sum(path.stat().st_size for path in weight_files(Path(source)))
    return policy, family.weight_bytes(policy.config, dtype) - counted.saved


def _stored(source: Path | str) -> bool:
    """A folder that was quantised ahead of time."""
    return isinstance(source, Path) and read_origin(source) is not None


def inputs_of(model: Network, seed: int) -> Inputs:
    """Random pixels and noise, a state of zeros, a prompt of a dozen tokens."""
    generator = torch.Generator().manual_seed(seed)
    given = model.example(WORDS, generator)
    noise = model.noise(generator)
    return Inputs(
        given.pixels, given.ids, given.state, None if noise is None else noise.to(model.device)
    )


def weights_of(options: FlowBenchOptions, config: FlowConfig) -> Weights:
    """The checkpoint's tensors once more, for who needs what the engine did not keep."""
    source = flow_source(options.checkpoint)
    if isinstance(source, Path):
        return FileWeights(source / WEIGHTS, expected_tensors(config))
    small = options.checkpoint.endswith("-small")
    return DrawnWeights(config, options.seed, torch.device("cpu" if small else options.device))


def _rows(
    options: FlowBenchOptions,
    policy: Loaded,
    inputs: Inputs,
    own: OwnRow,
    stack: ExitStack,
    report: Report,
) -> tuple[dict[str, Row], dict[str, str], dict[str, str]]:
    """The rows, why others are none, and the versions of references."""
    config, model = policy.config, policy.model
    rows: dict[str, Row] = {"flow": own}
    skipped: dict[str, str] = {}
    versions: dict[str, str] = {}
    plain = not options.weights and not _stored(_source(options))
    if model.padded:
        rows["flow_eager"] = eager(model)
    elif "flow_eager" in options.rows:
        skipped["flow_eager"] = "flow_eager: without graphs it is the row flow"
    if "naive" in options.rows and not config.steps:
        skipped["naive"] = f"naive: {config.kind} has a single pass, which repeats nothing"
    elif "naive" in options.rows:
        rows["naive"] = NaiveRow(model)
        if isinstance(config, FlowConfig) and plain:
            rows["naive"] = NaiveLerobotRow(model, weights_of(options, config))
    if not plain:
        others = [name for name in ("transformers", "lerobot") if name in options.rows]
        skipped |= {name: f"{name}: it has these weights as floats alone" for name in others}
        return {n: rows[n] for n in ROWS if n in rows and n in options.rows}, skipped, versions
    if "transformers" in options.rows and config.kind != "pi0":
        skipped["transformers"] = f"transformers: it has no {config.kind} of its own"
    elif "transformers" in options.rows:
        report("loading transformers", 0, 0)
        import transformers

        names = list(expected_tensors(config).must)
        theirs = of_weights(config, weights_of(options, config), names, model.dtype)
        rows["transformers"] = TransformersRow(config, theirs, model.device)
        versions["transformers"] = transformers.__version__
    if "lerobot" in options.rows and not isinstance(config, FlowConfig):
        skipped["lerobot"] = f"lerobot: its own {config.kind} is not measured here"
    elif "lerobot" in options.rows and options.lerobot is None:
        skipped["lerobot"] = "lerobot: run `vla-ros lerobot setup`, or give --lerobot-python"
    elif "lerobot" in options.rows and options.lerobot is not None:
        report("loading LeRobot", 0, 0)
        asked = {
            "config": flow_config_json(config), "dtype": options.dtype, "device": options.device,
            "threads": options.threads, "weights": _file(options, config, stack),
        }  # fmt: skip
        row = stack.enter_context(LerobotRow(options.lerobot, asked, inputs))
        rows["lerobot"], versions["lerobot"] = row, row.version
        if not asked["weights"]:
            versions["lerobot"] += OTHER_WEIGHTS
    return {n: rows[n] for n in ROWS if n in rows and n in options.rows}, skipped, versions


def _file(options: FlowBenchOptions, config: FlowConfig, stack: ExitStack) -> str:
    """A file with the checkpoint's weights for LeRobot; "" where that would be a large copy."""
    source = flow_source(options.checkpoint)
    if isinstance(source, Path):
        return str(source.absolute() / WEIGHTS)
    shapes = expected_tensors(config).must
    if sum(int(torch.Size(s).numel()) for s in shapes.values()) > SMALL:
        return ""
    drawn = weights_of(options, config)
    folder = Path(stack.enter_context(_scratch()))
    save_weights(folder / WEIGHTS, {n: drawn.take(n) for n in shapes})
    return str(folder / WEIGHTS)


def _scratch() -> Any:
    import tempfile

    return tempfile.TemporaryDirectory()


def _shapes(config: Config, options: FlowBenchOptions, own: OwnRow) -> dict[str, int]:
    views = len(config.cameras)
    return {
        "parameters": _family(options).parameters(config),
        "vision_tokens": own.seen // views,
        "prompt_tokens": own.rows,
        "action_tokens": config.horizon,
        "steps": config.steps,
        "views": views,
        "warm_up": options.warm_up,
        "timed": options.timed,
    }
