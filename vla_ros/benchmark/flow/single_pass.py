"""Policies that say a chunk in one pass (OpenVLA-OFT, BitVLA): vision, the pass, the head.

``naive`` is what a plain program has of ternary weights: matrices of floats, made once, times
inputs that are rounded to int8 and made floats again, which is the authors' own arithmetic.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from vla_ros.benchmark.flow.measure import (
    FlowBenchOptions,
    FlowBenchResult,
    measure_rows,
    summaries,
)
from vla_ros.benchmark.flow.memory import Held, forget_peak, peak_bytes, resident_bytes
from vla_ros.benchmark.flow.row import Inputs, Row, Spent, Stopwatch
from vla_ros.benchmark.measure import Report, silent
from vla_ros.benchmark.suite import INSTRUCTION
from vla_ros.core import Observation, Timeline
from vla_ros.engine.decoders.bitnet import BitNetDecoder
from vla_ros.engine.engine import Engine, load_engine
from vla_ros.engine.options import EngineOptions
from vla_ros.engine.packed.pack import PackLayout
from vla_ros.engine.quantised.matrices import Quantised, QuantisedLinear
from vla_ros.engine.quantised.ternary.matrix import Ternary
from vla_ros.engine.quantised.ternary.products import Product
from vla_ros.engine.request import Request
from vla_ros.engine.schedules.parallel import Parallel
from vla_ros.engine.stages import StageTimer
from vla_ros.errors import UserError
from vla_ros.timing import SystemClock

ROWS = ("parallel", "naive")


class SinglePassRow:
    """An engine's model and its head, on pixels of the towers' size."""

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine.schedule, Parallel)
        engine.reset(INSTRUCTION)
        self.engine, self.schedule, self.rows = engine, engine.schedule, 0
        self._prompt = engine.model.prompt(engine.tokenizer(INSTRUCTION), engine.tokenizer.front)

    def chunk(self, inputs: Inputs) -> tuple[torch.Tensor, Spent]:
        model, watch = self.engine.model, Stopwatch(self.engine.model.device)
        pixels = (inputs.pixels,) * len(model.config.towers)
        patches = watch.time("vision", lambda: model.project(model.features(pixels)))
        states = watch.time("prefill", lambda: self._states(patches, inputs.state))
        with torch.inference_mode():
            actions = watch.time("decode", lambda: self.schedule.read(states))
        return actions.float().cpu(), watch.spent

    def _states(self, patches: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        clock = SystemClock()
        seen = Observation(0, 0, 0, np.zeros((1, 1, 3), np.uint8), proprio=state.double().numpy())
        request = Request(
            0, self.engine.model.sequence(self._prompt, patches),
            StageTimer(Timeline(0), clock, patches.device), observation=seen,
            front=len(self._prompt.first),
        )  # fmt: skip
        x = self.schedule.sequence(request)
        self.rows = len(x)
        layout = PackLayout(rows=tuple(self.schedule.rows(len(x))), prefill=len(x), causal=False)
        return self.schedule.lane.hidden(layout, x)


def run_single_pass(options: FlowBenchOptions, report: Report = silent) -> FlowBenchResult:
    """Measure the rows. UserError: a checkpoint or rows that cannot be."""
    unknown = sorted(set(options.rows) - set(ROWS))
    if unknown:
        raise UserError(f"rows {', '.join(unknown)} are unknown: there are {', '.join(ROWS)}")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    report(f"loading {options.checkpoint}", 0, 0)
    forget_peak()
    before = resident_bytes(options.device)
    own = SinglePassRow(_engine(options))
    loading = peak_bytes(options.device) - before
    inputs = _inputs(own.engine, options.seed)
    own.chunk(inputs)
    held = Held(_weight_bytes(own.engine), loading, resident_bytes(options.device) - before)
    rows: dict[str, Row] = {"parallel": own}
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
    config = own.engine.model.config
    return FlowBenchResult(
        summaries(options, 0, config.chunk, spent, chunks),
        {
            "parameters": _parameters(own.engine), "vision_tokens": config.towers[0].patches,
            "prompt_tokens": own.rows, "action_tokens": config.chunk, "steps": 0,
            "views": config.images, "warm_up": options.warm_up, "timed": options.timed,
        },
        held, skipped, {},
    )  # fmt: skip


def _engine(options: FlowBenchOptions) -> Engine:
    try:
        engine = load_engine(
            EngineOptions(
                checkpoint=options.checkpoint, device=options.device, dtype=options.dtype,
                schedule="parallel", seed=options.seed, cuda_graphs=options.cuda_graphs,
                weights=options.weights,
            )
        )  # fmt: skip
    except ValueError as error:
        raise UserError(str(error)) from error
    assert isinstance(engine, Engine), "the caller looked"
    return engine


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
        if isinstance(module, QuantisedLinear) and isinstance(module.weight, Ternary):
            module.weight = _floats(module.weight, dtype)
    return engine


def _floats(matrix: Quantised, dtype: torch.dtype) -> Any:
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


def _parameters(engine: Engine) -> int:
    return sum(t.numel() for t in engine.model.tensors.values()) + engine.model.quantised


def _weight_bytes(engine: Engine) -> int:
    return sum(t.nbytes for t in engine.model.tensors.values()) + engine.model.quantised_bytes
