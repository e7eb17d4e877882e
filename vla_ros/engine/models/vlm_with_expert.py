"""A VLM and an action expert that reads its KV cache layer by layer: what pi0, pi0.5 and SmolVLA
share.

K and V of the prefix and, behind them, of the suffix lie in one buffer a layer. The prefix's are
computed once a chunk, straight into it, and never cropped or copied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vla_ros.core.numbers import round_up
from vla_ros.engine.io.flow_config import FlowConfig
from vla_ros.engine.io.linear import Linear, read_linear
from vla_ros.engine.io.quantize import DECODER, read_table
from vla_ros.engine.io.tensors import Plain, Table
from vla_ros.engine.io.weights import Weights
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.models.base import MASKED, FlowPolicy, Inputs, Span, joined
from vla_ros.engine.models.siglip import SigLip, read_siglip, tower_table
from vla_ros.engine.models.transformer import (
    Layer,
    Rope,
    attend,
    layer_table,
    linear_residual,
    norm,
    norm_gate_up,
    norm_qkv_rope,
    read_layer,
    rope,
    tuner_of,
)


@dataclass(frozen=True, slots=True, eq=False)
class KVSpan(Span):
    """Also the rows of the suffix: ``joint_keys`` and ``joint_values`` [G, length + tail, d] per
    layer. ``x`` [length, C]; ``prefix_mask`` [length, length] and ``suffix_mask``
    [rows, length + tail] are added to scores."""

    x: torch.Tensor
    joint_keys: tuple[torch.Tensor, ...]
    joint_values: tuple[torch.Tensor, ...]
    prefix_mask: torch.Tensor
    suffix_mask: torch.Tensor


class VLMWithExpert(FlowPolicy[KVSpan]):
    """The language model over the prefix, its buffers and masks.

    ``tail`` is the number of suffix rows that have K and V, ``mask_rows`` how many rows of the
    suffix mask differ; ``tower`` and ``text`` are where their tensors begin.
    """

    config: FlowConfig
    joins = True
    #: what holds one observation
    buffers: tuple[str, ...] = (
        "key_cache", "value_cache", "_x", "_prefix_mask", "_suffix_mask", "filled", "cos", "sin"
    )  # fmt: skip
    prefix_is_masked = False  # rows of the prefix that do not see all the others

    def __init__(
        self,
        config: FlowConfig,
        weights: Weights,
        positions: torch.Tensor,
        like: torch.Tensor,
        capture: Capture | None,
        *,
        tower: str,
        text: str,
        tail: int,
        mask_rows: int,
    ) -> None:
        super().__init__(
            config, like, capture, longest=config.longest, state_width=config.state_width
        )
        shape = config.shapes.text
        self.tower: SigLip = read_siglip(weights, tower, config.shapes.vision, positions, like)
        self.embed_tokens = read_table(weights, text + "embed_tokens.weight", like)
        last, table = shape.layers - 1, layer_table(shape)
        self.layers: list[Layer] = [
            read_layer(weights, f"{text}layers.{i}.", table, like, DECODER, kv_alone=i == last)
            for i in range(shape.layers)
        ]
        self.rotary = rope(shape, self.longest + tail, like.device)
        self.tail = tail
        entry = (shape.layers, shape.kv_heads, self.longest + tail, shape.head_dim)
        self.key_cache, self.value_cache = like.new_zeros(entry), like.new_zeros(entry)
        self._x = like.new_zeros(self.longest, shape.hidden_size)
        self._prefix_mask = like.new_zeros(self.longest, self.longest)
        self._suffix_mask = like.new_zeros(mask_rows, self.longest + tail)
        #: rows of the prefix that are no padding
        self.filled = torch.zeros(1, dtype=torch.int32, device=like.device)
        self.cos = torch.zeros(tail, shape.head_dim, device=like.device)  # of the suffix
        self.sin = torch.zeros_like(self.cos)
        self._spans: dict[int, KVSpan] = {}
        self._masked = (-1, -1)  # length and valid rows that the masks are for

    def span(self, length: int) -> KVSpan:
        """The views for a prefix of this length."""
        if length not in self._spans:
            if not 0 < length <= self.longest:
                raise ValueError(f"a prefix has at most {self.longest} rows, wanted {length}")
            end = length + self.tail
            self._spans[length] = KVSpan(
                (length,),
                length,
                self.key_cache[:, :, :length].unbind(),
                self.value_cache[:, :, :length].unbind(),
                self._x[:length],
                self.key_cache[:, :, :end].unbind(),
                self.value_cache[:, :, :end].unbind(),
                self._prefix_mask[:length, :length],
                self._suffix_mask[:, :end],
            )
        return self._spans[length]

    def blank_span(self, image_rows: int, length: int) -> KVSpan:
        span = self.span(length)
        self.mask(span, length)
        self._masked = (-1, -1)
        return span

    def prefix_rows(self, features: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The rows of the prefix in order: images, words."""
        words = F.embedding(ids, self.embed_tokens) * self.embed_tokens.shape[1] ** 0.5
        return features, words

    def embed_prefix(self, features: torch.Tensor, ids: torch.Tensor) -> tuple[KVSpan, int]:
        rows = self.prefix_rows(features, ids)
        count = sum(map(len, rows))
        span = self.span(round_up(count, self.bucket))
        torch.cat(rows, out=span.x[:count])
        span.x[count:].zero_()
        if self._masked != (span.length, count):
            self.mask(span, count)
            self.cos.copy_(self.rotary.cos[count : count + self.tail])
            self.sin.copy_(self.rotary.sin[count : count + self.tail])
            self._masked = (span.length, count)
        return span, count

    def mask(self, span: KVSpan, count: int) -> None:
        """Write both masks for a prefix of ``count`` valid rows."""
        for mask in (span.prefix_mask, span.suffix_mask):
            mask.zero_()
            mask[:, count : span.length] = MASKED
        self.filled.fill_(count)

    def session(self) -> VLMWithExpert:
        other = super().session()
        assert isinstance(other, VLMWithExpert)
        for name in self.buffers:
            setattr(other, name, torch.zeros_like(getattr(self, name)))
        other._spans, other._masked = {}, (-1, -1)
        return other

    def fill_kv_cache(self, span: KVSpan) -> torch.Tensor:
        return self.fill_together([(self, span)])

    def fill_together(self, spans: Sequence[tuple[VLMWithExpert, KVSpan]]) -> torch.Tensor:
        """Fill the KV caches of several spans in one pass; each span attends to itself. Of the last
        layer only K and V are needed."""
        text, x = self.config.shapes.text, joined([span.x for _, span in spans])
        sizes = [span.length for _, span in spans]
        table = self.rotary
        rotary = Rope(*(joined([t[:n] for n in sizes]) for t in (table.cos, table.sin)))
        for number, layer in enumerate(self.layers):
            heads = text.heads if len(layer.out) else 0
            buffers = [(span.keys[number], span.values[number]) for _, span in spans]
            into = buffers[0] if len(spans) == 1 else None
            made = norm_qkv_rope(x, layer, text, (heads, text.kv_heads), rotary, into)
            parts = (part.split(sizes, 1) for part in made)
            out = []
            for (model, span), own, q, k, v in zip(spans, buffers, *parts, strict=True):
                if into is None:
                    own[0].copy_(k)
                    own[1].copy_(v)
                if heads:
                    hidden = model._hidden(span)
                    filled = None if model.prefix_is_masked else model.filled
                    out.append(attend(q, own[0], own[1], hidden, tuner_of(layer.out), filled))
            if heads:
                x = linear_residual(x, joined(out), layer.out)
                x = linear_residual(x, norm_gate_up(x, layer, text), layer.down)
        return x

    def _hidden(self, span: KVSpan) -> torch.Tensor | None:
        """The mask of the prefix's rows; None: they see all there is."""
        if self.prefix_is_masked:
            return span.prefix_mask
        return span.prefix_mask[:1] if self.padded else None  # all rows see the same

    def read_rows(self, given: Inputs) -> torch.Tensor:
        """The prefix of an observation as the last layer reads it: [rows, C], normalized. It takes
        the place of the prefix that was there."""
        features = self.image_features(given.pixels)
        with torch.inference_mode():
            span, count = self.embed_prefix(features, given.ids)
            x = self.captured(("prefill", *span.key), lambda: self.fill_kv_cache(span))
            rows = norm(x[:count], self.config.shapes.text.rms_eps)
        self._serial += 1
        return rows

    def example(self, words: int, generator: torch.Generator) -> Inputs:
        config, side = self.config, self.config.image_size
        pixels = torch.rand(len(config.cameras), 3, side, side, generator=generator) * 2 - 1
        ids = torch.arange(4, 4 + min(words, config.max_text), device=self.device)
        return Inputs(pixels.to(self.device), ids, torch.zeros(config.state_width))

    def time_table(self, precision: torch.dtype = torch.float64) -> torch.Tensor:
        """Embeddings [N, w] of the times of :attr:`times`, in the expert's width."""
        config = self.config
        width, periods = config.shapes.expert.hidden_size, (config.min_period, config.max_period)
        return time_table(self.times, width, *periods, precision).to(self.device)


