"""Transformer layers of prefixes and experts: Gemma, Llama and Qwen2, batch of one.

Sources: transformers ``modeling_gemma.py`` and ``modeling_llama.py``. What does not depend on
the input is done once at load, in float32: the weight of a norm and the scale of the scores go
into the projection behind them, Q, K, V become one product, gate and up another.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vla_ros.engine.io.config import TextConfig
from vla_ros.engine.io.quantize import Take, matrix
from vla_ros.engine.io.weights import Shape, Weights
from vla_ros.engine.layers.kernels.fused import rotate
from vla_ros.engine.layers.linear import Weight, linear


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; C wide, H query and G KV heads of size d, M in the middle.

    ``qkv`` is [(H + 2 G) d, C], or [H d, C] where K and V come from elsewhere, or [2 G d, C]
    in a last layer that only leaves K and V behind; ``gate_up`` [2 M, C]. ``bias`` is Qwen2's, of
    Q, K and V [(H + 2 G) d].
    """

    qkv: Weight
    out: Weight
    gate_up: Weight
    down: Weight
    bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Rope:
    """cos and sin [positions, d], float32."""

    cos: torch.Tensor
    sin: torch.Tensor


def rope(config: TextConfig, positions: int, device: torch.device) -> Rope:
    """Rotary tables; float64 inside, since both references round differently."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float64)
    angles = torch.outer(
        torch.arange(positions, dtype=torch.float64),
        config.rope_theta ** (-steps / config.head_dim),
    )
    angles = torch.cat((angles, angles), -1)
    return Rope(angles.cos().float().to(device), angles.sin().float().to(device))


def norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x); the weight is in the projection that follows."""
    return F.rms_norm(x, (x.shape[-1],), None, eps)


def mlp(x: torch.Tensor, layer: Layer, config: TextConfig) -> torch.Tensor:
    """GeGLU (tanh) of Gemma, SwiGLU of Llama."""
    gate, up = linear(x, layer.gate_up).chunk(2, -1)
    act = F.gelu(gate, approximate="tanh") if config.kind == "gemma" else F.silu(gate)
    return linear(act * up, layer.down)


