"""pi0 and pi0.5: PaliGemma's K and V, layer by layer, read by a narrower Gemma.

Sources: lerobot 0.6.1 ``modeling_pi0.py``, ``modeling_pi05.py`` and ``pi_gemma.py`` (openpi's
models), transformers ``modeling_pi0.py``. In pi0 the state is a row of the suffix that sees the
prefix and itself, but no action: so its K and V are computed once a chunk, in the pass of the
first step. In pi0.5 the state is in the prompt, and time enters through every norm of the expert
(adaRMS): scale, shift and gate are tables over the solver's steps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vla_ros.engine.flow.buffers import MASKED, Span, laid
from vla_ros.engine.flow.config import FlowConfig
from vla_ros.engine.flow.layers import (
    attend,
    layer_shapes,
    mlp,
    norm,
    norm_scale,
    read_layer,
    split,
)
from vla_ros.engine.flow.matrices import DECODER, HEAD, VISION, as_it_is, mapped
from vla_ros.engine.flow.model import FlowModel
from vla_ros.engine.flow.siglip import read_siglip, siglip_shapes
from vla_ros.engine.flow.suffix import TimedActions, linear_shapes, read_linear
from vla_ros.engine.flow.tables import time_table
from vla_ros.engine.flow.weights import Expected, Shape, Weights
from vla_ros.engine.packed.graphs import Capture
from vla_ros.engine.quantised.matrices import linear

_VLM = "paligemma_with_expert.paligemma."
TOWER, PROJECTOR = _VLM + "model.vision_tower.", _VLM + "model.multi_modal_projector.linear"
TEXT, _HEAD = _VLM + "model.language_model.", _VLM + "lm_head.weight"
EXPERT = "paligemma_with_expert.gemma_expert."
NORMS = ("input_layernorm", "post_attention_layernorm")


class PiModel(FlowModel):
    """Either of the two, by ``config.adaptive``."""

    def __init__(
        self,
        config: FlowConfig,
        weights: Weights,
        positions: torch.Tensor,
        like: torch.Tensor,
        capture: Capture | None = None,
        time_precision: torch.dtype = torch.float64,
    ) -> None:
        rows = 0 if config.adaptive else 1
        super().__init__(config, like, capture, rows + config.horizon, 1 + rows * config.horizon)
        text, expert = config.shapes.text, config.shapes.expert
        self._state_rows = rows
        self._tower = read_siglip(weights, TOWER, config.shapes.vision, positions, like)
        self._projector = mapped(weights, PROJECTOR, VISION, like, as_it_is(PROJECTOR))
        self._embedding = weights.take(TEXT + "embed_tokens.weight").to(like)
        self.layers = [
            read_layer(weights, f"{TEXT}layers.{i}.", text, like, DECODER,
                       parts="kv" if i == text.layers - 1 else "qkv")
            for i in range(text.layers)
        ]  # fmt: skip
        self._expert = [
            read_layer(weights, f"{EXPERT}model.layers.{i}.", expert, like, HEAD,
                       norms=not config.adaptive)
            for i in range(expert.layers)
        ]  # fmt: skip
        times = time_table(
            self._times, expert.hidden_size, config.min_period, config.max_period,
            time_precision,
        ).to(like.device)  # fmt: skip
        self._out = read_linear(weights, "action_out_proj").on(like.device)
        if config.adaptive:
            self._in = read_linear(weights, "action_in_proj").on(like.device)
            self._modulation = _Modulation(weights, config, times, like)
        else:
            self._timed = TimedActions(weights, times, like)
            self._state = read_linear(weights, "state_proj").on(like.device)
            scale = norm_scale(weights, EXPERT + "model.norm.weight", expert)
            self._out.weight.mul_(scale.to(like.device))

    def _see(self, pixels: torch.Tensor) -> torch.Tensor:
        return self._projector(self._tower(pixels)).flatten(0, 1)

    def _rows(self, features: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        words = F.embedding(ids, self._embedding) * self._embedding.shape[1] ** 0.5
        return features, words

    def _replace_state(self, state: torch.Tensor) -> None:
        if self.config.adaptive:
            super()._replace_state(state)
        self.buffers.state.copy_(state)

    def _lay_masks(self, span: Span, count: int) -> None:
        """Of pi0 the first row of the suffix mask is the state's: it sees no action."""
        super()._lay_masks(span, count)
        if self._state_rows:
            span.suffix_mask[0, span.length + 1 :] = MASKED

    def _fresh(self, span: Span, x: torch.Tensor, step: int) -> torch.Tensor:
        """pi0: state and actions in one pass. Alone the state's row would read all weights again,
        which on a GPU costs as much as a step."""
        if not self._state_rows:
            return self._velocity(span, x, step)
        state = self._state(self.buffers.state)[None]
        rows = torch.cat((state, self._timed(x, step, self._given))).to(self.dtype)
        return self._speed(self._run(span, rows, 0, step, span.suffix_mask)[1:], step)

    def _velocity(self, span: Span, x: torch.Tensor, step: int) -> torch.Tensor:
        rows = self._in(x) if self.config.adaptive else self._timed(x, step, self._given)
        rows = rows.to(self.dtype)
        return self._speed(self._run(span, rows, self._state_rows, step, self._hidden(span)), step)

    def _hidden(self, span: Span) -> torch.Tensor | None:
        """The mask of rows that see all there is; None where nothing is padding."""
        return span.suffix_mask[-1:] if self.padded else None

    def _speed(self, out: torch.Tensor, step: int) -> torch.Tensor:
        """The expert's output rows -> velocities."""
        out = norm(out.float(), self.config.shapes.expert.rms_eps)
        if self.config.adaptive:
            scale, shift, _ = self._at(self._modulation.final, step)
            out = out * scale + shift
        return self._out(out)

    def _run(
        self, span: Span, x: torch.Tensor, first: int, step: int, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Suffix rows from ``first`` on through the expert; they see all rows up to their end,
        but for what ``mask`` hides."""
        expert = self.config.shapes.expert
        begin, end = span.length + first, span.length + first + len(x)
        here = slice(first, first + len(x))
        cos, sin = self.buffers.cos[here], self.buffers.sin[here]
        mask = None if mask is None else mask[:, :end]
        for number, (layer, keys, values) in enumerate(
            zip(self._expert, span.keys, span.values, strict=True)
        ):
            h, gate = self._norm(x, number, 0, step)
            q, k, v = split(linear(h, layer.qkv), expert.heads, expert.kv_heads, cos, sin)
            rows = laid(keys, begin, k), laid(values, begin, v)
            out = linear(attend(q, *rows, mask), layer.out)
            x = x + (out if gate is None else out * gate)
            h, gate = self._norm(x, number, 1, step)
            out = mlp(h, layer, expert)
            x = x + (out if gate is None else out * gate)
        return x

    def _norm(
        self, x: torch.Tensor, layer: int, which: int, step: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        h = norm(x, self.config.shapes.expert.rms_eps)
        if not self.config.adaptive:
            return h, None
        scale, shift, gate = self._at(self._modulation.layers[:, layer, which], step)
        return torch.addcmul(shift, h, scale), gate

    def _at(self, table: torch.Tensor, step: int) -> torch.Tensor:
        """Of a table [N, 3, w] what belongs to a step: [3, w], or [3, H, w] where rows are
        given, which are at the last of the times."""
        if self._given is None:
            return table[step]
        return torch.where(self._given, table[-1][:, None], table[step][:, None])


class _Modulation:
    """adaRMS for every step: ``layers`` [N, L, 2, 3, w] and ``final`` [N, 3, w].

    The three are 1 + scale, shift and gate; ``final`` is float32, like what it is applied to.
    """

    def __init__(
        self, weights: Weights, config: FlowConfig, times: torch.Tensor, like: torch.Tensor
    ) -> None:
        first, second = (
            read_linear(weights, f"time_mlp_{n}").on(like.device) for n in ("in", "out")
        )
        with torch.no_grad():
            condition = F.silu(second(F.silu(first(times.float()))))

            def table(name: str) -> torch.Tensor:
                dense = read_linear(weights, f"{EXPERT}model.{name}.dense").on(like.device)
                out = dense(condition).view(len(times), 3, -1)
                out[:, 0] += 1.0
                return out

            count = config.shapes.expert.layers
            rows = [[table(f"layers.{i}.{n}") for n in NORMS] for i in range(count)]
            self.layers = torch.stack([torch.stack(pair, 1) for pair in rows], 1).to(like)
            self.final = table("norm")


def pi_expected(config: FlowConfig) -> Expected:
    """The tensors of a checkpoint.

    PaliGemma's embedding is there under its own name, or as the head of the published base
    models. LeRobot unties the two: where both are there, the head is an unused remainder.
    """
    text, expert = config.shapes.text, config.shapes.expert
    width, wide = expert.hidden_size, text.hidden_size
    embedding = (text.vocab_size, wide)
    must: dict[str, Shape] = siglip_shapes(TOWER, config.shapes.vision)
    must |= linear_shapes(PROJECTOR, config.shapes.vision.width, wide)
    must[TEXT + "embed_tokens.weight"] = embedding
    for number in range(text.layers):
        must |= layer_shapes(f"{TEXT}layers.{number}.", text)
    for number in range(expert.layers):
        base = f"{EXPERT}model.layers.{number}."
        must |= layer_shapes(base, expert, norms=not config.adaptive)
        if config.adaptive:
            for name in NORMS:
                must |= linear_shapes(f"{base}{name}.dense", width, 3 * width)
    must |= linear_shapes("action_in_proj", config.action_width, width)
    must |= linear_shapes("action_out_proj", width, config.action_width)
    if config.adaptive:
        must |= linear_shapes(f"{EXPERT}model.norm.dense", width, 3 * width)
        must |= linear_shapes("time_mlp_in", width, width)
        must |= linear_shapes("time_mlp_out", width, width)
    else:
        must[f"{EXPERT}model.norm.weight"] = (width,)
        must |= linear_shapes("state_proj", config.state_width, width)
        must |= linear_shapes("action_time_mlp_in", 2 * width, width)
        must |= linear_shapes("action_time_mlp_out", width, width)
    must[TEXT + "norm.weight"] = (wide,)
    spare = {_HEAD: embedding, EXPERT + "lm_head.weight": (text.vocab_size, width)}
    return Expected(must, spare, {TEXT + "embed_tokens.weight": _HEAD})
