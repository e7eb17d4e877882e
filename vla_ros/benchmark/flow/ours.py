"""The engine's own model as rows: as it is, without graphs, and as a plain program would use it."""

from __future__ import annotations

from copy import copy

import torch
import torch.nn.functional as F

from vla_ros.benchmark.flow.row import Inputs, Spent, Stopwatch
from vla_ros.engine.flow.buffers import Captured
from vla_ros.engine.flow.config import FlowConfig
from vla_ros.engine.flow.family import Network, Stepping
from vla_ros.engine.flow.layers import read_layer
from vla_ros.engine.flow.matrices import DECODER
from vla_ros.engine.flow.model import FlowModel
from vla_ros.engine.flow.pi import EXPERT, NORMS
from vla_ros.engine.flow.pi import TEXT as PI_TEXT
from vla_ros.engine.flow.primitive import Prefix
from vla_ros.engine.flow.smolvla import TEXT as SMOLVLA_TEXT
from vla_ros.engine.flow.suffix import read_linear
from vla_ros.engine.flow.tables import time_table
from vla_ros.engine.flow.weights import Weights


class OwnRow:
    """The engine: the prefix once, all steps one function (one graph where the model has any)."""

    def __init__(self, model: Network) -> None:
        self.model = model
        self.rows = 0  # of the newest prefix, without padding
        self.seen = 0  # rows of its images

    def chunk(self, inputs: Inputs) -> tuple[torch.Tensor, Spent]:
        model, watch = self.model, Stopwatch(self.model.device)
        features = watch.time("vision", lambda: model.see(inputs.pixels))
        self.seen = len(features)
        prefix = watch.time("prefill", lambda: model.prefill(features, inputs.ids, inputs.state))
        self.rows = int(prefix.mask.sum())
        out = watch.time("decode", lambda: self._integrate(prefix, inputs.noise))
        return out.float().cpu(), watch.spent

    def _integrate(self, prefix: Prefix, noise: torch.Tensor | None) -> torch.Tensor:
        return self.model.integrate(prefix, None, noise)


def eager(model: Network) -> OwnRow:
    """The same weights and buffers without graphs."""
    twin = copy(model)
    twin.captured = Captured(None)
    return OwnRow(twin)


class NaiveRow(OwnRow):
    """The same arithmetic as a plain program has it: no graphs; in every step all that is the same
    in every step, and caches that are copied before they are written to."""

    def __init__(self, model: Stepping) -> None:
        twin = copy(model)
        twin.captured = Captured(None)
        super().__init__(twin)
        self._stepping = twin

    def _integrate(self, prefix: Prefix, noise: torch.Tensor | None) -> torch.Tensor:
        assert noise is not None, "a solver starts from noise"
        x, solver = noise.to(self.model.device, torch.float32), self._stepping.solver
        for step, time in enumerate(solver.times):
            _ = [t.clone() for t in (*prefix.keys, *prefix.values)]
            self._repeat(time)
            x = x + solver.dt * self._stepping.velocity(prefix, x, step)
        return x[: self.model.horizon]  # a head may make more actions than the robot takes

    def _repeat(self, time: float) -> None:
        """What else a plain program does again in a step."""


class NaiveLerobotRow(NaiveRow):
    """Of pi0, pi0.5 and SmolVLA also the whole last layer of the prefix, and pi0.5's scales and
    shifts in every step, beside pi0's state and SmolVLA's cross keys and values.

    ``weights`` are the model's own: what the engine did not keep is read from them.
    """

    def __init__(self, model: FlowModel, weights: Weights) -> None:
        super().__init__(model)
        twin = self.model
        assert isinstance(twin, FlowModel)
        config, like = model.config, torch.empty(0, device=model.device, dtype=model.dtype)
        text = config.shapes.text
        base = SMOLVLA_TEXT if config.kind == "smolvla" else PI_TEXT
        last = read_layer(weights, f"{base}layers.{text.layers - 1}.", text, like, DECODER)
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
