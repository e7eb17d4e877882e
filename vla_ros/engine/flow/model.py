"""What pi0, pi0.5 and SmolVLA share: see, prefill, integrate, over static buffers.

The prefix's K and V are computed once a chunk, straight into the buffers, and never cropped or
copied; all solver steps are one function over them, so one graph can hold all of them. Rows
that a reference masks out (padding of the prompt, absent cameras) are left out instead: the
positions count valid rows only, so nothing else changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial

import torch

from vla_ros.engine.flow.buffers import MASKED, Buffers, Captured, Span
from vla_ros.engine.flow.config import FlowConfig
from vla_ros.engine.flow.family import Inputs
from vla_ros.engine.flow.layers import Layer, Rope, attend, mlp, norm, rope, split
from vla_ros.engine.flow.primitive import Continuing, Guidance, Prefix
from vla_ros.engine.flow.siglip import SigLip
from vla_ros.engine.flow.solver import Euler, Sample
from vla_ros.engine.packed.graphs import Capture
from vla_ros.engine.quantised.matrices import linear

BUCKET = 16  # with graphs, prefixes are padded to a multiple, so few lengths need a graph


class FlowModel(ABC):
    """One loaded model on one device, used by one thread. Inference only.

    A family reads its weights, says how a prefix is embedded and masked, what is computed once
    a chunk (:meth:`_fresh`) and what the velocity is. ``tail`` is the number of suffix rows
    that have K and V, ``mask_rows`` how many rows of the suffix mask differ, ``far`` the number
    of layers with cross attention. ``capture`` turns functions into graphs; None runs them.
    """

    layers: list[Layer]
    _tower: SigLip
    prefix_is_masked = False  # rows of the prefix that do not see all the others

    def __init__(
        self,
        config: FlowConfig,
        like: torch.Tensor,
        capture: Capture | None,
        tail: int,
        mask_rows: int = 1,
        far: int = 0,
    ) -> None:
        self.config, self.device, self.dtype = config, like.device, like.dtype
        self.horizon, self.width = config.horizon, config.action_width
        self.solver = Euler(config.steps)
        self._bucket = 1 if capture is None else BUCKET
        longest = _round_up(config.longest, self._bucket)
        self.buffers = Buffers(config, longest, tail, mask_rows, far, like)
        self.sample = Sample(self.horizon, self.width, config.steps, like.device)
        self.captured = Captured(capture)
        self._rope = rope(config.shapes.text, longest + tail, like.device)
        self._pixels: dict[int, torch.Tensor] = {}
        self._laid = (-1, -1)
        self._serial = 0
        self._given: torch.Tensor | None = None  # [H, 1], while rows are given without noise

    @property
    def tower(self) -> SigLip:
        """The vision tower, for those who look on."""
        return self._tower

    @property
    def rotary(self) -> Rope:
        """cos and sin of every position that can come."""
        return self._rope

    @property
    def padded(self) -> bool:
        """Prefixes have padding behind them, which every mask must hide."""
        return self._bucket > 1

    def see(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels of the cameras that are there [V, 3, s, s] -> embeddings [V * tokens, C]."""
        views = len(pixels)
        if views not in self._pixels:
            self._pixels[views] = torch.zeros(pixels.shape, device=self.device, dtype=self.dtype)
        buffer = self._pixels[views]
        buffer.copy_(pixels)
        with torch.inference_mode():
            return self.captured(("see", views), lambda: self._see(buffer))

    def prefill(self, features: torch.Tensor, ids: torch.Tensor, state: torch.Tensor) -> Prefix:
        """Embeddings of the images, prompt ids int64 [n], state [state_width] -> the prefix."""
        with torch.inference_mode():
            self.buffers.state.copy_(state)
            parts = self._rows(features, ids)
            count = sum(len(p) for p in parts)
            span = self.buffers.span(_round_up(count, self._bucket))
            torch.cat(parts, out=span.x[:count])
            span.x[count:].zero_()
            if self._laid != (span.length, count):
                self._lay_masks(span, count)
                self.buffers.turn(self._rope, count)
                self._laid = (span.length, count)
            self.captured(("prefill", span.length), lambda: self._fill(span))
            mask = torch.arange(span.length, device=self.device) < count
        self._serial += 1
        length = span.length
        keys, values = (tuple(t[:, :length] for t in part) for part in (span.keys, span.values))
        return Prefix(keys, values, mask, self.buffers.state, self._serial)

    def prepare(self, features: int, ways: Sequence[Continuing | None]) -> None:
        """Capture prefix and steps of every length that a text behind so many rows of images may
        give, for chunks that continue others in these ``ways``; nothing without graphs.

        Earlier prefixes are written over.
        """
        if not self.padded:
            return
        first = _round_up(features + 1, self._bucket)
        with torch.inference_mode():
            for length in range(first, self.buffers.longest + 1, self._bucket):
                span = self.buffers.span(length)
                self._lay_masks(span, length)
                self.captured(("prefill", length), partial(self._fill, span))
                for how in ways:
                    if how is not Continuing.TRUE:  # which needs gradients, and no graph
                        self.captured(("steps", length, how), partial(self._steps, span, how))
        self._laid = (-1, -1)
        self._serial += 1

    def integrate(
        self,
        prefix: Prefix,
        state: torch.Tensor | None,
        noise: torch.Tensor | None,
        guidance: Guidance | None = None,
    ) -> torch.Tensor:
        """All solver steps: noise [H, D] -> chunk [H, D], float32."""
        if noise is None:
            raise ValueError("this head starts from noise: give noise [H, D]")
        how = None if guidance is None else guidance.how
        if how is Continuing.TRAINED and not self.config.row_time:
            raise ValueError("this network takes one time for all actions: it cannot be given some")
        if how is Continuing.TRUE:
            with torch.no_grad():  # inference tensors could not be differentiated
                span = self._open(prefix, state)
                self.solver.load(self.sample, noise, guidance)
                self._fresh(span, self.sample.noise, 0)  # leaves what is the same for all steps
                return self.solver.run(
                    self.sample, lambda x, step: self._velocity(span, x, step), how
                ).clone()
        with torch.inference_mode():
            span = self._open(prefix, state)
            self.solver.load(self.sample, noise, guidance)
            run = self.captured(("steps", span.length, how), lambda: self._steps(span, how))
            return run.clone()

    def noise(self, generator: torch.Generator) -> torch.Tensor:
        """Normal noise [H, D], drawn on the CPU."""
        return torch.randn(self.horizon, self.width, generator=generator)

    def example(self, words: int, generator: torch.Generator) -> Inputs:
        """Random pixels of all cameras, a prompt of so many words at most, a state of zeros."""
        config, side = self.config, self.config.image_size
        pixels = torch.rand(len(config.cameras), 3, side, side, generator=generator) * 2 - 1
        ids = torch.arange(4, 4 + min(words, config.max_text), device=self.device)
        return Inputs(pixels.to(self.device), ids, torch.zeros(config.state_width))

    def velocity(
        self, prefix: Prefix, x: torch.Tensor, step: int, begin: bool = True
    ) -> torch.Tensor:
        """The velocity [H, D] at x and one of the solver's steps, alone (tests, measurements).

        ``begin`` False leaves out what is done once a chunk; another velocity must have done it.
        """
        with torch.inference_mode():
            span = self._open(prefix, None)
            return (self._fresh if begin else self._velocity)(span, x, step)

    def _open(self, prefix: Prefix, state: torch.Tensor | None) -> Span:
        if prefix.serial != self._serial:
            raise ValueError("this prefix was written over by a later one: encode it again")
        if state is not None:
            self._replace_state(state)
        return self.buffers.span(len(prefix.mask))

    def _replace_state(self, state: torch.Tensor) -> None:
        raise ValueError("the state is in this model's prefix: encode it again")

    @property
    def _times(self) -> tuple[float, ...]:
        """What tables of time are made for: the solver's, and that of actions without noise."""
        return (*self.solver.times, 0.0) if self.config.row_time else self.solver.times

    def _steps(self, span: Span, how: Continuing | None) -> torch.Tensor:
        def velocity(x: torch.Tensor, step: int) -> torch.Tensor:
            return self._velocity(span, x, step) if step else self._fresh(span, x, 0)

        self._given = self.sample.weights > 0 if how is Continuing.TRAINED else None
        try:
            return self.solver.run(self.sample, velocity, how)
        finally:
            self._given = None

    def _fill(self, span: Span) -> torch.Tensor:
        """The language model over the prefix; of the last layer only K and V are needed."""
        text, length, x = self.config.shapes.text, span.length, span.x
        cos, sin = self._rope.cos[:length], self._rope.sin[:length]
        mask = span.prefix_mask if self.padded or self.prefix_is_masked else None
        for layer, keys, values in zip(self.layers, span.keys, span.values, strict=True):
            heads = text.heads if len(layer.out) else 0
            qkv = linear(norm(x, text.rms_eps), layer.qkv)
            q, k, v = split(qkv, heads, text.kv_heads, cos, sin)
            keys[:, :length].copy_(k)
            values[:, :length].copy_(v)
            if heads:
                x = x + linear(attend(q, k, v, mask), layer.out)
                x = x + mlp(norm(x, text.rms_eps), layer, text)
        return x

    def _lay_masks(self, span: Span, count: int) -> None:
        """Write both masks for a prefix of ``count`` valid rows."""
        for mask in (span.prefix_mask, span.suffix_mask):
            mask.zero_()
            mask[:, count : span.length] = MASKED

    @abstractmethod
    def _see(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels -> embeddings [V * tokens, C]."""

    @abstractmethod
    def _rows(self, features: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The rows of the prefix, in the language model's width, in order."""

    def _fresh(self, span: Span, x: torch.Tensor, step: int) -> torch.Tensor:
        """The velocity, and before it what is the same for all steps of a chunk."""
        return self._velocity(span, x, step)

    @abstractmethod
    def _velocity(self, span: Span, x: torch.Tensor, step: int) -> torch.Tensor:
        """x [H, D] float32 -> velocity [H, D] float32."""


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
