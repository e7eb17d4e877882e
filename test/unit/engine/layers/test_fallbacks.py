"""What a library cannot do here is found out when a model is made, and said in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from support.engine import CPU
from vla_ros.engine.layers import backends, devices
from vla_ros.engine.layers.attention import TorchTail
from vla_ros.engine.layers.kernels.fused import PLAIN, AddNorm, Heads, rope_write_reference
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.pack import PackLayout, Planner, chain

CUDA = torch.device("cuda")
KERNELS = "vla_ros.engine.layers.kernels."
NO_COMPILER = RuntimeError("Failed to find C compiler. Please specify via CC\nsecond line")


class Shifted(TorchTail):
    """A kernel that reads the entry behind the one it should."""

    def __call__(self, layer: int, q: torch.Tensor, scale: float) -> torch.Tensor:
        self._mask = self._mask.roll(1, -1)
        return super().__call__(layer, q, scale)


def raises(*args: object) -> object:
    raise NO_COMPILER


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be tried on a GPU is tried here, and nothing counts as said."""
    devices.say.cache_clear()
    for name in ("check_rope_write", "check_tail", "check_between"):
        check = getattr(backends, name)
        here = lambda call, device, *rest, check=check: check(call, CPU, *rest)  # noqa: E731
        monkeypatch.setattr(backends, name, here)
    install(monkeypatch, rope_write=rope_write_reference, TritonTail=TorchTail, KERNELS=KIND)


#: kernels of their own, that do what torch does
KIND = AddNorm(*PLAIN)


def install(monkeypatch: pytest.MonkeyPatch, **kernels: object) -> None:
    """A Triton that is there and does this."""
    files = {"rope_write": "fused", "TritonTail": "tail_attention", "KERNELS": "fused"}
    for name, kernel in kernels.items():
        path = f"{KERNELS}{files[name]}_triton"
        module = sys.modules.get(path) or ModuleType(path)
        monkeypatch.setitem(sys.modules, path, module)
        monkeypatch.setattr(module, name, kernel, raising=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_triton_runs_all_kernels_are_taken(
    dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    backend = backends.choose_backend(CUDA, dtype, 16)
    assert (backend.name, backend.whole_slots) == ("Triton's tail attention", False)
    kv_cache = KVCache(1, 2, 64, 2, 16, dtype, CPU)
    attention = backend.make(
        kv_cache, Planner(kv_cache).plan(PackLayout((0,), tail=chain(0, 3, 1)))
    )
    assert isinstance(attention._tail, TorchTail)
    assert attention._rope_write is rope_write_reference
    assert backends.choose_between(CUDA, dtype, 64, 160) is KIND
    plain = backends.choose_backend(CUDA, dtype, 16, "torch")
    assert (plain.name, plain.whole_slots) == ("two products", True)
    assert not caplog.messages


@pytest.mark.parametrize(("kernel", "said"), [(raises, "C compiler"), (Shifted, "off by")])
def test_a_tail_that_fails_is_left_out_with_one_line(
    kernel: object,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    install(monkeypatch, TritonTail=kernel)
    for _ in ("target", "draft"):
        assert backends.choose_backend(CUDA, torch.float32, 16).name == "two products"
    (line,) = caplog.messages
    assert line.startswith("tail attention: Triton's kernel fails (")
    assert said in line and "second line" not in line
    assert line.endswith("): two products runs instead")


@pytest.mark.parametrize(
    ("kernel", "said"),
    [(raises, "C compiler"), (lambda *a: tuple(t + 1 for t in rope_write_reference(*a)), "off by")],
)
def test_a_rope_that_fails_is_left_out_with_one_line(
    kernel: Callable[..., object],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    install(monkeypatch, rope_write=kernel)
    assert backends.choose_rope_write(CUDA, 16) is None
    assert backends.choose_rope_write(CUDA, 16) is None
    (line,) = caplog.messages
    assert line.startswith("RoPE and KV write: Triton's kernel fails (") and said in line
    assert line.endswith("): torch runs instead")


@pytest.mark.parametrize(
    ("kernels", "said"),
    [
        (AddNorm(raises, raises), "C compiler"),  # type: ignore[arg-type]
        (PLAIN._replace(silu_mul=lambda x: PLAIN.silu_mul(-x)), "off by"),
        (PLAIN._replace(add_norm=lambda x, y, w, e: PLAIN.add_norm(x, 2 * y, w, e)), "off by"),
    ],
)
def test_what_lies_between_products_is_torch_where_kernels_fail(
    kernels: AddNorm,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    install(monkeypatch, KERNELS=kernels)
    assert backends.choose_between(CUDA, torch.float32, 64, 160) is PLAIN
    (line,) = caplog.messages
    assert line.startswith("add + norm, SiLU: Triton's kernels fails (") and said in line


def test_head_sizes_that_a_kernel_does_not_take(caplog: pytest.LogCaptureFixture) -> None:
    assert backends.choose_tail(CUDA, 80, torch.bfloat16, Heads(4, 2)) is None
    assert not caplog.messages


def test_without_triton_torch_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("fused", "tail_attention"):
        monkeypatch.setitem(sys.modules, f"{KERNELS}{name}_triton", None)
    assert backends.choose_backend(CUDA, torch.float32, 16).name == "two products"
    assert backends.choose_between(CUDA, torch.float32, 64, 160) is PLAIN
    assert len(caplog.messages) == 3
