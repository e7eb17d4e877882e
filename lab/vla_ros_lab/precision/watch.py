"""Traces of an engine at work, without changing what it computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from vla_ros.core.action_space import ActionSpace
from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Floats, Observation, Timeline
from vla_ros.engine.decoding.parallel import Parallel
from vla_ros.engine.engine import Engine
from vla_ros.engine.io.tokens import MAX_TEXT
from vla_ros.engine.layers.attention import Attention
from vla_ros.engine.layers.flow_matching import (
    Euler,
    RtcMode,
    SampleBuffers,
    Velocity,
    generator_for,
)
from vla_ros.engine.layers.kernels.fused import Heads
from vla_ros.engine.layers.linear import linear
from vla_ros.engine.layers.pack import PackLayout, Planner, chain, prefill_layout
from vla_ros.engine.layers.request import Request
from vla_ros.engine.models.base import GraphedFunctions
from vla_ros.engine.models.vlm_with_expert import VLMWithExpert


@dataclass(slots=True)
class RotaryRows:
    """The rotary rows [T, 2 D] (cos beside sin) that reached the attention of the first layer."""

    rows: list[torch.Tensor] = field(default_factory=list)


class WatchedAttention(Attention):
    """An attention that notes the rotary rows it is given, and otherwise is the one within."""

    def __init__(self, within: Attention, turned: RotaryRows) -> None:
        self._within, self._turned = within, turned

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        return self._within(layer, q, k, v, scale)

    def from_qkv(
        self,
        layer: int,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        heads: Heads,
        scale: float,
    ) -> torch.Tensor:
        if layer == 0:
            self._turned.rows.append(torch.cat((cos, sin), 1).float().cpu())
        return self._within.from_qkv(layer, qkv, cos, sin, heads, scale)


@contextmanager
def watch_positions(tower: nn.Module, prefix: int = 0) -> Iterator[list[torch.Tensor]]:
    """The position embeddings [patches, C] as they were added to the patches of a vision tower, one
    entry an image: what went into the first block less what came out of the patch embedding.

    ``prefix``: rows in front of the patches.
    """
    patches: list[torch.Tensor] = []
    found: list[torch.Tensor] = []

    def keep(module: nn.Module, given: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        patches.append(out.detach().float().cpu())

    def enter(module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        added = given[0].detach().float().cpu()[:, prefix:] - patches[-1]
        found.extend(added.unbind(0))

    embed, blocks = tower.get_submodule("patch_embed"), tower.get_submodule("blocks")
    hooks = (embed.register_forward_hook(keep),
             blocks.get_submodule("0").register_forward_pre_hook(enter))  # fmt: skip
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True, slots=True, eq=False)
class ProbeFrame:
    """A frame that both engines are shown. ``episode``: frames that belong together."""

    episode: int
    instruction: str
    observation: Observation


@dataclass(frozen=True, slots=True)
class StageLayout:
    """Rows of the image in a stage: ``images`` squares of ``side`` x ``side`` patches from row
    ``first`` on. side 0: no row is of a patch."""

    first: int = 0
    images: int = 0
    side: int = 0

    @property
    def patches(self) -> int:
        return self.images * self.side**2


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A stage's output: ``values`` float32 [rows, width], on the CPU."""

    name: str
    values: torch.Tensor
    layout: StageLayout = StageLayout()


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """Discrete choices: ``picked`` int64 [n], and for an argmax the ``logits`` [n, V] behind them,
    for a threshold at 0.5 the ``values`` [n].

    ``exact``: an integer that no rounding may move, such as an index into a table of positions;
    others may flip where the reference itself was undecided.
    """

    name: str
    picked: torch.Tensor
    exact: bool = False
    logits: torch.Tensor | None = None
    values: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TableRows:
    """Rows of a table as they were used [n, D]; row i should be the reference's row ``first`` + i
    of the table ``of``."""

    name: str
    rows: torch.Tensor
    of: str
    first: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class EngineTrace:
    """Trace of one engine on one frame, on the CPU.

    ``tokens`` are those it decoded by itself, ``actions`` float64 [C, D] in m, rad and 0..1. Stages
    and choices of a token policy are taken with the reference's tokens as input, so that each is
    judged by itself and not by what an earlier token had become.
    """

    stages: tuple[Stage, ...]
    choices: tuple[Choices, ...]
    used: tuple[TableRows, ...]
    tokens: tuple[int, ...]
    actions: Floats


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in float32 on the CPU [rows, width]."""
    return tensor.detach().float().cpu().clone().reshape(len(tensor), -1)


SIDE = "side of the gripper"


def gripper_choices(actions: Floats, space: ActionSpace) -> list[Choices]:
    """The side of its middle that a gripper is on, in every action of a chunk [C, D]; none where
    nothing is a gripper."""
    if not space.grippers:
        return []
    values = torch.from_numpy(actions[:, list(space.grippers)].copy()).flatten()
    return [Choices(SIDE, (values >= 0.5).long(), values=values)]


ROTARY, DECODING = "rotary positions", "rotary positions while decoding"
TOKENS, DECODED = "tokens (argmax)", "tokens while decoding (argmax)"


class TokenWatch:
    """Watch of a token policy, or of one that makes a chunk in a pass, frame after frame.

    ``scale`` [D]: m and rad of one unit of its actions.

    Where passes are captured, features and logits are those of the graphs that serve; what no graph
    shows (layers, positions) is of the same weights beside them.
    """

    def __init__(self, engine: Engine, scale: Floats) -> None:
        self._engine, self._scale = engine, scale
        self._clock = SystemClock()
        model = engine.model
        text = model.config.text
        longest = model.config.patches + MAX_TEXT + engine.info.max_tokens + 2
        # A KV cache of its own: the engine's own answer is not disturbed.
        self._runner = model.runner(1, longest)
        self._kv_cache = self._runner.kv_cache
        self._planner = Planner(self._kv_cache)
        self._taps = tuple(range(text.layers))
        self._turned = RotaryRows()
        self._episode: tuple[int, str] | None = None

    def trace(self, frame: ProbeFrame, reference: EngineTrace | None = None) -> EngineTrace:
        """The engine on a frame; ``reference``: the reference's trace, None: it is this."""
        if self._episode != (frame.episode, frame.instruction):
            self._engine.reset(frame.instruction)
            self._episode = (frame.episode, frame.instruction)
        observation, clock = frame.observation, self._clock
        answer = self._engine.step(observation, Timeline(clock.steady_ns()), clock)
        assert answer is not None, "decoding auto is no pipeline"
        actions, tokens = answer.actions * self._scale, self._meant(answer.tokens)
        space = self._engine.info.action_space
        request = self._engine.encode(observation, Timeline(clock.steady_ns()), clock)
        with torch.inference_mode(), ExitStack() as watching:
            stages, used = self._vision(request, watching)
            fed = tokens if reference is None else reference.tokens
            more, choices, turned = self._language(request, fed)
        return EngineTrace(
            stages=(*stages, *more),
            choices=(*choices, *gripper_choices(actions, space)),
            used=(*used, *turned),
            tokens=tokens,
            actions=actions,
        )

    def _vision(self, request: Request, watching: ExitStack) -> tuple[list[Stage], list[TableRows]]:
        """Pixels, vision, projector, and the position embeddings that were added."""
        model, stages, used = self._engine.model, [], []
        towers = model.config.towers
        names = ("featurizer", "fused_featurizer")[: len(towers)]
        backbone = model.vision.vision_backbone
        modules = [backbone.get_submodule(name) for name in names]
        found = [
            watching.enter_context(watch_positions(module, tower.registers + tower.class_token))
            for module, tower in zip(modules, towers, strict=True)
        ]
        images = len(request.pixels[0])
        for name, tower, pixels in zip(names, towers, request.pixels, strict=True):
            layout = StageLayout(0, images, tower.image_size // tower.patch)
            label = "pixels" if len(towers) == 1 else f"pixels of {name}"
            stages.append(Stage(label, _patches(pixels, tower.patch), layout))
        layout = StageLayout(0, images, towers[0].image_size // towers[0].patch)
        features = model.vision.features(request.pixels)
        if model.capture is not None:
            features = model.features(request.pixels)
        stages.append(Stage("vision", copied(features), layout))
        stages.append(Stage("projector", copied(model.project(features)), layout))
        for name, positions in zip(names, found, strict=True):
            label = f"positions of patches, {name}"
            used += [TableRows(label, rows, label) for rows in positions[:1]]  # of the first image
        return stages, used

    def _language(
        self, request: Request, tokens: tuple[int, ...]
    ) -> tuple[list[Stage], list[Choices], list[TableRows]]:
        if isinstance(self._engine.decoder.decoding, Parallel):
            return self._chunk(request, self._engine.decoder.decoding)
        model = self._engine.model
        fed = torch.tensor(tokens, device=model.device)
        x = torch.cat((request.prompt, model.decoder.embed(fed[:-1])))
        states, stages = self._pass(PackLayout(tuple(range(len(x))), len(x)), x)
        logits = copied(self._logits(states[-len(tokens) :]))
        if model.capture is not None:  # a draft behind its prompt
            behind = prefill_layout(len(x), tuple(range(len(x) - len(tokens), len(x))))
            logits = copied(self._runner.logits(behind, request.prompt, fed[:-1]))
        decoded = []
        for number in range(len(tokens) - 1):
            layout = PackLayout((0,), tail=chain(0, len(request.prompt) + number, 1))
            last = fed[number : number + 1]
            state, _ = self._pass(layout, model.decoder.embed(last), stages=False)
            alone = self._logits(state)
            if model.capture is not None:
                alone = self._runner.logits(layout, None, last)
            decoded.append(copied(alone))
        choices = [self._chosen(TOKENS, logits)]
        stages.append(Stage("logits", logits))
        used = self._positions(len(x), len(request.prompt))
        if decoded:
            each = torch.cat(decoded)
            stages.append(Stage("logits while decoding", each))
            choices.append(self._chosen(DECODED, each))
        return stages, choices, used

    def _chunk(
        self, request: Request, decoding: Parallel
    ) -> tuple[list[Stage], list[Choices], list[TableRows]]:
        """A whole chunk in one bidirectional pass."""
        x = decoding.sequence(request)
        rows = tuple(range(len(x)))
        states, stages = self._pass(PackLayout(rows, len(x), causal=False), x)
        actions = decoding.read(states[decoding.rows(len(x))])
        stages.append(Stage("head", copied(actions)))
        return stages, [], self._positions(len(x), len(x))

    def _pass(
        self, layout: PackLayout, x: torch.Tensor, *, stages: bool = True
    ) -> tuple[torch.Tensor, list[Stage]]:
        """One pack -> states behind the final norm [R, C], and what every layer gave."""
        model = self._engine.model
        plan = self._planner.plan(layout)
        attention = WatchedAttention(model.attention.make(self._kv_cache, plan), self._turned)
        taps = self._taps if stages else ()
        states, tapped = model.decoder.tapped(x, plan.positions, attention, plan.rows, taps)
        if not stages:
            return states, []
        tower = model.config.towers[0]
        images = model.config.patches // tower.patches
        image = StageLayout(1, images, tower.image_size // tower.patch)
        parts = tapped.split(states.shape[1], dim=1)
        return states, [Stage(f"layer {n}", copied(part), image) for n, part in enumerate(parts)]

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        return linear(states, self._engine.model.decoder.head)

    def _twins(self) -> tuple[int, int] | None:
        """The tokens of the last two bins, which mean one value; None where tokens are codes."""
        actions = self._engine.model.actions
        if not actions.ordered:
            return None
        return actions.from_bin(actions.bins - 2), actions.from_bin(actions.bins - 1)

    def _meant(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """One token for one value."""
        twins = self._twins()
        return tuple(twins[0] if twins and t == twins[1] else t for t in tokens)

    def _chosen(self, name: str, logits: torch.Tensor) -> Choices:
        twins = self._twins()
        if twins:
            kept, other = twins
            logits = logits.clone()
            logits[:, kept] = torch.maximum(logits[:, kept], logits[:, other])
            logits[:, other] = float("-inf")
        return Choices(name, logits.argmax(1), logits=logits)

    def _positions(self, prefill: int, prompt: int) -> list[TableRows]:
        """The rotary rows of the passes since the last call."""
        rows, self._turned.rows[:] = list(self._turned.rows), []
        if not rows:  # a decoder that turns by itself
            return []
        used = [TableRows(ROTARY, rows[0][:prefill], ROTARY)]
        if len(rows) > 1:
            used.append(TableRows(DECODING, torch.cat(rows[1:]), ROTARY, prompt))
        return used


def _patches(pixels: torch.Tensor, patch: int) -> torch.Tensor:
    """[V, 3, s, s] -> [V * patches, 3 * patch ** 2], float32."""
    cut = F.unfold(pixels.float(), patch, stride=patch)
    return copied(cut.transpose(1, 2).flatten(0, 1))


ROTARY_ACTIONS, PATCHES = "rotary positions of actions", "positions of patches"


class _Noted(Euler):
    """The solver, which notes every velocity [H, D]."""

    def __init__(self, within: Euler) -> None:
        super().__init__(within.steps, within.rising)
        self.velocities: list[torch.Tensor] = []

    def run(
        self, sample: SampleBuffers, velocity: Velocity, mode: RtcMode | None = None
    ) -> torch.Tensor:
        def noted(x: torch.Tensor, step: int) -> torch.Tensor:
            found = velocity(x, step)
            self.velocities.append(copied(found))
            return found

        self.velocities.clear()
        return super().run(sample, noted, mode)


class FlowWatch:
    """Watch of a flow policy. Features, K and V and the chunk are as it serves, with graphs where
    it has any; the velocities, which no graph shows, are of the same weights and buffers without.

    What is chosen once, when a checkpoint is loaded (rows of the position table, bins of the state,
    the table of times), is held to stored integers there already
    (:mod:`vla_ros.engine.models.golden_ints`); here it is what became of it in the engine that
    runs."""

    def __init__(self, engine: Engine, scale: Floats) -> None:
        self._engine, self._scale = engine, scale
        self._serving = engine.policy.model
        self._model = copy(engine.policy.model)
        self._model.captured = GraphedFunctions(None)
        self._solver: _Noted | None = None
        if engine.policy.config.steps:
            self._solver = self._model.solver = _Noted(self._model.solver)
        self._clock = SystemClock()

    def trace(self, frame: ProbeFrame, reference: EngineTrace | None = None) -> EngineTrace:
        """The engine on a frame. Nothing is decoded token by token, so it needs no reference."""
        self._engine.reset(frame.instruction)
        observation, clock = frame.observation, self._clock
        answer = self._engine.step(observation, Timeline(clock.steady_ns()), clock)
        assert answer is not None, "a chunk a frame"
        actions, served = answer.actions * self._scale, self._engine.decoder.last_chunk
        assert served is not None
        model = self._model
        given = self._engine.robot.prepare(observation)
        with self._tower() as positions:
            features = model.image_features(given.pixels)
        image = self._layout(len(given.pixels), len(features))
        if self._serving.captured.captures:
            features = self._serving.image_features(given.pixels).clone()
        stages = [Stage("pixels", copied(given.pixels.flatten(0, 1))),
                  Stage("vision", copied(features), image)]  # fmt: skip
        prefix = self._serving.prefill(features, given.ids, given.state)
        # of other networks the images begin in another row
        first = image if isinstance(model, VLMWithExpert) else StageLayout()
        rows = int(prefix.mask.sum())
        for number, (keys, values) in enumerate(zip(prefix.keys, prefix.values, strict=True)):
            both = torch.cat((keys, values))[:, :rows].transpose(0, 1)
            stages.append(Stage(f"layer {number}, K and V", copied(both), first))
        if self._solver:
            noise = model.noise(generator_for(self._engine.options.seed, observation.stamp_ns))
            prefix = model.prefill(features, given.ids, given.state)
            model.sample_actions(prefix, None, noise)
        for step, velocity in enumerate(self._solver.velocities if self._solver else ()):
            stages.append(Stage(f"velocity {step}", velocity))
        stages.append(Stage("chunk", copied(served)))
        space = self._engine.info.action_space
        return EngineTrace(
            stages=tuple(stages),
            choices=(
                Choices("prompt ids", given.ids.cpu(), exact=True),
                *gripper_choices(actions, space),
            ),
            used=(*self._turned(rows), *(TableRows(PATCHES, p, PATCHES) for p in positions[:1])),
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

    def _layout(self, views: int, rows: int) -> StageLayout:
        """Rows of images as squares, where they are ones."""
        side = round((rows / views) ** 0.5) if views else 0
        return StageLayout(0, views, side) if views * side**2 == rows else StageLayout()

    def _turned(self, rows: int) -> list[TableRows]:
        if not isinstance(self._model, VLMWithExpert):
            turned = getattr(self._model, "rotary_rows", None)  # cos and sin of the prefix's rows
            return [] if turned is None else [TableRows(ROTARY, copied(turned(rows)), ROTARY)]
        model, rope = self._model, self._model.rotary
        table = torch.cat((rope.cos, rope.sin), 1).float().cpu()
        behind = torch.cat((model.cos, model.sin), 1).float().cpu()
        return [TableRows(ROTARY, table[: rows + len(behind)], ROTARY),
                TableRows(ROTARY_ACTIONS, behind, ROTARY, rows)]  # fmt: skip