def forward(
    x: torch.Tensor,
    layer: Layer,
    config: TextConfig,
    cos: torch.Tensor,
    sin: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """A whole layer over rows [n, C], which see each other but for what ``mask`` [n, n] hides."""
    qkv = linear(norm(x, config.rms_eps), layer.qkv, layer.bias)
    q, k, v = split(qkv, config.heads, config.kv_heads, cos, sin)
    x = x + linear(attend(q, k, v, mask), layer.out)
    return x + mlp(norm(x, config.rms_eps), layer, config)


def split(
    qkv: torch.Tensor, q_heads: int, kv_heads: int, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[n, (H + 2 G) d] and cos, sin [n, d] -> rotated q [H, n, d] and k, and v [G, n, d].

    The rotation is float32 whatever the weights are, as both references do it.
    """
    heads = qkv.view(len(qkv), q_heads + 2 * kv_heads, -1).transpose(0, 1)
    qk = rotate(heads[: q_heads + kv_heads].float(), cos, sin).to(qkv.dtype)
    return qk[:q_heads], qk[q_heads:], heads[q_heads + kv_heads :]


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """q [H, m, d] (scaled), k and v [G, S, d], mask [m or 1, S] added to the scores -> [m, H d].

    On a CPU two plain products: its SDPA packs K and V anew on every call.
    """
    heads, count, dim = q.shape
    if q.is_cuda:
        added = None if mask is None else mask.expand(count, -1)[None, None]
        out = F.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=added, scale=1.0, enable_gqa=heads != len(k)
        )[0]
    else:
        folded = q.reshape(len(k), -1, dim)
        scores = torch.matmul(folded, k.transpose(1, 2))
        if mask is not None:
            scores.view(heads, count, -1).add_(mask)
        weights = scores.softmax(-1, dtype=torch.float32).to(v)
        out = torch.matmul(weights, v).view(heads, count, dim)
    return out.transpose(0, 1).reshape(count, heads * dim)


def read_layer(
    weights: Weights,
    base: str,
    config: TextConfig,
    like: torch.Tensor,
    part: str,
    *,
    norms: bool = True,
    scaled: bool = True,
    parts: str = "qkv",
    biases: bool = False,
) -> Layer:
    """The layer at ``base`` of a ``part``, on the device of ``like``, in its dtype or the part's
    format.

    ``norms`` False: the norms have no weights of their own (adaRMS). ``scaled``: Q is by the scale
    of the scores. ``parts`` "q": K and V come from elsewhere; "kv": nothing but K and V is needed.
    ``biases``: Q, K and V have some.
    """

    def behind(norm: str, made: torch.Tensor, take: Take) -> torch.Tensor:
        return made * _scale(take, f"{base}{norm}.weight", config) if norms else made

    def qkv(take: Take) -> torch.Tensor:
        pieces = []
        for one in parts:
            piece = take(f"{base}self_attn.{one}_proj.weight")
            pieces.append(piece * config.head_dim**-0.5 if one == "q" and scaled else piece)
        return behind("input_layernorm", torch.cat(pieces), take)

    def gate_up(take: Take) -> torch.Tensor:
        pieces = [take(f"{base}mlp.{one}_proj.weight") for one in ("gate", "up")]
        return behind("post_attention_layernorm", torch.cat(pieces), take)

    bias = None
    if biases:
        each = [weights.take(f"{base}self_attn.{one}_proj.bias") for one in parts]
        bias = torch.cat(
            [
                b * config.head_dim**-0.5 if one == "q" and scaled else b
                for one, b in zip(parts, each, strict=True)
            ]
        ).to(like)
    first = matrix(weights, f"{base}self_attn.qkv", part, like, qkv)
    if "q" not in parts:
        empty = like.new_empty(0)
        return Layer(first, empty, empty, empty)
    out, down = (f"{base}{name}_proj" for name in ("self_attn.o", "mlp.down"))
    return Layer(
        first,
        matrix(weights, out, part, like, lambda take: take(f"{out}.weight")),
        matrix(weights, f"{base}mlp.gate_up", part, like, gate_up),
        matrix(weights, down, part, like, lambda take: take(f"{down}.weight")),
        bias,
    )


def norm_scale(weights: Weights, name: str, config: TextConfig) -> torch.Tensor:
    """What a norm multiplies by: w, or 1 + w in Gemma."""
    return _scale(weights.take, name, config)


def _scale(take: Take, name: str, config: TextConfig) -> torch.Tensor:
    return take(name) + (1.0 if config.kind == "gemma" else 0.0)


def layer_shapes(
    base: str,
    config: TextConfig,
    *,
    norms: bool = True,
    kv_in: int | None = None,
    biases: bool = False,
) -> dict[str, Shape]:
    """Tensors of one layer; ``kv_in``: the width that K and V are made from."""
    width, middle = config.hidden_size, config.intermediate_size
    wide, narrow = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, Shape] = {
        "self_attn.q_proj.weight": (wide, width),
        "self_attn.k_proj.weight": (narrow, kv_in or width),
        "self_attn.v_proj.weight": (narrow, kv_in or width),
        "self_attn.o_proj.weight": (width, wide),
        "mlp.gate_proj.weight": (middle, width),
        "mlp.up_proj.weight": (middle, width),
        "mlp.down_proj.weight": (width, middle),
    }
    if norms:
        shapes |= {f"{n}.weight": (width,) for n in ("input_layernorm", "post_attention_layernorm")}
    if biases:
        shapes |= {
            f"self_attn.{one}_proj.bias": (size,)
            for one, size in (("q", wide), ("k", narrow), ("v", narrow))
        }
    return {base + n: s for n, s in shapes.items()}
