"""One run of a flow policy: the policy, the rows to compare it with, and what they measured."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from vla_ros.core.clock import SystemClock
from vla_ros.core.console import Report
from vla_ros.core.errors import UserError, user_errors
from vla_ros.core.types import Observation, Timeline
from vla_ros.engine.decoding.parallel import Parallel
from vla_ros.engine.engine import Engine
from vla_ros.engine.families.base import Family, LoadedPolicy, LoadOptions
from vla_ros.engine.families.lerobot import PI0, WEIGHTS, expected_tensors, save_weights
from vla_ros.engine.families.registry import family_of, source_of
from vla_ros.engine.io.flow_config import FlowConfig, flow_config_json
from vla_ros.engine.io.linear import read_linear
from vla_ros.engine.io.quantize import DECODER, Record, read_origin
from vla_ros.engine.io.weights import FileWeights, Weights, weight_files
from vla_ros.engine.layers.linear import LowBit, LowBitLinear
from vla_ros.engine.layers.pack import PackLayout
from vla_ros.engine.layers.request import Request, StageTimer
from vla_ros.engine.layers.ternary import Product, Ternary
from vla_ros.engine.layers.tuner import KernelChoice
from vla_ros.engine.load import load_engine, placement
from vla_ros.engine.models.base import FlowPolicy, GraphedFunctions, PolicyConfig, Prefix
from vla_ros.engine.models.language.bitnet import BitNetDecoder
from vla_ros.engine.models.pi0 import EXPERT, NORMS
from vla_ros.engine.models.pi0 import TEXT as PI_TEXT
from vla_ros.engine.models.smolvla import TEXT as SMOLVLA_TEXT
from vla_ros.engine.models.transformer import layer_table, read_layer
from vla_ros.engine.models.vlm_with_expert import VLMWithExpert, time_table
from vla_ros.engine.options import TOKENS, EngineOptions
from vla_ros_lab.bench.flow_rivals import (
    ChunkTime,
    Inputs,
    LerobotRow,
    RivalRow,
    Stopwatch,
    TransformersRow,
    of_weights,
)
from vla_ros_lab.bench.measure import silent
from vla_ros_lab.bench.passes import time_flow_passes
from vla_ros_lab.bench.suite import INSTRUCTION, PassesResult

# The engine's own model as rows: as it is, without graphs, and as a plain program would use it.


class OwnRow:
    """The engine: the prefix once, all steps one function (one graph where the model has any)."""

    def __init__(self, model: FlowPolicy[Any]) -> None:
        self.model = model
        self.rows = 0  # of the newest prefix, without padding
        self.seen = 0  # rows of its images

    def chunk(self, inputs: Inputs) -> tuple[torch.Tensor, ChunkTime]:
        model, watch = self.model, Stopwatch(self.model.device)
        features = watch.time("vision", lambda: model.image_features(inputs.pixels))
        self.seen = len(features)
        prefix = watch.time("prefill", lambda: model.prefill(features, inputs.ids, inputs.state))
        self.rows = int(prefix.mask.sum())
        out = watch.time("decode", lambda: self._integrate(prefix, inputs.noise))
        return out.float().cpu(), watch.spent

    def _integrate(self, prefix: Prefix, noise: torch.Tensor | None) -> torch.Tensor:
        return self.model.sample_actions(prefix, None, noise)


def eager(model: FlowPolicy[Any]) -> OwnRow:
    """The same weights and buffers without graphs."""
    twin = copy(model)
    twin.captured = GraphedFunctions(None)
    return OwnRow(twin)


class NaiveRow(OwnRow):
    """The same arithmetic as a plain program has it: no graphs; in every step all that is the same
    in every step, and caches that are copied before they are written to."""

    def __init__(self, model: FlowPolicy[Any]) -> None:
        twin = copy(model)
        twin.captured = GraphedFunctions(None)
        super().__init__(twin)
        self._stepping = twin

    def _integrate(self, prefix: Prefix, noise: torch.Tensor | None) -> torch.Tensor:
        assert noise is not None, "a solver starts from noise"
        x, solver = noise.to(self.model.device, torch.float32), self._stepping.solver
        for step, time in enumerate(solver.times):
            _ = [t.clone() for t in (*prefix.keys, *prefix.values)]
            self._repeat(time)
            x = x + solver.dt * self._stepping.denoise_step(prefix, x, step)
        return x[: self.model.horizon]  # a head may make more actions than the robot takes

    def _repeat(self, time: float) -> None:
        """What else a plain program does again in a step."""


class NaiveLerobotRow(NaiveRow):
    """Of pi0, pi0.5 and SmolVLA also the whole last layer of the prefix, and pi0.5's scales and
    shifts in every step, beside pi0's state and SmolVLA's cross keys and values.

    ``weights`` are the model's own: what the engine did not keep is read from them.
    """

    def __init__(self, model: VLMWithExpert, weights: Weights) -> None:
        super().__init__(model)
        twin = self.model
        assert isinstance(twin, VLMWithExpert)
        config, like = model.config, torch.empty(0, device=model.device, dtype=model.dtype)
        text = config.shapes.text
        base = SMOLVLA_TEXT if config.kind == "smolvla" else PI_TEXT
        name, table = f"{base}layers.{text.layers - 1}.", layer_table(text)
        last = read_layer(weights, name, table, like, DECODER)
        twin.layers = [*model.layers[:-1], last]
        self._modulate = PlainModulation(config, weights, like) if config.adaptive else None

    def _repeat(self, time: float) -> None:
        if self._modulate is not None:
            self._modulate(time)


class PlainModulation:
    """pi0.5's scales, shifts and gates of one step, as a plain program makes them from the time."""

    def __init__(self, config: FlowConfig, weights: Weights, like: torch.Tensor) -> None:
        self._config, self._like = config, like
        self._first, self._second = (
            read_linear(weights, f"time_mlp_{n}").on(like.device) for n in ("in", "out")
        )
        layers = range(config.shapes.expert.layers)
        names = [f"layers.{i}.{n}" for i in layers for n in NORMS] + ["norm"]
        self._dense = [read_linear(weights, f"{EXPERT}model.{n}.dense").to(like) for n in names]

    def __call__(self, time: float) -> list[torch.Tensor]:
        """[3 w] each: two norms a layer, then the last one."""
        config = self._config
        width = config.shapes.expert.hidden_size
        table = time_table((time,), width, config.min_period, config.max_period)
        with torch.inference_mode():
            embedded = table.float().to(self._like.device)
            condition = F.silu(self._second(F.silu(self._first(embedded)))).to(self._like)
            return [dense(condition)[0] for dense in self._dense]


