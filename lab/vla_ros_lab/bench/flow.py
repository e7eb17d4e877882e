"""Policies that make a chunk by an action head: flow policies, and those of a single pass.

Each is measured by phases, beside references on the same inputs: a plain program of the same
weights, transformers, LeRobot.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
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
from vla_ros.engine.families.base import LoadedPolicy, LoadOptions
from vla_ros.engine.families.lerobot import PI0, WEIGHTS, expected_tensors, save_weights
from vla_ros.engine.families.registry import family_of, group_of, source_of
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
from vla_ros.engine.models.base import FlowPolicy, GraphedFunctions, Prefix
from vla_ros.engine.models.language.bitnet import BitNetDecoder
from vla_ros.engine.models.pi0 import EXPERT, NORMS
from vla_ros.engine.models.pi0 import TEXT as PI_TEXT
from vla_ros.engine.models.smolvla import TEXT as SMOLVLA_TEXT
from vla_ros.engine.models.transformer import layer_table, read_layer
from vla_ros.engine.models.vlm_with_expert import VLMWithExpert, time_table
from vla_ros.engine.options import TOKENS, EngineOptions
from vla_ros_lab.bench.flow_rivals import (
    Inputs,
    LerobotRow,
    RivalRow,
    TransformersRow,
    transformers_pi0,
)
from vla_ros_lab.bench.measure import (
    BenchResult,
    Figures,
    PhaseTimes,
    Row,
    Stopwatch,
    as_floats,
    begin,
    run_rows,
    silent,
)
from vla_ros_lab.bench.memory import HeldBytes, forget_peak, peak_bytes, resident_bytes
from vla_ros_lab.bench.options import INSTRUCTION, BenchOptions

#: ours (one graph on CUDA), ours without graphs, and what to compare with
ROWS = ("flow", "flow_eager", "naive", "transformers", "lerobot")
#: ``naive`` is a plain program's: matrices of floats, made once, times inputs that are rounded to
#: int8 and made floats again, which is the arithmetic of BitVLA's authors
SINGLE_PASS_ROWS = ("parallel", "naive")
WORDS = 12  # of the prompt, in tokens
OTHER_WEIGHTS = ", random weights of its own"
SMALL = 100_000_000  # parameters up to which LeRobot gets the same random weights, in a file
FRAME = (480, 640)  # pixels of a camera's image


def run_flow_bench(options: BenchOptions, report: Report = silent) -> BenchResult:
    """Measure the rows. UserError: a checkpoint or rows that cannot be."""
    device = options.engine.device
    kind: type[FlowSubject] | type[SinglePassSubject] = FlowSubject
    if group_of(options.engine.checkpoint) == TOKENS:
        kind = SinglePassSubject
    options.refuse_unknown(kind.known)
    begin(options, report)
    forget_peak(device)
    before = resident_bytes(device)
    subject = kind(options)
    loading = peak_bytes(device) - before
    subject.own.chunk(subject.inputs)
    memory = HeldBytes(subject.weights, loading, resident_bytes(device) - before)
    rows: dict[str, Row] = {}
    skipped: dict[str, str] = {}
    versions: dict[str, str] = {}
    with ExitStack() as stack:
        for name in kind.known:
            if options.rows and name not in options.rows:
                continue
            found = subject.row(name, stack, report)
            if isinstance(found, str):
                skipped[name] = f"{name}: {found}"
                continue
            rows[name] = _row(found, subject.inputs)
            if found.version:
                versions[name] = found.version
        if not rows:
            raise UserError(f"no row is left: {'; '.join(skipped.values())}")
        run_rows(rows, options.warm_up, options.timed, report)
    around = _around(subject.preparing(), options)
    counts = {"warm_up": options.warm_up, "timed": options.timed}
    notes = [str(memory), *(f"{name} {version}" for name, version in versions.items())]
    return BenchResult(
        {name: _figures(name, rows, subject, versions, around, options) for name in rows},
        {**subject.shapes(), **counts},
        {"memory": memory.as_json(), "skipped": skipped, "versions": versions},
        (*notes, *(f"left out: {why}" for why in skipped.values())),
    )


def _row(rival: RivalRow, inputs: Inputs) -> Row:
    return Row(lambda number: rival.chunk(inputs))


def _figures(
    name: str, rows: dict[str, Row], subject: FlowSubject | SinglePassSubject,
    versions: dict[str, str], around: float, options: BenchOptions,
) -> Figures:  # fmt: skip
    """A row's figures: ms a chunk, from prepared inputs on. ``latency_ms``: from the frame to
    actions in units, ``around`` seconds more. ``stages_ms`` are medians by phase, ``step_ms`` one
    solver step. ``speedup`` over each other row; ``difference``: the largest from the naive row's
    chunk."""
    cpu, row = options.cpu_clock, rows[name]
    own = row.figures(cpu)
    stages = {
        phase: statistics.median((t.cpu if cpu else t.wall)[phase] for t in row.times) * 1e3
        for phase in ("vision", "prefill", "decode")
    }
    difference = None
    if name != "naive" and "naive" in rows and not versions.get(name, "").endswith(OTHER_WEIGHTS):
        difference = float((row.answers[-1] - rows["naive"].answers[-1]).abs().max())
    medians = {
        other: one.figures(cpu)["median_ms"] for other, one in rows.items() if one is not row
    }
    return {
        **own,
        "latency_ms": own["median_ms"] + around * 1e3,
        "stages_ms": stages,
        "step_ms": stages["decode"] / max(subject.steps, 1),
        "passes_per_action": float(1 + subject.steps),
        "actions_per_call": subject.horizon,
        "speedup": {other: median / own["median_ms"] for other, median in medians.items()},
        "difference": difference,
        "lossless": True,
    }


def _around(prepare: Callable[[], object], options: BenchOptions) -> float:
    """Median seconds of what stands around the network, by the clock of the rows."""
    found = []
    for _ in range(options.warm_up + options.timed):
        watch = Stopwatch(torch.device(options.engine.device))
        watch.time("prepare", prepare)
        found.append(watch.spent.total(options.cpu_clock))
    return statistics.median(found[options.warm_up :])


class FlowSubject:
    """A flow policy that is measured; ``weights``: their bytes."""

    known = ROWS

    def __init__(self, options: BenchOptions) -> None:
        self._options = options
        self.policy, self.weights, _ = load_flow(options.engine)
        self.inputs = inputs_of(self.policy.model, options.engine.seed)
        self.own = OwnRow(self.policy.model)
        self.steps, self.horizon = self.policy.config.steps, self.policy.config.horizon

    def preparing(self) -> Callable[[], object]:
        """A call of what stands around the network: a frame to inputs, and a chunk to units."""
        config, preparation = self.policy.config, self.policy.preparation()
        preparation.instruct(INSTRUCTION)
        random = np.random.default_rng(self._options.engine.seed)
        images = [random.integers(0, 256, (*FRAME, 3), dtype=np.uint8) for _ in config.cameras]
        state = torch.zeros(config.state_dim)
        chunk = torch.zeros(config.horizon, config.action_width)

        def call() -> None:
            preparation.inputs(images, state)
            preparation.actions(chunk, state)

        return call

    def shapes(self) -> dict[str, int]:
        """Shapes of the chunk; after one."""
        config = self.policy.config
        views = len(config.cameras)
        family = family_of(source_of(self._options.engine.checkpoint))
        return {
            "parameters": family.parameters(config),
            "vision_tokens": self.own.image_rows // views,
            "prompt_tokens": self.own.rows,
            "action_tokens": config.horizon,
            "steps": config.steps,
            "views": views,
        }

    def row(self, name: str, stack: ExitStack, report: Report) -> RivalRow | str:
        """The row of that name, or why there is none."""
        config, model, engine = self.policy.config, self.policy.model, self._options.engine
        if name == "flow":
            return self.own
        if name == "flow_eager":
            return eager(model) if model.padded else "without graphs it is the row flow"
        if name == "naive":
            if not config.steps:
                return f"{config.kind} has a single pass, which repeats nothing"
            if isinstance(config, FlowConfig) and as_floats(engine):
                return NaiveLerobotRow(model, weights_of(engine, config))
            return NaiveRow(model)
        if not as_floats(engine):
            return "it has these weights as floats alone"
        if name == "lerobot":
            return self._lerobot(stack, report)
        if config.kind != "pi0":
            return f"it has no {config.kind} of its own"
        report("loading transformers", 0, 0)
        names, take = list(expected_tensors(config).must), weights_of(engine, config).take
        return TransformersRow(config, transformers_pi0(config, take, names, model.dtype),
                               model.device)  # fmt: skip

    def _lerobot(self, stack: ExitStack, report: Report) -> RivalRow | str:
        config, engine = self.policy.config, self._options.engine
        if not isinstance(config, FlowConfig):
            return f"its own {config.kind} is not measured here"
        if not self._options.lerobot:
            return "run `vla-ros lerobot setup`, or give --lerobot-python"
        report("loading LeRobot", 0, 0)
        question = {
            "config": flow_config_json(config),
            "dtype": engine.dtype,
            "device": engine.device,
            "threads": engine.num_threads,
            "weights": _file(engine, config, stack),
        }
        row = stack.enter_context(LerobotRow(self._options.lerobot, question, self.inputs))
        row.version += "" if question["weights"] else OTHER_WEIGHTS
        return row


def load_flow(engine: EngineOptions) -> tuple[LoadedPolicy, int, Sequence[KernelChoice]]:
    """The policy, the bytes of its weights, and what will be chosen for their products. UserError:
    a checkpoint that cannot be."""
    source = source_of(engine.checkpoint)
    family = family_of(source)
    choice = LoadOptions(
        embodiment=engine.embodiment or None, state_in_prompt=engine.state_in_prompt or None
    )
    if isinstance(source, Path):  # whose statistics scale the actions costs no time
        choice = family.choices(source, choice)[0]
    counted = Record(counting=True)
    with user_errors(ValueError):
        placed = replace(placement(engine), record=counted)
        family.refuse_formats(source, placed)
        family.refuse(choice)
        policy = family.load(source, choice, placed, engine.seed)
    chosen = () if placed.tuner is None else placed.tuner.choices
    if isinstance(source, Path) and read_origin(source) is not None:  # quantized ahead of time
        return policy, sum(path.stat().st_size for path in weight_files(source)), chosen
    return policy, family.weight_bytes(policy.config, placed.dtype) - counted.saved, chosen


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


def _file(engine: EngineOptions, config: FlowConfig, stack: ExitStack) -> str:
    """A file with the checkpoint's weights for LeRobot; "" where that would be a large copy."""
    source = source_of(engine.checkpoint)
    if isinstance(source, Path):
        return str(source.absolute() / WEIGHTS)
    shapes = expected_tensors(config).must
    if sum(int(torch.Size(s).numel()) for s in shapes.values()) > SMALL:
        return ""
    drawn = weights_of(engine, config)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    save_weights(folder / WEIGHTS, {n: drawn.take(n) for n in shapes})
    return str(folder / WEIGHTS)