class ActionTimeMlp:
    """action_time_mlp_out(silu(action_time_mlp_in([action_in_proj(x), time]))) for every step of
    the solver.

    The two maps before the SiLU are linear in x and the times are known: one matrix [w, D] and
    a bias per step [N, w], made in float64.
    """

    def __init__(self, weights: Weights, times: torch.Tensor, like: torch.Tensor) -> None:
        action_in = read_linear(weights, "action_in_proj").on(like.device)
        mlp_in = read_linear(weights, "action_time_mlp_in").on(like.device)
        self._mlp_out: Linear = read_linear(weights, "action_time_mlp_out").on(like.device)
        of_actions, of_time = mlp_in.weight.double().chunk(2, 1)
        self._matrix = (of_actions @ action_in.weight.double()).float()
        constant = of_actions @ action_in.bias.double() + mlp_in.bias.double()
        # The embedding of time is float32 where the reference joins it with the actions.
        self._biases = (times.float().double() @ of_time.T + constant).float()

    def __call__(
        self, x: torch.Tensor, step: int, given: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [H, D] -> [H, w]. Rows where ``given`` [H, 1] are at the last of the times."""
        if given is None:
            return self._mlp_out(F.silu(F.linear(x, self._matrix, self._biases[step])))
        bias = torch.where(given, self._biases[-1], self._biases[step])
        return self._mlp_out(F.silu(F.linear(x, self._matrix) + bias))


def time_table(
    times: tuple[float, ...] | torch.Tensor,
    width: int,
    min_period: float,
    max_period: float,
    precision: torch.dtype = torch.float64,
) -> torch.Tensor:
    """Sine and cosine of N times, such as the solver's: [N, width].

    The times are float32 and the rest ``precision``: float64 in openpi and LeRobot
    (``create_sinusoidal_pos_embedding``), float32 in transformers' pi0.
    """
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=precision)
    period = min_period * (max_period / min_period) ** fraction
    angles = 1.0 / period * 2 * math.pi * torch.as_tensor(times, dtype=torch.float32)[:, None]
    return torch.cat((angles.sin(), angles.cos()), 1)


def suffix_kv(
    span: KVSpan, layer: int, first: int, count: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Where K and V [G, n, d] of ``count`` rows of the suffix go, from its row ``first`` on. Under
    autograd, which cannot follow a buffer, nowhere."""
    if torch.is_grad_enabled():
        return None
    begin = span.length + first
    both = span.joint_keys[layer], span.joint_values[layer]
    return both[0][:, begin : begin + count], both[1][:, begin : begin + count]


def append_kv(
    span: KVSpan, layer: int, first: int, k: torch.Tensor, v: torch.Tensor, there: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of prefix and suffix [G, S, d] up to the end of these, [G, n, d] each, which are
    written from the suffix's row ``first`` on, unless they are ``there`` (:func:`suffix_kv`)."""
    begin, count = span.length + first, k.shape[1]
    both = span.joint_keys[layer], span.joint_values[layer]
    if torch.is_grad_enabled():
        keys, values = (
            torch.cat((buffer[:, :begin], rows), 1)
            for buffer, rows in zip(both, (k, v), strict=True)
        )
        return keys, values
    if not there:
        for buffer, rows in zip(both, (k, v), strict=True):
            buffer[:, begin : begin + count].copy_(rows)
    return both[0][:, : begin + count], both[1][:, : begin + count]


def vlm_table(config: FlowConfig, tower: str, text: str) -> Table:
    """The tower at ``tower`` and the language model at ``text``."""
    one, vision = config.shapes.text, config.shapes.vision
    return {
        tower: tower_table(SigLip, vision, vision.patches),
        f"{text}embed_tokens.weight": Plain((one.vocab_size, one.hidden_size)),
        f"{text}layers": [layer_table(one)] * one.layers,
        f"{text}norm.weight": Plain((one.hidden_size,)),
    }


def action_table(config: FlowConfig, *, time_mlp: bool = True) -> Table:
    """The maps around the expert, but for the state's."""
    width, action = config.shapes.expert.hidden_size, config.action_width
    mlp: Table = {"action_time_mlp_in": (2 * width, width), "action_time_mlp_out": (width, width)}
    ends: Table = {"action_in_proj": (action, width), "action_out_proj": (width, action)}
    return {**ends, **mlp} if time_mlp else ends