# What a loaded policy holds beside its weights.


SPARE = 0.2  # of the weights: what everything else may take
LEAST = 200e6  # bytes of weights below which libraries and arenas say more than the policy


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """Bytes: of the checkpoint's weights in the chosen format, what loading took at the most, and
    what a chunk left resident, both beyond what the process had before (on CUDA: what torch had
    taken from the device, graphs' pools included, caches given back)."""

    weights: int
    loading: int
    held: int

    @property
    def good(self) -> bool | None:
        """Whether the rest stays within a fifth; None where the weights are too small to say."""
        return None if self.weights < LEAST else self.held <= (1 + SPARE) * self.weights

    def __str__(self) -> str:
        verdict = "too small to judge"
        if self.good is not None:
            more = self.held / self.weights - 1
            verdict = f"{100 * more:+.0f} %, {'within' if self.good else 'NOT within'} 20 %"
        return (
            f"memory: weights {self.weights / 1e6:.0f} MB; by a chunk the process had grown by"
            f" {self.held / 1e6:.0f} MB ({verdict}), libraries and scratch included; while loading"
            f" by {self.loading / 1e6:.0f} MB at the most"
        )


def resident_bytes(device: str) -> int:
    """Of this process now; on CUDA what torch holds of the device, without what it could give
    back: a graph's pool stays, though no tensor of it is alive."""
    if device != "cpu":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(device)
    return _status("VmRSS")


def peak_bytes(device: str) -> int:
    """The most since :func:`forget_peak`."""
    return torch.cuda.max_memory_reserved(device) if device != "cpu" else _status("VmHWM")


