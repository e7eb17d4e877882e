"""Every pass of a policy by itself: how long the device takes for it, and what is launched.

On CUDA a pass lies between two events, so it is the device's time, gaps within the pass included;
on a CPU it is the CPU's time or the steady clock's, as for every other row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vla_ros.core.console import Report
from vla_ros.core.errors import UserError, user_errors
from vla_ros.core.types import Timeline
from vla_ros.engine.engine import Engine
from vla_ros.engine.families.openvla import policy_of
from vla_ros.engine.families.registry import group_of
from vla_ros.engine.layers.devices import on_device, synchronize
from vla_ros.engine.layers.pack import PackLayout, TailToken, chain, prefill_layout
from vla_ros.engine.layers.tuner import KernelChoice
from vla_ros.engine.models.base import FlowPolicy, PolicyConfig, Prefix
from vla_ros.engine.options import TOKENS, EngineOptions
from vla_ros_lab.bench.flow import inputs_of, load_flow
from vla_ros_lab.bench.measure import (
    CLOCK,
    Figures,
    begin,
    drifting_frames,
    observe,
    silent,
)
from vla_ros_lab.bench.options import BenchOptions
from vla_ros_lab.bench.suite import open_for
from vla_ros_lab.roofline import devices, roofline
from vla_ros_lab.roofline.bench_file import DTYPES
from vla_ros_lab.roofline.shapes import flow_shape_of, load_model
from vla_ros_lab.roofline.work import Precision, parse_precision, precision_of_weights

#: the passes, in the order of a frame; those of ``vla_ros_lab.roofline.roofline`` by the same names
PREPROCESS, VISION, PROJECTOR, PREFILL = "preprocess", "vision", "projector", "prefill"
VERIFY, DECODE, REVERIFY, PACKED = "prefill + draft", "decode", "decode + draft", "packed pass"
STEPS = "all steps"  # of a flow policy's solver
WARM_UP = 5
Call = tuple[str, int, Callable[[], Any]]  # a pass: its name, new tokens, and how it is run
VIEWS = {"view", "_unsafe_view", "t", "transpose", "slice", "select", "unsqueeze", "expand",
         "squeeze", "permute", "detach", "alias", "split", "split_with_sizes", "unbind",
         "as_strided", "chunk", "reshape", "unflatten"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PassTime:
    """One pass: its new ``tokens``, or images; milliseconds, median and of the fastest tenth;
    ``operators`` that the host asks for, views left out (a replayed graph asks for none);
    ``kernels`` that the device runs, None where no GPU counts them."""

    tokens: int
    median_ms: float
    best_ms: float
    operators: int
    kernels: int | None


@dataclass(frozen=True, slots=True)
class PassesResult:
    """Passes by name, behind a prompt of so many tokens, of actions of so many (of a chunk, where
    there are no tokens); ``products``: which kernels were taken, none where all are torch's;
    ``config``: of a policy with an action head."""

    passes: dict[str, PassTime]
    prompt: int
    tokens: int
    attention: str
    products: tuple[KernelChoice, ...]
    config: PolicyConfig | None = None


def measure_passes(options: BenchOptions, report: Report = silent) -> PassesResult:
    """Each pass by itself, ``timed`` times. UserError: a checkpoint that cannot be, or has none."""
    begin(options, report)
    if group_of(options.engine.checkpoint) != TOKENS:
        policy, _, chosen = load_flow(options.engine)
        calls, config = flow_calls(policy.model, options), policy.config
        found = _timed(calls, policy.model.device, options, report)
        how = "graphs" if policy.model.captured.captures else "no graphs"
        prompt = found[PREFILL].tokens
        return PassesResult(found, prompt, config.horizon, how, tuple(chosen), config)
    with user_errors(ValueError):
        checkpoint = open_for(options.engine.checkpoint, options)
        engine = Engine(policy_of(checkpoint, options.engine), options.engine)
        if engine.model.config.parallel:
            raise UserError("passes are those of token policies: this is an OFT checkpoint")
        found = _timed(token_calls(engine, options), engine.model.device, options, report)
    model = engine.model
    chosen = () if model.tuner is None else model.tuner.choices
    prompt = found[PREFILL].tokens
    return PassesResult(found, prompt, engine.info.max_tokens, model.attention.name, tuple(chosen))


def this_machine(options: EngineOptions) -> devices.Device:
    """What this machine reaches, measured now."""
    device = torch.device(options.device)
    with on_device(device):
        return devices.measure(1 << 29, threads=options.num_threads, gpu=device.type == "cuda")


def beside_roofline(
    result: PassesResult, options: EngineOptions, machine: devices.Device
) -> dict[str, Figures]:
    """Figures of every pass; ``efficiency`` is the share of the least time there can be."""
    with user_errors(ValueError):
        stages = _stages(result, options, machine)
    rows = {}
    for name, time_ in result.passes.items():
        stage = stages.get(name)
        rows[name] = {
            **asdict(time_),
            "roofline_ms": None if stage is None else stage.ms,
            "bound": None if stage is None else stage.bound,
            "efficiency": None if stage is None else stage.ms / time_.median_ms,
        }
    return rows


def _stages(
    result: PassesResult, options: EngineOptions, machine: devices.Device
) -> dict[str, roofline.StageTime]:
    if result.config is None:
        shape = load_model(options.checkpoint).with_prompt(result.prompt)
        shape = replace(shape, action_tokens=result.tokens)
        roof = roofline.Roofline(shape, machine, _precision(options))
        return {
            VISION: roof.vision(),
            PROJECTOR: roof.projector(),
            PREFILL: roof.prefill(),
            VERIFY: roof.prefill(result.tokens - 1),
            DECODE: roof.decode(),
            REVERIFY: roof.decode(result.tokens),
            PACKED: roof.packed(),
        }
    shape = flow_shape_of(result.config, options.checkpoint)
    if shape.kind != "flow" or shape.expert is None:
        return {}
    shape = shape.with_prompt(result.prompt)
    roof = roofline.Roofline(shape, machine, _precision(options))
    steps = roofline.repeat(roofline.expert_step(shape), result.config.steps)
    return {
        VISION: roof.time("vision", roofline.vision(shape) + roofline.projector(shape)),
        PREFILL: roof.prefix(),
        STEPS: roof.time(STEPS, roofline.expert_once(shape) + steps),
    }


def _precision(options: EngineOptions) -> Precision:
    """The formats of the weights, or their type."""
    if options.weights:
        return precision_of_weights(options.weights)
    return parse_precision(DTYPES[options.dtype])


def token_calls(engine: Engine, options: BenchOptions) -> Iterator[Call]:
    """Passes of a token policy, in the order of a frame."""
    engine.reset(options.instruction)
    (image,) = drifting_frames(1)
    frame, model, count = observe(0, image), engine.model, engine.info.max_tokens
    prompt = engine.encode(frame, Timeline(0), CLOCK).prompt
    length = len(prompt)
    yield PREPROCESS, model.config.images, lambda: engine.robot.prepare(frame)
    pixels = engine.robot.prepare(frame)
    features = model.features(pixels)
    yield VISION, model.config.images, lambda: model.features(pixels)
    yield PROJECTOR, len(features), lambda: model.project(features)
    runner, many = model.runner(1, length + 2 * count), model.runner(count, length + count)
    runner.fit(length + 2 * count)
    many.fit(length + count)
    tokens = torch.full((count,), model.actions.first, device=model.device)
    total = length + count - 1
    yield PREFILL, length, partial(runner.run, prefill_layout(length, (length - 1,)), prompt, None)
    if count > 1:
        behind = prefill_layout(total, tuple(range(length - 1, total)))
        yield VERIFY, total, partial(runner.run, behind, prompt, tokens[1:])
    alone = PackLayout(rows=(0,), tail=chain(0, length, 1))
    yield DECODE, 1, partial(runner.run, alone, None, tokens[:1])
    if count > 1:
        redrafted = PackLayout(rows=tuple(range(count)), tail=chain(0, length, count))
        yield REVERIFY, count, partial(runner.run, redrafted, None, tokens)
        packed = PackLayout(
            rows=tuple(range(length - 1, length + count - 1)),
            prefill=length,
            tail=tuple(TailToken(1 + i, length + i) for i in range(count - 1)),
        )
        yield PACKED, total, partial(many.run, packed, prompt, tokens[1:])


def flow_calls(model: FlowPolicy[Any], options: BenchOptions) -> Iterator[Call]:
    """Captured functions of a policy with an action head: images, prefix and all steps of the
    solver (or the head's single pass)."""
    inputs = inputs_of(model, options.engine.seed)
    pixels, ids = inputs.pixels.to(model.device, model.dtype), inputs.ids.to(model.device)
    features = model.image_features(pixels).clone()  # the next graph may use its memory
    yield VISION, len(pixels), partial(model.image_features, pixels)

    def prefill() -> Prefix:
        return model.prefill(features, ids, inputs.state)

    yield PREFILL, int(prefill().mask.sum()), prefill
    prefix = prefill()
    yield STEPS, model.horizon, partial(model.sample_actions, prefix, None, inputs.noise)


def _timed(
    calls: Iterator[Call], device: torch.device, options: BenchOptions, report: Report
) -> dict[str, PassTime]:
    """Times of the passes by name, each as soon as it is there."""
    found = {}
    with on_device(device):
        for number, (name, tokens, call) in enumerate(calls):
            report(name, number, 0)
            spent = sorted(_spent(call, device, options.timed, options.cpu_clock))
            best = median(spent[: max(len(spent) // 10, 1)])
            count = operators(call), kernels(call, device)
            found[name] = PassTime(tokens, median(spent), best, *count)
    return found


def _spent(
    call: Callable[[], Any], device: torch.device, repeats: int, cpu_clock: bool
) -> list[float]:
    """Milliseconds of each of so many calls."""
    for _ in range(WARM_UP):
        call()
    if device.type != "cuda":
        out, clock = [], time.process_time if cpu_clock else time.perf_counter
        for _ in range(repeats):
            began = clock()
            call()
            out.append((clock() - began) * 1e3)
        return out
    synchronize(device)
    marks = [[torch.cuda.Event(enable_timing=True) for _ in "ab"] for _ in range(repeats)]
    for before, after in marks:
        before.record()
        call()
        after.record()
    synchronize(device)
    return [before.elapsed_time(after) for before, after in marks]


class _Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
        name = function.overloadpacket.__name__
        self.count += name not in VIEWS
        return function(*args, **(kwargs or {}))


def operators(call: Callable[[], Any]) -> int:
    """How many operators the host asks for, views left out."""
    with _Count() as counted:
        call()
    return counted.count


def kernels(call: Callable[[], Any], device: torch.device) -> int | None:
    """How many kernels and copies run on a GPU, within graphs too."""
    if device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        call()
        synchronize(device)
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profiled.events())
