"""How many kernels a GPU would run, counted on a CPU: an operator of torch that is no view is one,
and what torch has one kernel for there (norms, attention) is one too.

cuBLAS may split a product in two kernels, and copies between layouts that only a CPU needs are
counted: neither is seen without a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from vla_ros.engine.layers.kernels import torch_products
from vla_ros.engine.layers.kernels.fused import rotate
from vla_ros.engine.layers.tiles import Way
from vla_ros.engine.layers.tuner import PRODUCT, Tuner
from vla_ros.engine.models import towers, transformer
from vla_ros_lab.bench.passes import VIEWS

KERNELS = "vla_ros.engine.layers.kernels."
_NOTHING = VIEWS | {"empty", "empty_like", "empty_strided", "device", "new_empty"}
_ONE = (F.rms_norm, F.layer_norm, F.scaled_dot_product_attention)


class Launches(TorchDispatchMode):
    """``count`` of them while this is the mode, by :attr:`names`."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, int] = {}
        self._paused = False

    @property
    def count(self) -> int:
        return sum(self.names.values())

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
        name = function.overloadpacket.__name__
        if name not in _NOTHING and not self._paused:
            self.add(name)
        return function(*args, **(kwargs or {}))

    def add(self, name: str) -> None:
        self.names[name] = self.names.get(name, 0) + 1

    @contextmanager
    def as_one(self, name: str) -> Iterator[None]:
        """What runs within is a single kernel."""
        if not self._paused:
            self.add(name)
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before


class _Fused(TorchFunctionMode):
    def __init__(self, launches: Launches) -> None:
        super().__init__()
        self._launches = launches

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
        if function not in _ONE:
            return function(*args, **(kwargs or {}))
        with self._launches.as_one(function.__name__):
            return function(*args, **(kwargs or {}))


def launches(call: Callable[[], Any]) -> Launches:
    """Of one call, as it would be on CUDA."""
    found = Launches()
    with torch.no_grad(), ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(transformer, "_attend_products", transformer._attend_sdpa)
        patch.setattr(towers, "attend_all", F.scaled_dot_product_attention)
        patch.setattr(torch_products, "wide_type", lambda device: torch.bfloat16)
        patch.setattr(StandIn, "launches", found)
        stack.enter_context(found)
        stack.enter_context(_Fused(found))
        call()
    return found


class Always(Tuner):
    """Takes the first way of all that lies around a product, and torch's product."""

    def __init__(self) -> None:
        super().__init__(lambda way: F.linear, lambda call: 1.0)

    def _choose(self, kind: str, *rest: Any) -> Way | None:
        return None if kind == PRODUCT else rest[-1][0]


class StandIn:
    """Triton's kernels of a flow layer in torch, with the sums rounded as there; each is counted as
    one."""

    launches: Launches | None = None


def _kernel(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(function)
    def counted(*args: Any) -> torch.Tensor:
        if StandIn.launches is None:
            return function(*args)
        with StandIn.launches.as_one(function.__name__):
            return function(*args)

    return counted


def _sums(x: Any, weight: Any, bias: Any, scale: Any, eps: float) -> torch.Tensor:
    exact = x.float()
    factor = (exact.square().mean(1, keepdim=True) + eps).rsqrt()
    rows = exact if scale is None else (exact * scale.float()).to(x.dtype).float()
    made = rows @ weight.float().T * factor
    return made if bias is None else made + bias.float()


@_kernel
def norm_qkv_rope(x, weight, bias, scale, eps, heads, cos, sin, into, way):  # type: ignore[no-untyped-def]
    query, kv = heads
    made = _sums(x, weight, bias, scale, eps).view(len(x), query + 2 * kv, -1)
    turned = query + kv
    made[:, :turned] = rotate(made[:, :turned], cos[:, None], sin[:, None])
    out = made.to(x.dtype)
    if into is not None:
        into[0].copy_(out[:, query:turned].transpose(0, 1))
        into[1].copy_(out[:, turned:].transpose(0, 1))
    return out


@_kernel
def norm_linear(x, weight, bias, scale, eps, way):  # type: ignore[no-untyped-def]
    return _sums(x, weight, bias, scale, eps).to(x.dtype)


@_kernel
def norm_gate_up(x, weight, bias, scale, eps, gelu, way):  # type: ignore[no-untyped-def]
    gate, up = _sums(x, weight, bias, scale, eps).chunk(2, 1)
    return ((F.gelu(gate, approximate="tanh") if gelu else F.silu(gate)) * up).to(x.dtype)


@_kernel
def attend(q, k, v, mask, way):  # type: ignore[no-untyped-def]
    heads, count, dim = q.shape
    k, v = (part.float().repeat_interleave(heads // len(k), 0) for part in (k, v))
    scores = q.float() @ k.transpose(1, 2)
    weights = (scores if mask is None else scores + mask.float()).softmax(-1)
    return (weights @ v).transpose(0, 1).reshape(count, heads * dim).to(q.dtype)


@_kernel
def product(x, weight, bias, way, gate=None, added=None):  # type: ignore[no-untyped-def]
    made = x.float() @ weight.float().T
    made = made if bias is None else made + bias.float()
    made = made if gate is None else made * gate.float()
    return (made if added is None else made + added.float()).to(x.dtype)


def stand_in(patch: pytest.MonkeyPatch) -> None:
    """Put these where the kernels would be imported."""
    steps = SimpleNamespace(
        norm_qkv_rope=norm_qkv_rope, norm_linear=norm_linear, norm_gate_up=norm_gate_up,
        attend=attend, product=product,
    )  # fmt: skip
    import vla_ros.engine.layers.kernels as package

    patch.setitem(sys.modules, KERNELS + "layer_triton", steps)  # type: ignore[arg-type]
    patch.setattr(package, "layer_triton", steps, raising=False)