def forget_peak(device: str) -> None:
    """Let the peak begin at what is held now (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


# What every bench of chunks measures: rows in turn on the same inputs, and their medians.


@dataclass(frozen=True, slots=True)
class FlowBenchOptions:
    """What to measure. ``lerobot``: its interpreter, None where there is none."""

    engine: EngineOptions
    rows: tuple[str, ...]
    warm_up: int = 1
    timed: int = 5
    cpu_clock: bool = True
    lerobot: str | None = None


@dataclass(frozen=True, slots=True)
class FlowRow:
    """One row: ms a chunk, from prepared inputs on. ``latency_ms``: from the frame to actions in
    units, which the engine prepares for every row. ``stages_ms`` are medians by phase, ``step_ms``
    one solver step.
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
    memory: HeldBytes
    skipped: dict[str, str]
    versions: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        memory = {**asdict(self.memory), "within_20_percent": self.memory.good}
        return {
            "shapes": self.shapes, "memory": memory, "skipped": self.skipped,
            "versions": self.versions, "decodings": {n: asdict(r) for n, r in self.rows.items()},
        }  # fmt: skip


def measure_rows(
    options: FlowBenchOptions, rows: dict[str, RivalRow], inputs: Inputs, report: Report
) -> tuple[dict[str, list[ChunkTime]], dict[str, torch.Tensor]]:
    """Chunk by chunk in turn, so that drift of the machine hits all rows alike; another row
    begins each time, since the first finds the caches cold."""
    spent: dict[str, list[ChunkTime]] = {name: [] for name in rows}
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
    spent: dict[str, list[ChunkTime]],
    chunks: dict[str, torch.Tensor],
    prepared: float,
) -> dict[str, FlowRow]:
    """The rows of the table, by name, for a head of so many solver steps (0: a single pass).
    ``prepared``: seconds from a frame to inputs and from a chunk to units."""
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
            latency_ms=(median + prepared) * 1e3,
            stages_ms={n: stages[n] for n in ("vision", "prefill", "decode")},
            step_ms=stages["decode"] / max(steps, 1),
            passes_per_action=float(1 + steps),
            actions_per_call=horizon,
            speedup={o: m / median for o, m in medians.items() if o != name},
            difference=_difference(chunks[name], chunks["naive"]) if comparable else None,
        )
    return out


FRAME = (480, 640)  # pixels of a camera's image


def preparing(call: Callable[[], Any], device: torch.device, options: FlowBenchOptions) -> float:
    """Median seconds of what stands around the network, by the clock of the rows."""
    found = []
    for _ in range(options.warm_up + options.timed):
        watch = Stopwatch(device)
        watch.time("prepare", call)
        found.append(watch.spent)
    return statistics.median(s.total(options.cpu_clock) for s in found[options.warm_up :])


def _prepare(policy: LoadedPolicy, seed: int) -> Callable[[], Any]:
    """A frame of all cameras to inputs, and a chunk of zeros to units."""
    config, preparation = policy.config, policy.preparation()
    preparation.instruct(INSTRUCTION)
    random = np.random.default_rng(seed)
    pictures = [random.integers(0, 256, (*FRAME, 3), dtype=np.uint8) for _ in config.cameras]
    state, chunk = torch.zeros(config.state_dim), torch.zeros(config.horizon, config.action_width)

    def call() -> None:
        preparation.inputs(pictures, state)
        preparation.actions(chunk, state)

    return call


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


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
    if options.engine.num_threads:
        torch.set_num_threads(options.engine.num_threads)
    report(f"loading {options.engine.checkpoint}", 0, 0)
    forget_peak(options.engine.device)
    before = resident_bytes(options.engine.device)
    policy, weights, _ = _load(options)
    loading = peak_bytes(options.engine.device) - before
    inputs = inputs_of(policy.model, options.engine.seed)
    own = OwnRow(policy.model)
    own.chunk(inputs)
    held = HeldBytes(weights, loading, resident_bytes(options.engine.device) - before)
    with ExitStack() as stack:
        rows, skipped, versions = _rows(options, policy, inputs, own, stack, report)
        if not rows:
            raise UserError(f"no row is left: {'; '.join(skipped.values())}")
        spent, chunks = measure_rows(options, rows, inputs, report)
    around = preparing(_prepare(policy, options.engine.seed), policy.model.device, options)
    if versions.get("lerobot", "").endswith(OTHER_WEIGHTS):
        del chunks["lerobot"]  # it cannot say the same
    return FlowBenchResult(
        summaries(options, policy.config.steps, policy.config.horizon, spent, chunks, around),
        _shapes(policy.config, options, own),
        held, skipped, versions,
    )  # fmt: skip


