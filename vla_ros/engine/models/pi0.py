"""pi0 and pi0.5: PaliGemma's K and V, layer by layer, read by a narrower Gemma.

Sources: lerobot 0.6.1 ``modeling_pi0.py``, ``modeling_pi05.py`` and ``pi_gemma.py`` (openpi's
models), transformers ``modeling_pi0.py``. In pi0 the state is a row of the suffix that sees the
prefix and itself, but no action: so its K and V are computed once a chunk, in the pass of the
first step. In pi0.5 the state is in the prompt, and time enters through every norm of the expert
(adaRMS): scale, shift and gate are tables over the solver's steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from vla_ros.engine.io.flow_config import FlowConfig
from vla_ros.engine.io.linear import read_linear
from vla_ros.engine.io.quantize import HEAD, VISION, mapped
from vla_ros.engine.io.tensors import Plain, Table, shapes
from vla_ros.engine.io.weights import Expected, Weights
from vla_ros.engine.layers.devices import pinned
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.models.base import MASKED, joined
from vla_ros.engine.models.transformer import (
    Layer,
    Modulation,
    Rope,
    attend,
    layer_table,
    linear_residual,
    norm,
    norm_gate_up,
    norm_qkv_rope,
    norm_scale,
    read_layer,
    shift_products,
    tuner_of,
)
from vla_ros.engine.models.vlm_with_expert import (
    ActionTimeMlp,
    KVSpan,
    VLMWithExpert,
    action_table,
    append_kv,
    suffix_kv,
    vlm_table,
)

_VLM = "paligemma_with_expert.paligemma."
TOWER, PROJECTOR = _VLM + "model.vision_tower.", _VLM + "model.multi_modal_projector.linear"
TEXT, LM_HEAD = _VLM + "model.language_model.", _VLM + "lm_head.weight"
EXPERT = "paligemma_with_expert.gemma_expert."
NORMS = ("input_layernorm", "post_attention_layernorm")


class Pi0(VLMWithExpert):
    """Either of the two, by ``config.adaptive``: pi0.5 is."""

    def __init__(
        self,
        config: FlowConfig,
        weights: Weights,
        positions: torch.Tensor,
        like: torch.Tensor,
        capture: Capture | None = None,
        time_precision: torch.dtype = torch.float64,
    ) -> None:
        self.state_rows = 0 if config.adaptive else 1
        super().__init__(
            config,
            weights,
            positions,
            like,
            capture,
            tower=TOWER,
            text=TEXT,
            tail=self.state_rows + config.horizon,
            mask_rows=1 + self.state_rows * config.horizon,
        )
        expert, table = config.shapes.expert, expert_layer(config)
        self._projector = mapped(weights, PROJECTOR, VISION, like)
        self._expert = [
            read_layer(weights, f"{EXPERT}model.layers.{i}.", table, like, HEAD)
            for i in range(expert.layers)
        ]
        times = self.time_table(time_precision)
        self.action_out_proj = read_linear(weights, "action_out_proj").on(like.device)
        if config.adaptive:
            self.action_in_proj = read_linear(weights, "action_in_proj").on(like.device)
            self._ada_rms = _AdaRms(weights, config, times, like, self._expert)
        else:
            self.action_time_mlp = ActionTimeMlp(weights, times, like)
            self.state_proj = read_linear(weights, "state_proj").on(like.device)
            scale = norm_scale(weights, EXPERT + "model.norm.weight", expert)
            self.action_out_proj.weight.mul_(scale.to(like.device))

    def encode_images(self, pixels: torch.Tensor) -> torch.Tensor:
        return self._projector(self.tower(pixels)).flatten(0, 1)

    def replace_state(self, span: KVSpan, state: torch.Tensor) -> None:
        if self.config.adaptive:
            super().replace_state(span, state)
        self.state.copy_(pinned(state, self.device), non_blocking=True)

    def mask(self, span: KVSpan, count: int) -> None:
        """Mask of the suffix; the first row of pi0's is the state's, which sees no action."""
        super().mask(span, count)
        if self.state_rows:
            span.suffix_mask[0, span.length + 1 :] = MASKED

    def embed_suffix(self, x: torch.Tensor, step: int, with_state: bool = False) -> torch.Tensor:
        """In pi0's first step the state's row comes along: alone it would read all weights again,
        which on a GPU costs as much as a step."""
        if self.config.adaptive:
            return self.action_in_proj(x).to(self.dtype)
        rows = self.action_time_mlp(x, step, self.given)
        if with_state:
            rows = torch.cat((self.state_proj(self.state)[None], rows))
        return rows.to(self.dtype)

    def velocity(self, span: KVSpan, rows: torch.Tensor, step: int) -> torch.Tensor:
        return self.velocities([(self, span, rows)], step)[0]

    def velocities(
        self, suffixes: Sequence[tuple[Pi0, KVSpan, torch.Tensor]], step: int
    ) -> Sequence[torch.Tensor]:
        """Rows see their prefix and their suffix up to its end, but for what the mask hides."""
        expert, x = self.config.shapes.expert, joined([rows for *_, rows in suffixes])
        count = len(suffixes[0][2])
        first = 0 if count > self.horizon else self.state_rows
        tables = ([model.cos for model, *_ in suffixes], [model.sin for model, *_ in suffixes])
        rotary = Rope(*(joined([t[first : first + count] for t in table]) for table in tables))
        masks = [model._seen(span, count, first) for model, span, _ in suffixes]
        given = _given([model for model, *_ in suffixes])
        heads = expert.heads, expert.kv_heads
        for number, layer in enumerate(self._expert):
            change = self._modulation(number, 0, step, given)
            into = suffix_kv(suffixes[0][1], number, first, count) if len(suffixes) == 1 else None
            qkv = norm_qkv_rope(x, layer, expert, heads, rotary, into, change)
            out = []
            each = zip(suffixes, masks, *(part.split(count, 1) for part in qkv), strict=True)
            for (_, span, _), mask, q, k, v in each:
                keys, values = append_kv(span, number, first, k, v, there=into is not None)
                out.append(attend(q, keys, values, mask, tuner_of(layer.out)))
            x = linear_residual(x, joined(out), layer.out, None if change is None else change.gate)
            change = self._modulation(number, 1, step, given)
            made = norm_gate_up(x, layer, expert, change)
            x = linear_residual(x, made, layer.down, None if change is None else change.gate)
        x = joined([rows[-self.horizon :] for rows in x.split(count)])
        made = norm(x.float(), expert.rms_eps)
        if self.config.adaptive:
            scale, shift, _ = _at(self._ada_rms.final, step, given)
            made = made * scale + shift
        return self.action_out_proj(made).split(self.horizon)

    def _seen(self, span: KVSpan, count: int, first: int) -> torch.Tensor | None:
        """The mask of a suffix of so many rows; None: all of them see all there is."""
        if not first and self.state_rows:
            mask = span.suffix_mask
        elif self.padded:
            mask = span.suffix_mask[-1:]
        else:
            return None
        return mask[:, : span.length + first + count]

    def _modulation(
        self, layer: int, which: int, step: int, given: torch.Tensor | None
    ) -> Modulation | None:
        """Modulation (scale, shift, gate) of one of a layer's norms in pi0.5."""
        if not self.config.adaptive:
            return None
        scale, shift, gate = _at(self._ada_rms.layers[:, layer, which], step, given)
        products = self._ada_rms.products[layer]
        known = products[which][step] if products and given is None else None
        return Modulation(scale, shift, gate, known)


