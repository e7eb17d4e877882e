"""Transformer layers of prefixes and experts: Gemma, Llama and Qwen2, batch of one.

Sources: transformers ``modeling_gemma.py`` and ``modeling_llama.py``. What does not depend on
the input is done once at load, in float32: the weight of a norm and the scale of the scores go
into the projection behind them, Q, K, V become one product, gate and up another.

A layer is four steps and its attention, in torch. One Triton kernel may do a step whose weight is
:class:`~vla_ros.engine.layers.tuner.TunedWeight` (``gemm: auto``): the two are timed when a pass is
captured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F

from vla_ros.engine.io.config import TextConfig
from vla_ros.engine.io.tensors import Matrix, Plain, Table, read_weight
from vla_ros.engine.io.weights import Weights
from vla_ros.engine.layers.flash import flash
from vla_ros.engine.layers.kernels.fused import rotate
from vla_ros.engine.layers.linear import Weight, linear
from vla_ros.engine.layers.tiles import Way, attention_ways, paired_ways, sum_ways
from vla_ros.engine.layers.tuner import TunedWeight, Tuner


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
    """Rows x / rms(x); the weight is in the projection that follows."""
    return F.rms_norm(x, (x.shape[-1],), None, eps)


def mlp(x: torch.Tensor, layer: Layer, config: TextConfig) -> torch.Tensor:
    """MLP of a layer: GeGLU (tanh) of Gemma, SwiGLU of Llama."""
    return linear(_gate_up(x, layer.gate_up, config), layer.down)


def _gate_up(x: torch.Tensor, weight: Weight, config: TextConfig) -> torch.Tensor:
    gate, up = linear(x, weight).chunk(2, -1)
    act = F.gelu(gate, approximate="tanh") if config.kind == "gemma" else F.silu(gate)
    return act * up


Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Modulation:
    """pi0.5's adaRMS of one norm: the normed rows times ``scale`` plus ``shift``, and the result
    behind them times ``gate``; [C] each, or [n, C] where rows have times of their own. ``product``:
    the shift times the weight that is behind the norm [N], where that is known."""

    scale: torch.Tensor
    shift: torch.Tensor
    gate: torch.Tensor
    product: torch.Tensor | None = None


def forward(
    x: torch.Tensor,
    layer: Layer,
    config: TextConfig,
    cos: torch.Tensor,
    sin: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """A whole layer over rows [n, C], which see each other but for what ``mask`` [n, n] hides."""
    q, k, v = norm_qkv_rope(x, layer, config, (config.heads, config.kv_heads), Rope(cos, sin))
    x = linear_residual(x, attend(q, k, v, mask, tuner_of(layer.out)), layer.out)
    return linear_residual(x, norm_gate_up(x, layer, config), layer.down)


def norm_qkv_rope(
    x: torch.Tensor,
    layer: Layer,
    config: TextConfig,
    heads: tuple[int, int],
    rope: Rope,
    into: tuple[torch.Tensor, torch.Tensor] | None = None,
    modulation: Modulation | None = None,
) -> Heads:
    """Norm, Q K V and RoPE: x [n, C] -> q [H, n, d], k and v [G, n, d]; ``heads``: H, G, 0 of what
    a layer has not; ``rope`` holds the n positions. K and V go to ``into``, two [G, n, d].
    """

    def plain(weight: Weight, x: torch.Tensor) -> Heads:
        made = linear(_normed(x, config, modulation), weight, layer.bias)
        q, k, v = split(made, *heads, rope.cos, rope.sin)
        return (q, k, v) if into is None else (q, into[0].copy_(k), into[1].copy_(v))

    def fused(way: Way, weight: torch.Tensor, x: torch.Tensor) -> Heads:
        bias, scale = _folded(modulation, layer.bias)
        every = _kernels().norm_qkv_rope(
            x, weight, bias, scale, config.rms_eps, heads, rope.cos, rope.sin, into, way
        )
        q, k, v = every.transpose(0, 1).split((heads[0], heads[1], heads[1]))
        return (q, k, v) if into is None else (q, *into)

    return _fastest("norm + QKV + RoPE", layer.qkv, (x,), plain, fused, _paired(modulation))


def norm_gate_up(
    x: torch.Tensor, layer: Layer, config: TextConfig, modulation: Modulation | None = None
) -> torch.Tensor:
    """Norm, gate and up, and the one's activation times the other: x [n, C] -> [n, M]."""

    def plain(weight: Weight, x: torch.Tensor) -> torch.Tensor:
        return _gate_up(_normed(x, config, modulation), weight, config)

    def fused(way: Way, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        bias, scale = _folded(modulation, None)
        gelu = config.kind == "gemma"
        made: torch.Tensor = _kernels().norm_gate_up(
            x, weight, bias, scale, config.rms_eps, gelu, way
        )
        return made

    return _fastest("norm + gate x up", layer.gate_up, (x,), plain, fused, _paired(modulation))


def norm_linear(
    x: torch.Tensor,
    norm: torch.Tensor,
    weight: Weight,
    bias: torch.Tensor | None,
    eps: float,
    act: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """The product of rows x [n, C] that are normed with weight ``norm`` [C] -> [n, N]; ``act`` of
    it, which is SiLU of its one half times the other."""

    def plain(weight: Weight, x: torch.Tensor) -> torch.Tensor:
        made = linear(F.rms_norm(x, (x.shape[-1],), norm, eps), weight, bias)
        return made if act is None else act(made)

    def fused(way: Way, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor
        if act is None:
            made = _kernels().norm_linear(x, weight, bias, norm, eps, way)
        else:
            made = _kernels().norm_gate_up(x, weight, bias, norm, eps, False, way)
        return made

    kind = "norm + product" if act is None else "norm + gate x up"
    return _fastest(kind, weight, (x,), plain, fused, paired_ways)


def linear_residual(
    x: torch.Tensor, made: torch.Tensor, weight: Weight, gate: torch.Tensor | None = None
) -> torch.Tensor:
    """x [n, C] + ``gate`` times the product of ``made`` [n, K] and a weight [C, K]."""

    def plain(weight: Weight, x: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        product = linear(made, weight)
        return x + (product if gate is None else product * gate)

    def fused(way: Way, weight: torch.Tensor, x: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _kernels().product(made, weight, None, way, gate, x)
        return out

    tilings = sum_ways if gate is None or gate.dim() == 1 else None
    return _fastest("product + residual", weight, (x, made), plain, fused, tilings)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    tuner: Tuner | None = None,
    filled: torch.Tensor | None = None,
) -> torch.Tensor:
    """q [H, m, d] (scaled), k and v [G, S, d], mask [m or 1, S] added to the scores -> [m, H d].

    ``tuner``: of its layer's weights. ``filled`` int32 [1]: all that the mask hides is what lies
    behind so many of S. On a CPU two plain products: its SDPA packs K and V anew on
    every call.
    """
    plain = partial(_attend_sdpa, filled=filled) if q.is_cuda else _attend_products
    if tuner is None or torch.is_grad_enabled() or not (some := attention_ways(q.dtype)):
        return plain(q, k, v, mask)

    def run(
        way: Way | None, weight: None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        if way is None:
            return plain(q, k, v, mask)
        made: torch.Tensor = _kernels().attend(q, k, v, mask, way)
        return made

    return tuner.fastest("attention", None, (q, k, v), run, some)


def tuner_of(weight: Weight) -> Tuner | None:
    """The tuner that chooses a weight's product; None: it is torch's or its format's."""
    return weight.tuner if isinstance(weight, TunedWeight) else None


def shift_products(shifts: torch.Tensor, layer: Layer) -> list[torch.Tensor]:
    """The shifts [..., 2, w] of adaRMS times the weights behind the two norms of a layer, float32,
    for :attr:`Modulation.product`; none where no kernel may take them."""
    if not isinstance(layer.qkv, TunedWeight) or not isinstance(layer.gate_up, TunedWeight):
        return []
    weights = layer.qkv.values, layer.gate_up.values
    return [shifts[..., norm, :].float() @ weight.float().T for norm, weight in enumerate(weights)]


Tilings = Callable[[int, torch.dtype], tuple[Way, ...]]
Result = TypeVar("Result", bound="torch.Tensor | tuple[torch.Tensor, ...]")


def _fastest(
    kind: str,
    weight: Weight,
    given: tuple[torch.Tensor, ...],
    plain: Callable[..., Result],
    fused: Callable[..., Result],
    tilings: Tilings | None,
) -> Result:
    """A step by torch, ``plain(weight, *given)``. Where a tuner has the weight: by the fastest of
    this and one kernel, ``fused(way, matrix, *given)``, in the ``tilings`` for so many rows; None:
    no kernel can take it."""
    if tilings is None or not isinstance(weight, TunedWeight) or torch.is_grad_enabled():
        return plain(weight, *given)
    if not (some := tilings(len(given[0]), given[0].dtype)):
        return plain(weight, *given)

    def run(way: Way | None, tuned: TunedWeight, *given: torch.Tensor) -> Result:
        return plain(tuned, *given) if way is None else fused(way, tuned.values, *given)

    return weight.tuner.fastest(kind, weight, given, run, some)


def _paired(modulation: Modulation | None) -> Tilings | None:
    """Tilings of a product behind a norm, which takes the norm in."""
    return paired_ways if modulation is None or modulation.product is not None else None


def _folded(
    modulation: Modulation | None, bias: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The bias of the product behind a norm, and the scale of what goes into it."""
    if modulation is None:
        return bias, None
    assert bias is None  # no expert with adaRMS has one
    return modulation.product, modulation.scale


def _kernels() -> Any:
    """The Triton kernels, imported where one is tried: elsewhere there may be no Triton."""
    from vla_ros.engine.layers.kernels import layer_triton

    return layer_triton


def _normed(x: torch.Tensor, config: TextConfig, modulation: Modulation | None) -> torch.Tensor:
    h = norm(x, config.rms_eps)
    return h if modulation is None else torch.addcmul(modulation.shift, h, modulation.scale)


def split(
    qkv: torch.Tensor, q_heads: int, kv_heads: int, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Heads of a fused projection: [n, (H + 2 G) d] and cos, sin [n, d] -> rotated q [H, n, d] and
    k, and v [G, n, d].

    The rotation is float32 whatever the weights are, as both references do it.
    """
    heads = qkv.view(len(qkv), q_heads + 2 * kv_heads, -1).transpose(0, 1)
    qk = rotate(heads[: q_heads + kv_heads].float(), cos, sin).to(qkv.dtype)
    return qk[:q_heads], qk[q_heads:], heads[q_heads + kv_heads :]


def _attend_products(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    heads, count, dim = q.shape
    folded = q.reshape(len(k), -1, dim)
    scores = torch.matmul(folded, k.transpose(1, 2))
    if mask is not None:
        scores.view(heads, count, -1).add_(mask)
    weights = scores.softmax(-1, dtype=torch.float32).to(v)
    out = torch.matmul(weights, v).view(heads, count, dim)
    return out.transpose(0, 1).reshape(count, heads * dim)


def _attend_sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    filled: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention by flash-attn where it runs, else by torch's function, heads that share K and V as
    rows of one head: with a mask torch has no kernel that takes fewer of K and V
    (pytorch#191085), and copies them, with all scores in float32."""
    heads, count, dim = q.shape
    if mask is None or filled is not None:
        rows = q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None]
        made = flash(*rows, 1.0, filled=filled)
        if made is not None:
            return made.reshape(count, heads * dim)
    group = heads // len(k)
    if mask is not None:
        mask = mask.expand(group * count, -1) if len(mask) == 1 else mask.repeat(group, 1)
        mask = mask[None, None]
    folded = q.reshape(len(k), group * count, dim)
    out = F.scaled_dot_product_attention(folded[None], k[None], v[None], attn_mask=mask, scale=1.0)
    # On CUDA its heads lie beside each other, so with several groups this is no view.
    return out.reshape(heads, count, dim).transpose(0, 1).reshape(count, heads * dim)


def layer_table(config: TextConfig, *, norms: bool = True, kv_in: int | None = None) -> Table:
    """The tensor table of one layer, see :func:`read_layer`.

    ``norms`` False: the norms have no weights of their own (adaRMS). ``kv_in``: K and V are made
    elsewhere, of rows so wide. Qwen3's Q goes through a norm, so no scale is folded into it.
    """
    width, middle, dim = config.hidden_size, config.intermediate_size, config.head_dim
    q = {"self_attn.q_proj": (width, config.heads * dim)}
    kv = {f"self_attn.{n}_proj": (kv_in or width, config.kv_heads * dim) for n in "kv"}
    gate_up = {f"mlp.{n}_proj": (width, middle) for n in ("gate", "up")}
    scale, offset = 1.0 if config.kind == "qwen3" else dim**-0.5, norm_offset(config)
    first, second = ("input_layernorm", "post_attention_layernorm") if norms else ("", "")
    return {
        "self_attn.qkv": Matrix(
            q if kv_in else q | kv, scale, first, offset=offset, bias=config.qkv_bias
        ),
        **{f"{n}.weight": Plain(size[::-1]) for n, size in kv.items() if kv_in},
        "self_attn.o_proj.weight": Plain((width, config.heads * dim)),
        "mlp.gate_up": Matrix(gate_up, 1.0, second, offset=offset, bias=False),
        "mlp.down_proj.weight": Plain((width, middle)),
        **{f"{name}.weight": Plain((width,)) for name in (first, second) if norms},
    }


def read_layer(
    weights: Weights, base: str, table: Table, like: torch.Tensor, part: str, kv_alone: bool = False
) -> Layer:
    """The layer at ``base`` of a ``part``, on the device of ``like``, in its dtype or the part's
    format. ``kv_alone``: nothing but K and V is needed."""
    read = partial(read_weight, weights, base, part=part, like=like)
    first = table["self_attn.qkv"]
    assert isinstance(first, Matrix)
    if kv_alone:
        kv = {name: size for name, size in first.maps.items() if "q_proj" not in name}
        one, empty = replace(first, maps=kv, scale=1.0), like.new_empty(0)
        return Layer(read({"self_attn.qkv": one}, "self_attn.qkv"), empty, empty, empty)
    bias = first.stacked(weights.take, base, "bias").to(like) if first.bias else None
    names = ("self_attn.qkv", "self_attn.o_proj", "mlp.gate_up", "mlp.down_proj")
    qkv, out, gate_up, down = (read(table, name) for name in names)
    return Layer(qkv, out, gate_up, down, bias)


def norm_scale(weights: Weights, name: str, config: TextConfig) -> torch.Tensor:
    """The factor of a norm [C]: w, or 1 + w in Gemma."""
    return weights.take(name) + norm_offset(config)


def norm_offset(config: TextConfig) -> float:
    """The number that is added to the weight of a norm."""
    return 1.0 if config.kind == "gemma" else 0.0