def measure_flow_passes(
    options: FlowBenchOptions, report: Report = silent
) -> tuple[PassesResult, PolicyConfig]:
    """Each captured function by itself, ``timed`` times, and the policy's config. UserError: a
    checkpoint that cannot be."""
    if options.engine.num_threads:
        torch.set_num_threads(options.engine.num_threads)
    report(f"loading {options.engine.checkpoint}", 0, 0)
    policy, _, chosen = _load(options)
    given = inputs_of(policy.model, options.engine.seed)
    found, rows = time_flow_passes(policy.model, given, options.timed, report, options.cpu_clock)
    how = "graphs" if policy.model.captured.captures else "no graphs"
    return PassesResult(found, rows, policy.config.horizon, how, tuple(chosen)), policy.config


def _family(options: FlowBenchOptions) -> Family[Any]:
    return family_of(source_of(options.engine.checkpoint))


def _load(options: FlowBenchOptions) -> tuple[LoadedPolicy, int, Sequence[KernelChoice]]:
    """The policy, the bytes of its weights, and what will be chosen for their products."""
    source, family = source_of(options.engine.checkpoint), _family(options)
    choice = LoadOptions(
        embodiment=options.engine.embodiment or None,
        state_in_prompt=options.engine.state_in_prompt or None,
    )
    if isinstance(source, Path):  # whose statistics scale the actions costs no time
        choice = family.choices(source, choice)[0]
    counted = Record(counting=True)
    with user_errors(ValueError):
        place = replace(placement(options.engine), record=counted)
        family.refuse_formats(source, place)
        family.refuse(choice)
        policy = family.load(source, choice, place, options.engine.seed)
    chosen = () if place.tuner is None else place.tuner.choices
    if _stored(source):
        return policy, sum(path.stat().st_size for path in weight_files(Path(source))), chosen
    return policy, family.weight_bytes(policy.config, place.dtype) - counted.saved, chosen


def _stored(source: Path | str) -> bool:
    """A folder that was quantized ahead of time."""
    return isinstance(source, Path) and read_origin(source) is not None


def as_floats(engine: EngineOptions) -> bool:
    """Whether the weights are floats, which is all that other people's programs have."""
    source = source_of(engine.checkpoint)
    return not engine.weights and family_of(source).group != TOKENS and not _stored(source)


def inputs_of(model: FlowPolicy[Any], seed: int) -> Inputs:
    """Random pixels and noise, a state of zeros, a prompt of a dozen tokens."""
    generator = torch.Generator().manual_seed(seed)
    given = model.example(WORDS, generator)
    noise = model.noise(generator)
    return Inputs(
        given.pixels, given.ids, given.state, None if noise is None else noise.to(model.device)
    )


def weights_of(engine: EngineOptions, config: FlowConfig) -> Weights:
    """The checkpoint's tensors once more, for who needs what the engine did not keep."""
    source = source_of(engine.checkpoint)
    if isinstance(source, Path):
        return FileWeights(source / WEIGHTS, expected_tensors(config))
    small = engine.checkpoint.endswith("-small")
    return PI0.drawn(config, engine.seed, torch.device("cpu" if small else engine.device))


