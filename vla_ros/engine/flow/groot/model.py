"""A GR00T: a vision-language model's last rows, and the head that crosses to them.

What depends on the observation is done once a chunk, into buffers that never move: the rows, the
context that the head makes of them, keys and values of every crossing block. All solver steps are
one function over these, so a graph holds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from vla_ros.engine.flow.buffers import Captured
from vla_ros.engine.flow.family import Inputs
from vla_ros.engine.flow.groot.backbone import Backbone
from vla_ros.engine.flow.groot.config import GrootConfig
from vla_ros.engine.flow.groot.head import ActionHead, Context
from vla_ros.engine.flow.model import BUCKET
from vla_ros.engine.flow.primitive import Continuing, Guidance, Prefix
from vla_ros.engine.flow.solver import Euler, Sample
from vla_ros.engine.packed.graphs import Capture


@dataclass(frozen=True, slots=True)
class _Plan:
    """A prompt of ``count`` rows: where its pictures are, and all rows with these first."""

    count: int
    images: list[int]
    order: list[int]


class GrootModel:
    """One loaded model on one device, used by one thread. Inference only.

    ``horizon`` H actions come out, of the ``config.head.horizon`` that start from noise.
    """

    def __init__(
        self,
        config: GrootConfig,
        backbone: Backbone,
        head: ActionHead,
        like: torch.Tensor,
        capture: Capture | None = None,
    ) -> None:
        self.config, self.device, self.dtype = config, like.device, like.dtype
        self.backbone, self.head = backbone, head
        self.horizon, self.width = config.horizon, config.action_width
        self.solver = Euler(config.steps, rising=True)
        self.captured = Captured(capture)
        self._bucket = bucket_of(capture)
        longest = longest_of(config, capture)
        made = config.head.horizon
        self.sample = Sample(made, self.width, config.steps, like.device)
        self._x = like.new_zeros(longest, backbone.width)
        self._refined = like.new_zeros(longest, config.head.context_width)
        self._order = torch.arange(longest, device=like.device)
        self._places: dict[int, torch.Tensor] = {}
        self._features: dict[int, torch.Tensor] = {}
        self._state = torch.zeros(config.head.state_width, device=like.device)
        self._pixels: dict[int, torch.Tensor] = {}
        self._ids: tuple[int, ...] = ()
        self._plan = _Plan(0, [], [])
        self._serial = 0
        self._context: Context | None = None

    @property
    def padded(self) -> bool:
        """Prompts have padding behind them, which every mask must hide."""
        return self._bucket > 1

    def see(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels of the cameras that are there [V, 3, s, s] in [-1, 1] -> features [n, W]."""
        views = len(pixels)
        if views not in self._pixels:
            self._pixels[views] = torch.zeros(pixels.shape, device=self.device, dtype=self.dtype)
        buffer = self._pixels[views]
        buffer.copy_(pixels)
        with torch.inference_mode():
            return self.captured(("see", views), lambda: self.backbone.see(buffer))

    def prefill(self, features: torch.Tensor, ids: torch.Tensor, state: torch.Tensor) -> Prefix:
        """Features of the pictures, the whole prompt's ids int64 [n] on the CPU with a place for
        each of their rows, the state [state_width] in model space -> the prefix.

        ValueError: the prompt has places for other pictures, or is longer than all buffers.
        """
        with torch.inference_mode():
            self._lay(ids)
            plan = self._plan
            if len(plan.images) != len(features):
                raise ValueError(
                    f"the prompt has places for {len(plan.images)} rows of pictures, there are"
                    f" {len(features)}"
                )
            length = round_up(plan.count, self._bucket)
            images = len(features)
            held, places = self._held(features, images)
            held.copy_(features)
            places.copy_(torch.tensor(plan.images))
            self._order[:length].copy_(torch.tensor([*plan.order, *range(plan.count, length)]))
            self._x[: plan.count].copy_(self.backbone.embed(ids.to(self.device)))
            self._x[plan.count : length].zero_()
            context = self.head.context(images, length)
            self.head.hide(context, plan.count)
            self.captured(("prefill", images, length), lambda: self._fill(context))
            self._state.copy_(state)
            mask = torch.arange(length, device=self.device) < plan.count
        self._serial += 1
        self._context = context
        return Prefix(context.keys, context.values, mask, self._state, self._serial)

    def prepare(self, features: int, ways: Sequence[Continuing | None]) -> None:
        """Capture prefix and steps of every length that a text beside so many rows of pictures may
        give; nothing without graphs. Earlier prefixes are written over."""
        if not self.padded:
            return
        first = round_up(features + 1, self._bucket)
        wide = self._features[features].shape[1] if features in self._features else 0
        with torch.inference_mode():
            if not wide:
                views = features // self.config.view_tokens
                side = self.config.image_size
                wide = self.see(torch.zeros(views, 3, side, side)).shape[1]
            self._held(self._x.new_zeros(features, wide), features)
            for length in range(first, len(self._x) + 1, self._bucket):
                context = self.head.context(features, length)
                self.head.hide(context, length)
                self._order[:length].copy_(torch.arange(length))
                self.captured(("prefill", features, length), partial(self._fill, context))
                for how in ways:
                    if how is not Continuing.TRUE:  # which needs gradients, and no graph
                        run = partial(self._steps, context, how)
                        self.captured(("steps", features, length, how), run)
        self._serial += 1

    def integrate(
        self,
        prefix: Prefix,
        state: torch.Tensor | None,
        noise: torch.Tensor | None,
        guidance: Guidance | None = None,
    ) -> torch.Tensor:
        """All solver steps: noise [head.horizon, D] -> chunk [H, D], float32."""
        if noise is None:
            raise ValueError("this head starts from noise: give noise [H, D]")
        how = None if guidance is None else guidance.how
        if how is Continuing.TRAINED:
            raise ValueError("this network takes one time for all actions: it cannot be given some")
        longer = None if guidance is None else self._longer(guidance)
        if how is Continuing.TRUE:
            with torch.no_grad():  # inference tensors could not be differentiated
                context = self._open(prefix, state)
                self.solver.load(self.sample, noise, longer)
                self.head.begin(self._state)
                velocity = partial(self.head.velocity, context)
                return self.solver.run(self.sample, velocity, how)[: self.horizon].clone()
        with torch.inference_mode():
            context = self._open(prefix, state)
            self.solver.load(self.sample, noise, longer)
            key = ("steps", context.images, context.length, how)
            run = self.captured(key, lambda: self._steps(context, how))
            return run[: self.horizon].clone()

    def velocity(
        self, prefix: Prefix, x: torch.Tensor, step: int, begin: bool = True
    ) -> torch.Tensor:
        """The velocity [head.horizon, D] at x and one of the solver's steps, alone.

        ``begin`` False leaves out the state's row and the keys and values of the context; another
        velocity must have made the row.
        """
        with torch.inference_mode():
            context = self._open(prefix, None)
            if begin:
                self.head.begin(self._state)
                self.head.cross(context, self._refined[: context.length])
            return self.head.velocity(context, x, step)

    def noise(self, generator: torch.Generator) -> torch.Tensor:
        """Normal noise [head.horizon, D], drawn on the CPU."""
        return torch.randn(self.config.head.horizon, self.width, generator=generator)

    def example(self, words: int, generator: torch.Generator) -> Inputs:
        """Random pixels of all cameras, a prompt of so many words at most, a state of zeros."""
        config, side = self.config, self.config.image_size
        views = len(config.cameras)
        pixels = torch.rand(views, 3, side, side, generator=generator) * 2 - 1
        pictures = torch.full((views * config.view_tokens,), self.backbone.image_token)
        known = min(words, config.max_text)
        text = [i for i in range(known + 1) if i != self.backbone.image_token][:known]
        ids = torch.cat((pictures, torch.tensor(text, dtype=torch.int64)))
        return Inputs(pixels, ids, torch.zeros(config.head.state_width))

    def _lay(self, ids: torch.Tensor) -> None:
        """What depends on a prompt's places alone, where it is another prompt."""
        found = tuple(ids.tolist())
        if found == self._ids:
            return
        count = len(found)
        if not 0 < count <= len(self._x):
            raise ValueError(f"a prompt has at most {len(self._x)} rows, wanted {count}")
        token = self.backbone.image_token
        images = [i for i, one in enumerate(found) if one == token]
        words = [i for i, one in enumerate(found) if one != token]
        self._plan = _Plan(count, images, images + words)
        self.backbone.lay(list(found), round_up(count, self._bucket))
        self._ids = found

    def _held(self, like: torch.Tensor, images: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The buffers for so many rows of pictures: the features and their places."""
        if images not in self._features:
            self._features[images] = torch.zeros_like(like)
            self._places[images] = torch.zeros(images, dtype=torch.int64, device=self.device)
        return self._features[images], self._places[images]

    def _fill(self, context: Context) -> torch.Tensor:
        """The language model and all that the head makes of its rows."""
        features, places = self._features[context.images], self._places[context.images]
        width = self.backbone.width
        x = self._x[: context.length].index_copy(0, places, features[:, :width])
        rows = self.backbone.read(x, features, places)
        refined = self._refined[: context.length]
        refined.copy_(
            self.head.refine(context, rows.index_select(0, self._order[: context.length]))
        )
        self.head.cross(context, refined)
        return refined

    def _steps(self, context: Context, how: Continuing | None) -> torch.Tensor:
        self.head.begin(self._state)
        return self.solver.run(self.sample, partial(self.head.velocity, context), how)

    def _open(self, prefix: Prefix, state: torch.Tensor | None) -> Context:
        if prefix.serial != self._serial or self._context is None:
            raise ValueError("this prefix was written over by a later one: encode it again")
        if state is not None:
            self._state.copy_(state)
        return self._context

    def _longer(self, guidance: Guidance) -> Guidance:
        """The same for all rows that the head makes: those behind the robot's count nothing."""
        missing = self.config.head.horizon - len(guidance.previous)
        if not missing:
            return guidance
        rows = guidance.previous[-1:].expand(missing, -1)
        none = guidance.weights.new_zeros(missing)
        return Guidance(
            torch.cat((guidance.previous, rows)), torch.cat((guidance.weights, none)),
            guidance.delay, guidance.limit, guidance.how,
        )  # fmt: skip


def bucket_of(capture: Capture | None) -> int:
    """Lengths of prompts are multiples of this."""
    return 1 if capture is None else BUCKET


def longest_of(config: GrootConfig, capture: Capture | None) -> int:
    """Rows of the longest prompt, with its padding."""
    return round_up(config.longest, bucket_of(capture))


def round_up(value: int, multiple: int) -> int:
    """The next multiple."""
    return -(-value // multiple) * multiple