def _at(table: torch.Tensor, step: int, given: torch.Tensor | None) -> torch.Tensor:
    """A step's rows of a table [N, 3, w]: [3, w], or [3, n, w] where rows are ``given`` [n, 1],
    which are at the last of the times."""
    if given is None:
        return table[step]
    return torch.where(given, table[-1][:, None], table[step][:, None])


def _given(models: Sequence[Pi0]) -> torch.Tensor | None:
    """Which rows of all suffixes are given without noise; None: not any."""
    if all(model.given is None for model in models):
        return None
    none = torch.zeros(models[0].horizon, 1, dtype=torch.bool, device=models[0].device)
    return joined([none if model.given is None else model.given for model in models])


class _AdaRms:
    """adaRMS for every step: ``layers`` [N, L, 2, 3, w] and ``final`` [N, 3, w].

    The three are 1 + scale, shift and gate; ``final`` is float32, like what it is applied to.
    ``products`` are the shifts times the weight behind their norm, [N, ...] float32 by layer and
    norm, where a kernel may take them.
    """

    def __init__(
        self,
        weights: Weights,
        config: FlowConfig,
        times: torch.Tensor,
        like: torch.Tensor,
        expert: Sequence[Layer],
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
            shifts = self.layers[:, :, :, 1].unbind(1)
            self.products = [shift_products(*each) for each in zip(shifts, expert, strict=True)]


def pi0_expected(config: FlowConfig) -> Expected:
    """The tensors of a checkpoint.

    PaliGemma's embedding is there under its own name, or as the head of the published base
    models. LeRobot unties the two: where both are there, the head is an unused remainder.
    """
    text, width = config.shapes.text, config.shapes.expert.hidden_size
    own: Table = {
        f"{EXPERT}model.norm.weight": Plain((width,)),
        "state_proj": (config.state_width, width),
    }
    if config.adaptive:
        dense: Table = {f"{EXPERT}model.norm.dense": (width, 3 * width)}
        own = {**dense, "time_mlp_in": (width, width), "time_mlp_out": (width, width)}
    table: Table = {
        **vlm_table(config, TOWER, TEXT),
        PROJECTOR: (config.shapes.vision.width, text.hidden_size),
        **action_table(config, time_mlp=not config.adaptive),
        f"{EXPERT}model.layers": [expert_layer(config)] * config.shapes.expert.layers,
        **own,
    }
    must = shapes(table)
    embedding = TEXT + "embed_tokens.weight"
    spare = {LM_HEAD: must[embedding], EXPERT + "lm_head.weight": (text.vocab_size, width)}
    return Expected(must, spare, {embedding: LM_HEAD})


def expert_layer(config: FlowConfig) -> Table:
    """A layer of the expert."""
    expert, width = config.shapes.expert, config.shapes.expert.hidden_size
    dense = {f"{name}.dense": (width, 3 * width) for name in NORMS} if config.adaptive else {}
    return {**layer_table(expert, norms=not config.adaptive), **dense}