class OwnRow:
    """The engine's own model: the prefix once, all steps one function (one graph, where there are
    any)."""

    version = ""

    def __init__(self, model: FlowPolicy[Any]) -> None:
        self.model = model
        self.rows = 0  # of the newest prefix, without padding
        self.image_rows = 0

    def chunk(self, inputs: Inputs) -> tuple[torch.Tensor, PhaseTimes]:
        model, watch = self.model, Stopwatch(self.model.device)
        features = watch.time("vision", lambda: model.image_features(inputs.pixels))
        self.image_rows = len(features)
        prefix = watch.time("prefill", lambda: model.prefill(features, inputs.ids, inputs.state))
        self.rows = int(prefix.mask.sum())
        out = watch.time("decode", lambda: self._integrate(prefix, inputs.noise))
        return out.float().cpu(), watch.spent

    def _integrate(self, prefix: Prefix, noise: torch.Tensor | None) -> torch.Tensor:
        return self.model.sample_actions(prefix, None, noise)


def eager(model: FlowPolicy[Any]) -> OwnRow:
    """The engine's model without graphs, over the same weights and buffers."""
    twin = copy(model)
    twin.captured = GraphedFunctions(None)
    return OwnRow(twin)


class NaiveRow(OwnRow):
    """A plain program of the same arithmetic: no graphs; in every step all that is the same in
    every step, and caches that are copied before they are written to."""

    def __init__(self, model: FlowPolicy[Any]) -> None:
        super().__init__(eager(model).model)

    def _integrate(self, prefix: Prefix, noise: torch.Tensor | None) -> torch.Tensor:
        assert noise is not None, "a solver starts from noise"
        x, solver = noise.to(self.model.device, torch.float32), self.model.solver
        for step, time in enumerate(solver.times):
            _ = [t.clone() for t in (*prefix.keys, *prefix.values)]
            self._repeat(time)
            x = x + solver.dt * self.model.denoise_step(prefix, x, step)
        return x[: self.model.horizon]  # a head may make more actions than the robot takes

    def _repeat(self, time: float) -> None:
        """Do what else a plain program does again in a step."""


