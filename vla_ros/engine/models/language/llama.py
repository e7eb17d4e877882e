"""Llama and Qwen2 over packed attention; reads transformers' tensor names.

Source: transformers ``modeling_llama.py`` and ``modeling_qwen2.py``, which are the oracle of
the tests. Q, K, V are one product, gate and up another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from vla_ros.engine.io.config import TextConfig
from vla_ros.engine.io.streamed import Kept, matrix_of
from vla_ros.engine.layers.attention import Attention
from vla_ros.engine.layers.devices import tried
from vla_ros.engine.layers.int8 import Int8
from vla_ros.engine.layers.kernels.fused import PLAIN, AddNorm, Heads, Pair, signed
from vla_ros.engine.layers.linear import LowBit, Weight, for_one_row, linear
from vla_ros.engine.layers.prepacked import Prepacked, one_row
from vla_ros.engine.layers.tuner import Tuner
from vla_ros.engine.models.language.base import PackedLayers
from vla_ros.engine.models.transformer import linear_residual, norm_linear, tuner_of

STEPS = "a kernel a step"
_ALIKE = 4  # layers that are timed in turn: the cache has forgotten the first


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer: QKV fused [(H + 2 Hkv) D, C], gate and up fused [2 M, C]."""

    norm1: torch.Tensor
    qkv: Weight
    qkv_bias: torch.Tensor | None
    out: Weight
    norm2: torch.Tensor
    gate_up: Weight
    down: Weight


