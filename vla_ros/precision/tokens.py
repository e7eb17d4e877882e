"""Watching a policy that says tokens, or a chunk through a head, on one frame after the other."""

from __future__ import annotations

from contextlib import ExitStack

import torch
import torch.nn.functional as F

from vla_ros.core import Floats, Timeline
from vla_ros.engine.engine import Engine
from vla_ros.engine.packed.pack import PackLayout, chain
from vla_ros.engine.packed.planner import Planner
from vla_ros.engine.quantised.matrices import linear
from vla_ros.engine.request import Request
from vla_ros.engine.schedules.parallel import Parallel
from vla_ros.engine.tokens import MAX_TEXT
from vla_ros.precision.observed import Choices, Layout, Shown, Stage, Told, Used, seen
from vla_ros.precision.sides import gripper_choices
from vla_ros.precision.watching import Turned, WatchedAttention, watch_positions
from vla_ros.timing import SystemClock

ROTARY, DECODING = "rotary positions", "rotary positions while decoding"
TOKENS, DECODED = "tokens (argmax)", "tokens while decoding (argmax)"


class TokenWatch:
    """One engine. ``scale`` [D]: m and rad of one unit of its actions."""

    def __init__(self, engine: Engine, scale: Floats) -> None:
        self._engine, self._scale = engine, scale
        self._clock = SystemClock()
        model = engine.model
        text = model.config.text
        longest = model.config.patches + MAX_TEXT + engine.info.max_tokens + 2
        # A ring of its own: the engine's own answer is not disturbed.
        self._ring = model.lane(1, longest).ring
        self._planner = Planner(self._ring)
        self._taps = tuple(range(text.layers))
        self._turned = Turned()
        self._said: tuple[int, str] | None = None

    def told(self, shown: Shown, teacher: Told | None = None) -> Told:
        """The engine on a frame; ``teacher``: the reference on the same one, None: it is this."""
        if self._said != (shown.episode, shown.instruction):
            self._engine.reset(shown.instruction)
            self._said = (shown.episode, shown.instruction)
        observation, clock = shown.observation, self._clock
        answer = self._engine.step(observation, Timeline(clock.steady_ns()), clock)
        assert answer is not None, "schedule auto is no pipeline"
        actions, tokens = answer.actions * self._scale, self._meant(answer.tokens)
        space = self._engine.info.action_space
        request = self._engine.request(observation, Timeline(clock.steady_ns()), clock)
        with torch.inference_mode(), ExitStack() as watching:
            stages, used = self._sight(request, watching)
            more, choices, turned = self._language(request, tokens if teacher is None else
                                                   teacher.tokens)  # fmt: skip
        return Told(
            stages=(*stages, *more),
            choices=(*choices, *gripper_choices(actions, space)),
            used=(*used, *turned),
            tokens=tokens,
            actions=actions,
        )

    def _sight(self, request: Request, watching: ExitStack) -> tuple[list[Stage], list[Used]]:
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
            layout = Layout(0, images, tower.image_size // tower.patch)
            label = "pixels" if len(towers) == 1 else f"pixels of {name}"
            stages.append(Stage(label, _patches(pixels, tower.patch), layout))
        layout = Layout(0, images, towers[0].image_size // towers[0].patch)
        features = model.vision.features(request.pixels)
        stages.append(Stage("vision", seen(features), layout))
        stages.append(Stage("projector", seen(model.project(features)), layout))
        for name, positions in zip(names, found, strict=True):
            label = f"positions of patches, {name}"
            used += [Used(label, rows, label) for rows in positions[:1]]  # of the first image
        return stages, used

    def _language(
        self, request: Request, tokens: tuple[int, ...]
    ) -> tuple[list[Stage], list[Choices], list[Used]]:
        if isinstance(self._engine.schedule, Parallel):
            return self._chunk(request, self._engine.schedule)
        model = self._engine.model
        said = torch.tensor(tokens, device=model.device)
        x = torch.cat((request.prompt, model.decoder.embed(said[:-1])))
        states, stages = self._pass(PackLayout(tuple(range(len(x))), len(x)), x)
        logits = seen(self._logits(states[-len(tokens) :]))
        decoded = []
        for number in range(len(tokens) - 1):
            layout = PackLayout((0,), tail=chain(0, len(request.prompt) + number, 1))
            one = model.decoder.embed(said[number : number + 1])
            state, _ = self._pass(layout, one, stages=False)
            decoded.append(seen(self._logits(state)))
        choices = [self._chosen(TOKENS, logits)]
        stages.append(Stage("logits", logits))
        used = self._positions(len(x), len(request.prompt))
        if decoded:
            alone = torch.cat(decoded)
            stages.append(Stage("logits while decoding", alone))
            choices.append(self._chosen(DECODED, alone))
        return stages, choices, used

    def _chunk(
        self, request: Request, schedule: Parallel
    ) -> tuple[list[Stage], list[Choices], list[Used]]:
        """A whole chunk in one bidirectional pass."""
        x = schedule.sequence(request)
        rows = tuple(range(len(x)))
        states, stages = self._pass(PackLayout(rows, len(x), causal=False), x)
        actions = schedule.read(states[schedule.rows(len(x))])
        stages.append(Stage("head", seen(actions)))
        return stages, [], self._positions(len(x), len(x))

    def _pass(
        self, layout: PackLayout, x: torch.Tensor, *, stages: bool = True
    ) -> tuple[torch.Tensor, list[Stage]]:
        """One pack -> states behind the final norm [R, C], and what every layer gave."""
        model = self._engine.model
        plan = self._planner.plan(layout)
        attention = WatchedAttention(model.attention.make(self._ring, plan), self._turned)
        taps = self._taps if stages else ()
        states, tapped = model.decoder.tapped(x, plan.positions, attention, plan.rows, taps)
        if not stages:
            return states, []
        tower = model.config.towers[0]
        images = model.config.patches // tower.patches
        where = Layout(1, images, tower.image_size // tower.patch)
        parts = tapped.split(states.shape[1], dim=1)
        return states, [Stage(f"layer {n}", seen(part), where) for n, part in enumerate(parts)]

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

    def _positions(self, prefill: int, prompt: int) -> list[Used]:
        """The rotary rows of the passes since the last call."""
        rows, self._turned.rows[:] = list(self._turned.rows), []
        if not rows:  # a decoder that turns by itself
            return []
        used = [Used(ROTARY, rows[0][:prefill], ROTARY)]
        if len(rows) > 1:
            used.append(Used(DECODING, torch.cat(rows[1:]), ROTARY, prompt))
        return used


def _patches(pixels: torch.Tensor, patch: int) -> torch.Tensor:
    """[V, 3, s, s] -> [V * patches, 3 * patch ** 2], float32."""
    cut = F.unfold(pixels.float(), patch, stride=patch)
    return seen(cut.transpose(1, 2).flatten(0, 1))