def _rows(
    options: FlowBenchOptions,
    policy: LoadedPolicy,
    inputs: Inputs,
    own: OwnRow,
    stack: ExitStack,
    report: Report,
) -> tuple[dict[str, RivalRow], dict[str, str], dict[str, str]]:
    """The rows, why others are none, and the versions of references."""
    config, model = policy.config, policy.model
    rows: dict[str, RivalRow] = {"flow": own}
    skipped: dict[str, str] = {}
    versions: dict[str, str] = {}
    plain = as_floats(options.engine)
    if model.padded:
        rows["flow_eager"] = eager(model)
    elif "flow_eager" in options.rows:
        skipped["flow_eager"] = "flow_eager: without graphs it is the row flow"
    if "naive" in options.rows and not config.steps:
        skipped["naive"] = f"naive: {config.kind} has a single pass, which repeats nothing"
    elif "naive" in options.rows:
        rows["naive"] = NaiveRow(model)
        if isinstance(config, FlowConfig) and plain:
            rows["naive"] = NaiveLerobotRow(model, weights_of(options.engine, config))
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
        theirs = of_weights(config, weights_of(options.engine, config), names, model.dtype)
        rows["transformers"] = TransformersRow(config, theirs, model.device)
        versions["transformers"] = transformers.__version__
    if "lerobot" in options.rows and not isinstance(config, FlowConfig):
        skipped["lerobot"] = f"lerobot: its own {config.kind} is not measured here"
    elif "lerobot" in options.rows and options.lerobot is None:
        skipped["lerobot"] = "lerobot: run `vla-ros lerobot setup`, or give --lerobot-python"
    elif "lerobot" in options.rows and options.lerobot is not None:
        report("loading LeRobot", 0, 0)
        asked = {
            "config": flow_config_json(config),
            "dtype": options.engine.dtype,
            "device": options.engine.device,
            "threads": options.engine.num_threads,
            "weights": _file(options, config, stack),
        }
        row = stack.enter_context(LerobotRow(options.lerobot, asked, inputs))
        rows["lerobot"], versions["lerobot"] = row, row.version
        if not asked["weights"]:
            versions["lerobot"] += OTHER_WEIGHTS
    return {n: rows[n] for n in ROWS if n in rows and n in options.rows}, skipped, versions


def _file(options: FlowBenchOptions, config: FlowConfig, stack: ExitStack) -> str:
    """A file with the checkpoint's weights for LeRobot; "" where that would be a large copy."""
    source = source_of(options.engine.checkpoint)
    if isinstance(source, Path):
        return str(source.absolute() / WEIGHTS)
    shapes = expected_tensors(config).must
    if sum(int(torch.Size(s).numel()) for s in shapes.values()) > SMALL:
        return ""
    drawn = weights_of(options.engine, config)
    folder = Path(stack.enter_context(_scratch()))
    save_weights(folder / WEIGHTS, {n: drawn.take(n) for n in shapes})
    return str(folder / WEIGHTS)


def _scratch() -> Any:
    import tempfile

    return tempfile.TemporaryDirectory()


def _shapes(config: PolicyConfig, options: FlowBenchOptions, own: OwnRow) -> dict[str, int]:
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


# Policies that say a chunk in one pass (OpenVLA-OFT, BitVLA): vision, the pass, the head.
#
# ``naive`` is what a plain program has of ternary weights: matrices of floats, made once, times
# inputs that are rounded to int8 and made floats again, which is the authors' own arithmetic.


SINGLE_PASS_ROWS = ("parallel", "naive")