class LlamaDecoder(PackedLayers):
    """Llama's and Qwen2's :class:`~vla_ros.engine.layers.runner.Decoder`."""

    def __init__(
        self,
        config: TextConfig,
        tensors: Mapping[str, torch.Tensor],
        prefix: str = "language_model.",
        max_positions: int = 4096,
        quantized: Mapping[str, LowBit] | None = None,
        prepack: bool = False,
        tuner: Tuner | None = None,
        between: AddNorm = PLAIN,
    ) -> None:
        """``prepack``: matrices go from ``tensors``, the caller's own where they are :class:`Kept`,
        into the order that a CPU multiplies in. ``tuner`` chooses the kernels of their products,
        ``between`` are the operators between products."""
        self.config, self._between = config, between
        self._packed: list[tuple[list[str], list[int], Prepacked]] = []
        kept = tensors if isinstance(tensors, Kept) else Kept(tensors)
        self.embedding = kept[prefix + "model.embed_tokens.weight"]
        self._final_norm = kept[prefix + "model.norm.weight"]
        few = quantized or {}
        head = prefix + "lm_head.weight"
        self._head: Weight
        if head in few:
            self._head = few[head].ready()
        elif prepack:
            self._head = (
                Prepacked.of(self.embedding) if config.tied else self._prepacked(kept, [head])
            )
        else:
            self._head = self.embedding if config.tied else kept[head]
            if tuner is not None:
                self._head = tuner.of(self._head)

        def matrix(names: list[str]) -> Weight:
            """One weight of those that are multiplied together."""
            if names[0] in few:
                return matrix_of(few, names).ready()
            if prepack:
                return self._prepacked(kept, names)
            whole = kept.fused(names)
            return whole if tuner is None else tuner.of(whole)

        self._layers = [_layer(config, kept, matrix, prefix, i) for i in range(config.layers)]
        cos, sin = rope_tables(config, max_positions, self.embedding)
        self._cos, self._sin = cos, signed(sin)
        self._scale = config.head_dim**-0.5
        self._one_row: Any = None  # see prepare_one_row

    @property
    def head(self) -> Weight:
        return self._head

    @property
    def packed(self) -> list[Prepacked]:
        """The matrices that were prepacked in the place of others; a head that is tied is none."""
        return [matrix for _, _, matrix in self._packed]

    def unpacked(self) -> dict[str, torch.Tensor]:
        """The matrices that were prepacked, by name, made anew."""
        found: dict[str, torch.Tensor] = {}
        for names, sizes, packed in self._packed:
            found |= zip(names, packed.whole().split(sizes), strict=True)
        return found

    def _prepacked(self, kept: Kept, names: list[str]) -> Prepacked:
        whole, sizes = kept.taken(names)
        packed = Prepacked.of(whole)
        self._packed.append((names, sizes, packed))
        return packed

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, self.embedding)

    def tapped(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        rows: torch.Tensor,
        layers: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states and the outputs of some layers; of a single token by functions of one
        row."""
        alone = attention.alone
        if alone is None or self._one_row is None or one_row() is None:
            return super().tapped(x, positions, attention, rows, layers)
        cos, sin = self._cos[positions], self._sin[positions]
        entries = alone.kv_cache.arrays(alone.slot)
        return self._one_row(  # type: ignore[no-any-return]
            x, cos, sin, entries, alone.index, alone.sees, layers
        )

    def prepare_one_row(self) -> None:
        """Let passes of a single token on one core of a CPU go through functions of their own from
        here on, where all weights can be read so and it runs when it is tried."""
        functions = one_row() if self.embedding.device.type == "cpu" else None
        if functions is None or self._one_row is not None:
            return
        self._head = for_one_row(self._head)
        self._layers = [
            replace(
                layer,
                qkv=for_one_row(layer.qkv),
                out=for_one_row(layer.out),
                gate_up=for_one_row(layer.gate_up),
                down=for_one_row(layer.down),
            )
            for layer in self._layers
        ]
        made = [_for_one_row(layer, functions) for layer in self._layers]
        if not all(made):
            return
        run = functions.OneRow(made, self._final_norm, self.config.rms_eps)
        heads, dtype = Heads(self.config.heads, self.config.kv_heads), self._cos.dtype
        numba = partial(run.tried, heads, self.config.head_dim, dtype)
        self._one_row = tried("a pass of one token", "Numba", numba, "torch")

    def _first(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self._layers[0].norm1, self.config.rms_eps)

    def _qkv(self, number: int, x: torch.Tensor, normed: torch.Tensor | None) -> torch.Tensor:
        layer = self._layers[number]
        if normed is None:
            return norm_linear(x, layer.norm1, layer.qkv, layer.qkv_bias, self.config.rms_eps)
        return linear(normed, layer.qkv, layer.qkv_bias)

    def _rest(
        self, number: int, x: torch.Tensor, out: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        last = number + 1 == len(self._layers)
        norm = self._final_norm if last else self._layers[number + 1].norm1
        if not self._stepwise(x, out):
            return self._between_products(self._layers[number], x, out, norm)
        x = self._steps(self._layers[number], x, out)
        return x, F.rms_norm(x, (x.shape[-1],), norm, self.config.rms_eps) if last else None

    def _between_products(
        self, layer: Layer, x: torch.Tensor, out: torch.Tensor, norm: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The rest of a layer, the operators between two products as one kernel."""
        eps, (add_norm, silu_mul) = self.config.rms_eps, self._between
        x, normed = add_norm(x, linear(out, layer.out), layer.norm2, eps)
        return add_norm(x, linear(silu_mul(linear(normed, layer.gate_up)), layer.down), norm, eps)

    def _steps(self, layer: Layer, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """The rest of a layer, each product with what lies around it as one kernel where that is
        faster; no norm behind it."""
        eps, silu_mul = self.config.rms_eps, self._between.silu_mul
        x = linear_residual(x, out, layer.out)
        made = norm_linear(x, layer.norm2, layer.gate_up, None, eps, silu_mul)
        return linear_residual(x, made, layer.down)

    def _stepwise(self, x: torch.Tensor, out: torch.Tensor) -> bool:
        """Whether :meth:`_steps` is taken for so many rows, the next layer's Q, K and V
        included."""
        tuner, eps = tuner_of(self._layers[0].down), self.config.rms_eps
        if tuner is None:
            return False

        def run(way: str | None, layer: Layer, x: torch.Tensor, out: torch.Tensor) -> Pair:
            if way is None:
                x, normed = self._between_products(layer, x, out, layer.norm1)
                return x, linear(normed, layer.qkv, layer.qkv_bias)
            x = self._steps(layer, x, out)
            return x, norm_linear(x, layer.norm1, layer.qkv, layer.qkv_bias, eps)

        return tuner.way("layer", self._layers[:_ALIKE], (x, out), run, (STEPS,)) is not None


def _for_one_row(layer: Layer, functions: Any) -> tuple[Any, ...]:
    """Arguments of the function of a layer of one row; () where a matrix cannot be read so."""
    pairs = []
    for weight in (layer.qkv, layer.out, layer.gate_up, layer.down):
        if isinstance(weight, Int8) and weight.packed is not None:
            pairs.append((weight.packed.blocks, weight.packed.scale.numpy()))
        else:
            blocks = weight.blocks if isinstance(weight, Prepacked) else None
            pairs.append((blocks, functions.NO_SCALE))
    if any(blocks is None for blocks, _ in pairs):
        return ()
    norm1, norm2 = functions.as_floats(layer.norm1), functions.as_floats(layer.norm2)
    bias = functions.NO_SCALE if layer.qkv_bias is None else functions.as_floats(layer.qkv_bias)
    qkv, out, gate_up, down = pairs
    return norm1, qkv, bias, out, norm2, gate_up, down


def rope_tables(
    config: TextConfig, positions: int, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [positions, head_dim], computed in fp32, in the model's dtype."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32)
    inverse = 1.0 / config.rope_theta ** (steps / config.head_dim)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse)
    angles = torch.cat((angles, angles), -1)
    return angles.cos().to(like), angles.sin().to(like)


def _layer(
    config: TextConfig,
    tensors: Kept,
    matrix: Callable[[list[str]], Weight],
    prefix: str,
    number: int,
) -> Layer:
    base = f"{prefix}model.layers.{number}."
    qkv = [f"{base}self_attn.{n}_proj" for n in "qkv"]
    gate_up = [f"{base}mlp.{n}_proj.weight" for n in ("gate", "up")]
    bias = tensors.fused([n + ".bias" for n in qkv]) if config.qkv_bias else None
    return Layer(
        norm1=tensors[base + "input_layernorm.weight"],
        qkv=matrix([n + ".weight" for n in qkv]),
        qkv_bias=bias,
        out=matrix([base + "self_attn.o_proj.weight"]),
        norm2=tensors[base + "post_attention_layernorm.weight"],
        gate_up=matrix(gate_up),
        down=matrix([base + "mlp.down_proj.weight"]),
    )
