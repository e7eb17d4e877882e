"""Evo-1 on one device: see, prefill, integrate, over static buffers.

The prompt goes through the language model once, causal; its hidden states and the state's row are
the context, and the context's K and V of every block of the head belong to the prefix. Rows that
the reference masks out (images of absent cameras) are left out; the others keep the positions
that they have in the whole prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from vla_ros.engine.flow.buffers import MASKED, Captured
from vla_ros.engine.flow.evo1.config import Evo1Config
from vla_ros.engine.flow.evo1.gate import CheckedTables, check_time_index, time_index
from vla_ros.engine.flow.evo1.head import ActionHead, head_shapes
from vla_ros.engine.flow.evo1.language import Language, language_shapes
from vla_ros.engine.flow.evo1.memory import Memory, Span
from vla_ros.engine.flow.evo1.vision import TOWER, Eyes, InternVit, vision_shapes
from vla_ros.engine.flow.family import Inputs
from vla_ros.engine.flow.layers import rope
from vla_ros.engine.flow.model import BUCKET
from vla_ros.engine.flow.primitive import Continuing, Guidance, Prefix
from vla_ros.engine.flow.solver import Euler, Sample
from vla_ros.engine.flow.weights import Expected, Weights
from vla_ros.engine.packed.graphs import Capture


class Evo1Model:
    """See :class:`vla_ros.engine.flow.family.Stepping`. ``image_token`` stands in prompts where an
    image's rows go."""

    def __init__(
        self,
        config: Evo1Config,
        weights: Weights,
        image_token: int,
        like: torch.Tensor,
        capture: Capture | None = None,
    ) -> None:
        check_time_index()
        self.config, self.device, self.dtype = config, like.device, like.dtype
        self.horizon, self.width = config.horizon, config.action_width
        self.image_token = image_token
        self.solver = Euler(config.steps, rising=True)
        self.captured = Captured(capture)
        self._bucket = 1 if capture is None else BUCKET
        self._eyes = Eyes(weights, config, like)
        self._language = Language(weights, config.text, like)
        index = time_index(config.steps)
        self.head = ActionHead(CheckedTables(weights), config, index, like)
        self.memory = Memory(config, _round_up(config.max_text, self._bucket), like)
        self.sample = Sample(self.horizon, self.width, config.steps, like.device)
        self._rope = rope(config.text, config.max_text, like.device)
        self._used = torch.arange(self.width, device=like.device) < config.action_dim
        self._pixels: dict[int, torch.Tensor] = {}
        self._laid: tuple[torch.Tensor, int] | None = None  # the prompt that is laid out
        self._ids = self._images = torch.empty(0, dtype=torch.int64)
        self._serial = 0

    @property
    def tower(self) -> InternVit:
        """The vision tower, for those who look on."""
        return self._eyes.tower

    def turned(self, rows: int) -> torch.Tensor:
        """cos and sin that the newest prompt's rows were turned by, of ``rows`` of context; for
        those who look on."""
        span = self.memory.span(rows - 1)
        return torch.cat((span.cos, span.sin), 1)

    @property
    def padded(self) -> bool:
        """Prompts have padding behind them, which the head must not see."""
        return self._bucket > 1

    def noise(self, generator: torch.Generator) -> torch.Tensor:
        """Uniform in [-1, 1) [H, D], drawn on the CPU; 0 where an action has no value."""
        noise = torch.rand(self.horizon, self.width, generator=generator) * 2 - 1
        noise[:, self.config.action_dim :] = 0.0
        return noise

    def example(self, words: int, generator: torch.Generator) -> Inputs:
        """Random pixels of all cameras, a prompt of so many words at most, a state of zeros."""
        config, side = self.config, self.config.vision.image_size
        pixels = torch.rand(len(config.cameras), 3, side, side, generator=generator) * 4 - 2
        one = [4, *[self.image_token] * config.view_tokens, 5]
        ids = [*one * config.slots, *range(6, 6 + words)][: config.max_text]
        return Inputs(
            pixels.to(self.device), torch.tensor(ids), torch.zeros(config.state_width)
        )  # fmt: skip

    def see(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels of the cameras that are there [V, 3, s, s] -> rows of images [V * tokens, C]."""
        views = len(pixels)
        if views not in self._pixels:
            self._pixels[views] = torch.zeros(pixels.shape, device=self.device, dtype=self.dtype)
        buffer = self._pixels[views]
        buffer.copy_(pixels)
        with torch.inference_mode():
            return self.captured(("see", views), lambda: self._eyes(buffer))

    def prefill(self, features: torch.Tensor, ids: torch.Tensor, state: torch.Tensor) -> Prefix:
        """Rows of images, the whole prompt's ids int64 [n], state [state_width] -> the prefix.

        ValueError where the prompt has not the images' places.
        """
        with torch.inference_mode():
            span, count = self._lay(features, ids)
            self.memory.state.copy_(state)
            self.captured(("prefill", span.length), lambda: self._fill(span))
            mask = torch.arange(1 + span.length, device=self.device) <= count
        self._serial += 1
        return Prefix(span.keys, span.values, mask, self.memory.state, self._serial)

    def prepare(self, features: int, ways: Sequence[Continuing | None]) -> None:
        """Capture prefix and steps of every length that a prompt with so many rows of images may
        have, for chunks that continue others in these ``ways``; nothing without graphs.

        Earlier prefixes are written over.
        """
        if not self.padded:
            return
        first = _round_up(features + 1, self._bucket)
        absent = self.config.slots * self.config.view_tokens - features
        last = _round_up(self.config.max_text - absent, self._bucket)
        with torch.inference_mode():
            for length in range(first, last + 1, self._bucket):
                span = self.memory.span(length)
                span.hidden.zero_()
                self.captured(("prefill", length), partial(self._fill, span))
                for how in ways:
                    if how is not Continuing.TRUE:  # which needs gradients, and no graph
                        self.captured(("steps", length, how), partial(self._steps, span, how))
        self._laid = None
        self._serial += 1

    def integrate(
        self,
        prefix: Prefix,
        state: torch.Tensor | None,
        noise: torch.Tensor | None,
        guidance: Guidance | None = None,
    ) -> torch.Tensor:
        """All solver steps: noise [H, D] -> chunk [H, D], float32.

        ``state`` replaces the prefix's: its row is the only one of the context that is its own.
        """
        if noise is None:
            raise ValueError("this head starts from noise: give noise [H, D]")
        how = None if guidance is None else guidance.how
        if how is Continuing.TRAINED:
            raise ValueError("this network takes one time for all actions: it cannot be given some")
        with torch.inference_mode():
            span = self._open(prefix, state)
            self.solver.load(self.sample, noise.to(self.device) * self._used, guidance)
        if how is Continuing.TRUE:
            with torch.no_grad():  # inference tensors could not be differentiated
                return self._steps(span, how).clone()
        with torch.inference_mode():
            run = self.captured(("steps", span.length, how), lambda: self._steps(span, how))
            return run.clone()

    def velocity(
        self, prefix: Prefix, x: torch.Tensor, step: int, begin: bool = True
    ) -> torch.Tensor:
        """The velocity [H, D] at x and one of the solver's steps, alone (tests, measurements).

        ``begin``: make the context's K and V anew, as the references do in every step.
        """
        with torch.inference_mode():
            span = self._open(prefix, None)
            if begin:
                self._keep(span, 0)
            return self._velocity(span, x, step)

    def _open(self, prefix: Prefix, state: torch.Tensor | None) -> Span:
        if prefix.serial != self._serial:
            raise ValueError("this prefix was written over by a later one: encode it again")
        span = self.memory.span(len(prefix.mask) - 1)
        if state is not None:
            self.memory.state.copy_(state)
            span.context[0].copy_(self.head.state_row(self.memory.state))
            self._keep(span, 0, 1)
        return span

    def _lay(self, features: torch.Tensor, ids: torch.Tensor) -> tuple[Span, int]:
        """Write the prompt's rows; turns, mask and places only where the prompt is another one."""
        if self._laid is None or self._laid[0] is not ids or self._laid[1] != len(features):
            positions = kept_rows(ids, self.image_token, len(features))
            kept = ids.cpu()[positions]
            self._ids = kept.to(self.device)
            self._images = (kept == self.image_token).nonzero()[:, 0].to(self.device)
            span = self.memory.span(_round_up(len(kept), self._bucket))
            count, places = len(kept), positions.to(self.device)
            for turned, table in ((span.cos, self._rope.cos), (span.sin, self._rope.sin)):
                turned[:count].copy_(table[places])
            span.hidden.zero_()
            span.hidden[:, 1 + count :] = MASKED
            span.x[count:].zero_()
            self._laid = (ids, len(features))
        count = len(self._ids)
        span = self.memory.span(_round_up(count, self._bucket))
        torch.index_select(self._language.embedding, 0, self._ids, out=span.x[:count])
        span.x.index_copy_(0, self._images, features.to(span.x))
        return span, count

    def _fill(self, span: Span) -> torch.Tensor:
        """The language model over the prompt, and the context's K and V."""
        hidden = self._language(span.x, span.cos, span.sin, span.mask)
        span.context[0].copy_(self.head.state_row(self.memory.state))
        span.context[1:].copy_(hidden)
        self._keep(span, 0)
        return span.context

    def _keep(self, span: Span, first: int, last: int | None = None) -> None:
        """K and V of rows of the context, for all blocks."""
        rows = slice(first, last)
        for block, (keys, values) in enumerate(zip(span.keys, span.values, strict=True)):
            k, v = self.head.keys_values(block, span.context[rows])
            keys[:, rows].copy_(k)
            values[:, rows].copy_(v)

    def _steps(self, span: Span, how: Continuing | None) -> torch.Tensor:
        return self.solver.run(self.sample, lambda x, step: self._velocity(span, x, step), how)

    def _velocity(self, span: Span, x: torch.Tensor, step: int) -> torch.Tensor:
        hidden = span.hidden if self.padded else None
        return self.head.velocity(x, step, span.keys, span.values, hidden)


def kept_rows(ids: torch.Tensor, image_token: int, rows: int) -> torch.Tensor:
    """Positions int64 [P] of the prompt's rows that there are: text, and the first ``rows`` places
    of images. ValueError where there are fewer."""
    ids = ids.cpu()
    image = ids == image_token
    if int(image.sum()) < rows:
        raise ValueError(f"the prompt has {int(image.sum())} places for {rows} rows of images")
    return (~image | (image.cumsum(0) <= rows)).nonzero()[:, 0]


def evo1_expected(config: Evo1Config) -> Expected:
    """The tensors of a checkpoint."""
    must = {**vision_shapes(config), **language_shapes(config.text), **head_shapes(config)}
    return Expected(must, {f"{TOWER}embeddings.mask_token": (1, 1, config.vision.width)})


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
