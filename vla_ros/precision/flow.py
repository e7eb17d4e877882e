"""Watching a flow policy: vision, every layer's K and V, every velocity, on one frame at a time.

What is chosen once, when a checkpoint is loaded (rows of the position table, bins of the state, the
table of times), is held to stored integers there already (:mod:`vla_ros.engine.flow.gate`); here
it is what those choices became in the engine that runs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from vla_ros.core import Floats, Timeline
from vla_ros.engine.flow.engine import FlowEngine
from vla_ros.engine.flow.model import FlowModel
from vla_ros.engine.flow.primitive import Continuing
from vla_ros.engine.flow.solver import Euler, Sample, Velocity, generator_for
from vla_ros.precision.observed import Choices, Layout, Shown, Stage, Told, Used, seen
from vla_ros.precision.sides import gripper_choices
from vla_ros.precision.tokens import ROTARY
from vla_ros.precision.watching import watch_positions
from vla_ros.timing import SystemClock

ROTARY_ACTIONS, PATCHES = "rotary positions of actions", "positions of patches"


class _Noted(Euler):
    """The solver, which notes every velocity [H, D] and the times as they are asked for."""

    def __init__(self, within: Euler) -> None:
        super().__init__(within.steps, within.rising)
        self.velocities: list[torch.Tensor] = []

    def run(
        self, sample: Sample, velocity: Velocity, how: Continuing | None = None
    ) -> torch.Tensor:
        def noted(x: torch.Tensor, step: int) -> torch.Tensor:
            found = velocity(x, step)
            self.velocities.append(seen(found))
            return found

        self.velocities.clear()
        return super().run(sample, noted, how)


class FlowWatch:
    """One engine, which must have been loaded without graphs: a captured step is not seen."""

    def __init__(self, engine: FlowEngine, scale: Floats) -> None:
        self._engine, self._scale = engine, scale
        self._model = engine.policy.model
        self._solver: _Noted | None = None
        if engine.policy.config.steps:
            self._solver = self._model.solver = _Noted(self._model.solver)
        self._clock = SystemClock()

    def told(self, shown: Shown, teacher: Told | None = None) -> Told:
        """The engine on a frame. Nothing is said token by token, so nobody teaches."""
        self._engine.reset(shown.instruction)
        observation, clock = shown.observation, self._clock
        answer = self._engine.step(observation, Timeline(clock.steady_ns()), clock)
        actions = answer.actions * self._scale
        head, model = self._engine.head, self._model
        given = head.inputs(observation)
        with self._tower() as positions:
            features = model.see(given.pixels)
        where = self._where(len(given.pixels), len(features))
        stages = [Stage("pixels", seen(given.pixels.flatten(0, 1))),
                  Stage("vision", seen(features), where)]  # fmt: skip
        prefix = model.prefill(features, given.ids, given.state)
        first = where if isinstance(model, FlowModel) else Layout()  # else they begin elsewhere
        rows = int(prefix.mask.sum())
        for number, (keys, values) in enumerate(zip(prefix.keys, prefix.values, strict=True)):
            both = torch.cat((keys, values))[:, :rows].transpose(0, 1)
            stages.append(Stage(f"layer {number}, K and V", seen(both), first))
        noise = model.noise(generator_for(self._engine.options.seed, observation.stamp_ns))
        chunk = head.integrate(prefix, None, noise)
        for step, velocity in enumerate(self._solver.velocities if self._solver else ()):
            stages.append(Stage(f"velocity {step}", velocity))
        stages.append(Stage("chunk", seen(chunk)))
        space = self._engine.info.action_space
        return Told(
            stages=tuple(stages),
            choices=(
                Choices("prompt ids", given.ids.cpu(), exact=True),
                *gripper_choices(actions, space),
            ),
            used=(*self._turned(rows), *(Used(PATCHES, p, PATCHES) for p in positions[:1])),
            tokens=(),
            actions=actions,
        )

    def _tower(self) -> AbstractContextManager[list[torch.Tensor]]:
        """The positions that a tower adds, of those networks that show theirs (``tower``, and its
        ``prefix`` of rows in front of the patches)."""
        tower = getattr(self._model, "tower", None)
        if tower is None or not hasattr(tower, "patch_embed"):
            return nullcontext([])
        return watch_positions(tower, getattr(tower, "prefix", 0))

    def _where(self, views: int, rows: int) -> Layout:
        """Rows of images as squares, where they are."""
        side = round((rows / views) ** 0.5) if views else 0
        return Layout(0, views, side) if views * side**2 == rows else Layout()

    def _turned(self, rows: int) -> list[Used]:
        if not isinstance(self._model, FlowModel):
            turned = getattr(self._model, "turned", None)  # cos and sin of the prefix's rows
            return [] if turned is None else [Used(ROTARY, seen(turned(rows)), ROTARY)]
        rope, buffers = self._model.rotary, self._model.buffers
        table = torch.cat((rope.cos, rope.sin), 1).float().cpu()
        behind = torch.cat((buffers.cos, buffers.sin), 1).float().cpu()
        return [Used(ROTARY, table[: rows + len(behind)], ROTARY),
                Used(ROTARY_ACTIONS, behind, ROTARY, rows)]  # fmt: skip
