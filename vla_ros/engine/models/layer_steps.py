"""The steps of a layer, each in the fastest way: torch's arithmetic, which is in
:mod:`~vla_ros.engine.models.transformer`, or one Triton kernel.

A step whose weight is :class:`~vla_ros.engine.layers.tuner.TunedWeight` (``gemm: auto``) is timed
in these ways when a pass is captured; any other is torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from vla_ros.engine.io.config import TextConfig
from vla_ros.engine.layers.linear import Weight
from vla_ros.engine.layers.tiles import Way, attention_ways, paired_ways, sum_ways
from vla_ros.engine.layers.tuner import TunedWeight, Tuner
from vla_ros.engine.models import transformer
from vla_ros.engine.models.transformer import Heads, Layer, Modulation, Rope

Result = TypeVar("Result", bound="torch.Tensor | tuple[torch.Tensor, ...]")


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
    """Norm, Q K V and RoPE as one kernel or as :func:`.transformer.norm_qkv_rope`."""

    def run(way: Way | None, weight: Any, x: torch.Tensor) -> Heads:
        if way is None:
            own = layer if weight is layer.qkv else replace(layer, qkv=weight)
            return transformer.norm_qkv_rope(x, own, config, heads, rope, into, modulation)
        bias, scale = _folded(modulation, layer.bias)
        every = _kernels().norm_qkv_rope(
            x, weight.values, bias, scale, config.rms_eps, heads, rope.cos, rope.sin, into, way
        )
        q, k, v = every.transpose(0, 1).split((heads[0], heads[1], heads[1]))
        return (q, k, v) if into is None else (q, *into)

    some = paired_ways(len(x), x.dtype) if _foldable(modulation) else ()
    return _fastest("norm + QKV + RoPE", layer.qkv, (x,), run, some)


def norm_gate_up(
    x: torch.Tensor, layer: Layer, config: TextConfig, modulation: Modulation | None = None
) -> torch.Tensor:
    """Norm, gate times up as one kernel or as :func:`.transformer.norm_gate_up`."""

    def run(way: Way | None, weight: Any, x: torch.Tensor) -> torch.Tensor:
        if way is None:
            own = layer if weight is layer.gate_up else replace(layer, gate_up=weight)
            return transformer.norm_gate_up(x, own, config, modulation)
        bias, scale = _folded(modulation, None)
        made: torch.Tensor = _kernels().norm_gate_up(
            x, weight.values, bias, scale, config.rms_eps, config.kind == "gemma", way
        )
        return made

    some = paired_ways(len(x), x.dtype) if _foldable(modulation) else ()
    return _fastest("norm + gate x up", layer.gate_up, (x,), run, some)


def norm_linear(
    x: torch.Tensor,
    norm: torch.Tensor,
    weight: Weight,
    bias: torch.Tensor | None,
    eps: float,
    act: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Norm with a weight, and a product, as one kernel or as :func:`.transformer.norm_linear`."""

    def run(way: Way | None, weight: Any, x: torch.Tensor) -> torch.Tensor:
        if way is None:
            return transformer.norm_linear(x, norm, weight, bias, eps, act)
        made: torch.Tensor
        if act is None:
            made = _kernels().norm_linear(x, weight.values, bias, norm, eps, way)
        else:
            made = _kernels().norm_gate_up(x, weight.values, bias, norm, eps, False, way)
        return made

    kind = "norm + product" if act is None else "norm + gate x up"
    return _fastest(kind, weight, (x,), run, paired_ways(len(x), x.dtype))


def linear_residual(
    x: torch.Tensor, made: torch.Tensor, weight: Weight, gate: torch.Tensor | None = None
) -> torch.Tensor:
    """Product and residual as one kernel or as :func:`.transformer.linear_residual`."""

    def run(way: Way | None, weight: Any, x: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        if way is None:
            return transformer.linear_residual(x, made, weight, gate)
        out: torch.Tensor = _kernels().product(made, weight.values, None, way, gate, x)
        return out

    some = sum_ways(len(x), x.dtype) if gate is None or gate.dim() == 1 else ()
    return _fastest("product + residual", weight, (x, made), run, some)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    tuner: Tuner | None = None,
) -> torch.Tensor:
    """Attention as one kernel or as :func:`.transformer.attend`; ``tuner``: of its layer's
    weights."""
    some = () if tuner is None or torch.is_grad_enabled() else attention_ways(q.dtype)
    if tuner is None or not some:
        return transformer.attend(q, k, v, mask)

    def run(
        way: Way | None, weight: None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        if way is None:
            return transformer.attend(q, k, v, mask)
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


def _fastest(
    kind: str,
    weight: Weight,
    given: tuple[torch.Tensor, ...],
    run: Callable[..., Result],
    some: Sequence[Way],
) -> Result:
    """``run(way, weight, *given)`` in the fastest of ``some`` ways and None, torch's, where a tuner
    has the weight."""
    if some and isinstance(weight, TunedWeight) and not torch.is_grad_enabled():
        return weight.tuner.fastest(kind, weight, given, run, some)
    return run(None, weight, *given)


def _foldable(modulation: Modulation | None) -> bool:
    """Whether it can go into the product behind the norm."""
    return modulation is None or modulation.product is not None


def _folded(
    modulation: Modulation | None, bias: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The bias of the product, and the scale of what goes into it."""
    if modulation is None:
        return bias, None
    assert bias is None  # no expert with adaRMS has one
    return modulation.product, modulation.scale


def _kernels() -> Any:
    """The kernels, imported where one is tried: elsewhere there may be no Triton."""
    from vla_ros.engine.layers.kernels import layer_triton

    return layer_triton