class NaiveLerobotRow(NaiveRow):
    """A plain program of pi0, pi0.5 or SmolVLA: also the whole last layer of the prefix, and of
    pi0.5 scales and shifts in every step, beside pi0's state and SmolVLA's cross keys and values.

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
    """Scales, shifts and gates of one step of pi0.5, as a plain program makes them of the time."""

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


class SinglePassSubject:
    """OpenVLA-OFT or BitVLA, which make a chunk in one pass, as :class:`FlowSubject`."""

    known = SINGLE_PASS_ROWS
    steps = 0

    def __init__(self, options: BenchOptions) -> None:
        self._options = options
        self.own = SinglePassRow(self._engine())
        model, seed = self.own.engine.model, options.engine.seed
        self.weights, self.horizon = model.nbytes, model.config.chunk
        side, random = model.config.image_size, torch.Generator().manual_seed(seed)
        pixels = torch.randn((model.config.images, 3, side, side), generator=random)
        state, ids = torch.zeros(model.config.proprio_dim), torch.empty(0, dtype=torch.int64)
        self.inputs = Inputs(pixels.to(model.device, model.dtype), ids, state, None)

    def _engine(self) -> Engine:
        with user_errors(ValueError):
            return load_engine(replace(self._options.engine, decoding="parallel"))

    def preparing(self) -> Callable[[], object]:
        image = np.zeros((*FRAME, 3), np.uint8)
        frame = Observation(0, 0, 0, image, image)
        return lambda: self.own.engine.robot.prepare(frame)

    def shapes(self) -> dict[str, int]:
        model = self.own.engine.model
        return {
            "parameters": model.parameters,
            "vision_tokens": model.config.towers[0].patches,
            "prompt_tokens": self.own.rows,
            "action_tokens": model.config.chunk,
            "steps": 0,
            "views": model.config.images,
        }

    def row(self, name: str, stack: ExitStack, report: Report) -> RivalRow | str:
        if name == "parallel":
            return self.own
        if not self.own.engine.model.config.text.ternary:
            return "these weights are floats as they are"
        report("making plain weights", 0, 0)
        return SinglePassRow(_plain(self._engine()))


class SinglePassRow:
    """An engine's model and its head, on pixels of the towers' size."""

    version = ""

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine.decoder.decoding, Parallel)
        engine.reset(INSTRUCTION)
        self.engine, self.decoding, self.rows = engine, engine.decoder.decoding, 0
        tokenizer = engine.policy.tokenizer
        self._prompt = engine.model.prompt(tokenizer(INSTRUCTION), tokenizer.front)

    def chunk(self, inputs: Inputs) -> tuple[torch.Tensor, PhaseTimes]:
        model, watch = self.engine.model, Stopwatch(self.engine.model.device)
        pixels = (inputs.pixels,) * len(model.config.towers)
        patches = watch.time("vision", lambda: model.project(model.features(pixels)))
        states = watch.time("prefill", lambda: self._states(patches, inputs.state))
        with torch.inference_mode():
            actions = watch.time("decode", lambda: self.decoding.read(states))
        return actions.float().cpu(), watch.spent

    def _states(self, patches: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        nothing = np.zeros((1, 1, 3), np.uint8)
        observation = Observation(0, 0, 0, nothing, proprio=state.double().numpy())
        request = Request(
            0, self.engine.model.sequence(self._prompt, patches),
            StageTimer(Timeline(0), SystemClock(), patches.device), observation=observation,
            front=len(self._prompt.first),
        )  # fmt: skip
        x = self.decoding.sequence(request)
        self.rows = len(x)
        layout = PackLayout(rows=tuple(self.decoding.rows(len(x))), prefill=len(x), causal=False)
        return self.decoding.runner.hidden(layout, x)


def _plain(engine: Engine) -> Engine:
    """The engine with floats in place of two bits."""
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