class SinglePassRow:
    """An engine's model and its head, on pixels of the towers' size."""

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine.decoder.decoding, Parallel)
        engine.reset(INSTRUCTION)
        self.engine, self.decoding, self.rows = engine, engine.decoder.decoding, 0
        tokenizer = engine.policy.tokenizer
        self._prompt = engine.model.prompt(tokenizer(INSTRUCTION), tokenizer.front)

    def chunk(self, inputs: Inputs) -> tuple[torch.Tensor, ChunkTime]:
        model, watch = self.engine.model, Stopwatch(self.engine.model.device)
        pixels = (inputs.pixels,) * len(model.config.towers)
        patches = watch.time("vision", lambda: model.project(model.features(pixels)))
        states = watch.time("prefill", lambda: self._states(patches, inputs.state))
        with torch.inference_mode():
            actions = watch.time("decode", lambda: self.decoding.read(states))
        return actions.float().cpu(), watch.spent

    def _states(self, patches: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        clock = SystemClock()
        seen = Observation(0, 0, 0, np.zeros((1, 1, 3), np.uint8), proprio=state.double().numpy())
        request = Request(
            0, self.engine.model.sequence(self._prompt, patches),
            StageTimer(Timeline(0), clock, patches.device), observation=seen,
            front=len(self._prompt.first),
        )  # fmt: skip
        x = self.decoding.sequence(request)
        self.rows = len(x)
        layout = PackLayout(rows=tuple(self.decoding.rows(len(x))), prefill=len(x), causal=False)
        return self.decoding.runner.hidden(layout, x)


def run_single_pass(options: FlowBenchOptions, report: Report = silent) -> FlowBenchResult:
    """Measure the rows. UserError: a checkpoint or rows that cannot be."""
    unknown = sorted(set(options.rows) - set(SINGLE_PASS_ROWS))
    if unknown:
        raise UserError(
            f"rows {', '.join(unknown)} are unknown: there are {', '.join(SINGLE_PASS_ROWS)}"
        )
    if options.engine.num_threads:
        torch.set_num_threads(options.engine.num_threads)
    report(f"loading {options.engine.checkpoint}", 0, 0)
    forget_peak(options.engine.device)
    before = resident_bytes(options.engine.device)
    own = SinglePassRow(_engine(options))
    loading = peak_bytes(options.engine.device) - before
    inputs = _inputs(own.engine, options.engine.seed)
    own.chunk(inputs)
    held = HeldBytes(
        own.engine.model.nbytes, loading, resident_bytes(options.engine.device) - before
    )
    rows: dict[str, RivalRow] = {"parallel": own}
    skipped: dict[str, str] = {}
    if "naive" in options.rows and own.engine.model.config.text.ternary:
        report("making plain weights", 0, 0)
        rows["naive"] = SinglePassRow(_plain(_engine(options)))
    elif "naive" in options.rows:
        skipped["naive"] = "naive: these weights are floats as they are"
    rows = {name: row for name, row in rows.items() if name in options.rows}
    if not rows:
        raise UserError(f"no row is left: {'; '.join(skipped.values())}")
    spent, chunks = measure_rows(options, rows, inputs, report)
    image = np.zeros((*FRAME, 3), np.uint8)
    seen = Observation(0, 0, 0, image, image)
    around = preparing(lambda: own.engine.robot.prepare(seen), own.engine.model.device, options)
    config = own.engine.model.config
    return FlowBenchResult(
        summaries(options, 0, config.chunk, spent, chunks, around),
        {
            "parameters": own.engine.model.parameters, "vision_tokens": config.towers[0].patches,
            "prompt_tokens": own.rows, "action_tokens": config.chunk, "steps": 0,
            "views": config.images, "warm_up": options.warm_up, "timed": options.timed,
        },
        held, skipped, {},
    )  # fmt: skip


def _engine(options: FlowBenchOptions) -> Engine:
    with user_errors(ValueError):
        return load_engine(replace(options.engine, decoding="parallel"))


def _inputs(engine: Engine, seed: int) -> Inputs:
    """Random pixels, a state of zeros."""
    model, random = engine.model, torch.Generator().manual_seed(seed)
    side = model.config.image_size
    pixels = torch.randn((model.config.images, 3, side, side), generator=random)
    state = torch.zeros(model.config.proprio_dim)
    return Inputs(pixels.to(model.device, model.dtype), torch.empty(0, dtype=torch.int64), state,
                  None)  # fmt: skip


def _plain(engine: Engine) -> Engine:
    """The same with floats in place of two bits."""
    decoder, dtype = engine.model.decoder, engine.model.dtype
    assert isinstance(decoder, BitNetDecoder)
    for number, layer in enumerate(decoder.layers):
        decoder.layers[number] = replace(
            layer,
            **{n: _floats(getattr(layer, n), dtype) for n in ("qkv", "out", "gate_up", "down")},
        )
    for module in engine.model.vision.modules():
        if isinstance(module, LowBitLinear) and isinstance(module.weight, Ternary):
            module.weight = _floats(module.weight, dtype)
    return engine


def _floats(matrix: LowBit, dtype: torch.dtype) -> Any:
    assert isinstance(matrix, Ternary)
    whole, width = matrix.whole().to(dtype), matrix.width

    def product(
        rows: torch.Tensor,
        factor: torch.Tensor,
        packed: torch.Tensor,
        scale: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        return F.linear((rows[:, :width].float() * factor[:, None]).to(dtype), whole)

    made: Product = product
    return replace(matrix, product=made)
