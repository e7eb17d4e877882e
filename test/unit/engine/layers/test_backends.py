"""Which attention is taken where, and that what is tried is what will run: its type, its heads."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from support.engine import CPU
from vla_ros.engine.layers import backends, devices
from vla_ros.engine.layers.attention import CpuAttention, PackedAttention, TorchTail
from vla_ros.engine.layers.kernels.fused import PLAIN, AddNorm, Heads, rope_write_reference
from vla_ros.engine.layers.kv_cache import KVCache
from vla_ros.engine.layers.pack import PackLayout, Planner, chain

GPU, KERNELS = torch.device("cuda:1"), "vla_ros.engine.layers.kernels."


class Kernel(TorchTail):
    """A tail's attention of its own, that does what torch does."""


OWN = AddNorm(*PLAIN)
LAYOUT = PackLayout((0,), tail=chain(0, 3, 1))


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, ...]]:
    """A Triton that is there, and checks that write down what they are given."""
    found: dict[str, tuple[Any, ...]] = {}
    kernels = {"rope_write": rope_write_reference, "TritonTail": Kernel, "KERNELS": OWN}
    files = {"rope_write": "fused", "TritonTail": "tail_attention", "KERNELS": "fused"}
    for name, kernel in kernels.items():
        path = f"{KERNELS}{files[name]}_triton"
        module = sys.modules.get(path) or ModuleType(path)
        monkeypatch.setitem(sys.modules, path, module)
        monkeypatch.setattr(module, name, kernel, raising=False)
    for name in ("check_rope_write", "check_tail", "check_between"):
        note = lambda *given, name=name: found.update({name: given})  # noqa: E731
        monkeypatch.setattr(backends, name, note)
    devices.say.cache_clear()
    return found


def made(backend: backends.Backend, dtype: torch.dtype = torch.float32) -> PackedAttention:
    kv_cache = KVCache(1, 1, 16, 2, 16, dtype, CPU)
    return backend.make(kv_cache, Planner(kv_cache).plan(LAYOUT))


def test_a_cpu_has_an_attention_of_its_own_unless_plain_torch_is_asked_for() -> None:
    own = backends.choose_backend(CPU, torch.float32, 16)
    plain = backends.choose_backend(CPU, torch.float32, 16, "torch")
    assert type(made(own)) is CpuAttention
    assert type(made(plain)) is PackedAttention
    for backend in (own, plain):
        assert (backend.name, backend.whole_slots) == ("two products", True)
        assert made(backend)._rope_write is None


def test_kernels_are_tried_on_the_device_with_the_models_type_and_heads(
    tried: dict[str, tuple[Any, ...]],
) -> None:
    heads = Heads(14, 2)
    backend = backends.choose_backend(GPU, torch.bfloat16, 64, heads=heads)
    assert tried == {
        "check_rope_write": (rope_write_reference, GPU, torch.bfloat16, 64, heads),
        "check_tail": (Kernel, GPU, torch.bfloat16, 64, heads),
    }
    assert (backend.name, backend.whole_slots) == ("Triton's tail attention", False)
    assert made(backend)._rope_write is rope_write_reference
    assert type(made(backend)) is PackedAttention
    assert type(made(backend)._tail) is Kernel
    assert backends.choose_between(GPU, torch.bfloat16, 896, 4864) is OWN
    assert tried["check_between"] == (OWN, GPU, torch.bfloat16, 896, 4864)


def test_where_nobody_says_which_heads_there_are_grouped_ones_are_tried(
    tried: dict[str, tuple[Any, ...]],
) -> None:
    backends.choose_backend(GPU, torch.float32, 16)
    assert tried["check_tail"][-1] == tried["check_rope_write"][-1] == Heads(4, 2)
    assert backends.choose_rope_write(GPU, 32) is rope_write_reference
    assert tried["check_rope_write"][1:] == (GPU, torch.float32, 32, Heads(4, 2))


def test_plain_torch_on_a_gpu_tries_no_kernel_for_the_tail(
    tried: dict[str, tuple[Any, ...]],
) -> None:
    plain = backends.choose_backend(GPU, torch.float32, 16, "torch")
    assert set(tried) == {"check_rope_write"}
    assert (plain.name, plain.whole_slots) == ("two products", True)
    assert made(plain)._rope_write is rope_write_reference
    assert type(made(plain)) is PackedAttention
    assert type(made(plain)._tail) is TorchTail


def test_a_head_that_no_kernel_takes_is_not_tried(tried: dict[str, tuple[Any, ...]]) -> None:
    backend = backends.choose_backend(GPU, torch.float32, 24)
    assert backend.name == "two products"
    assert type(made(backend)) is PackedAttention
    assert backends.choose_rope_write(GPU, 24) is None
    assert not tried


def test_on_a_cpu_no_kernel_is_tried(
    tried: dict[str, tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert backends.choose_tail(CPU, 16, torch.float32, Heads(4, 2)) is None
    assert backends.choose_rope_write(CPU, 16) is None
    assert backends.choose_between(CPU, torch.float32, 64, 160) is PLAIN
    assert not tried


def test_what_fails_is_named_with_what_runs_instead(
    tried: dict[str, tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*given: object) -> None:
        raise RuntimeError("no compiler")

    for name in ("check_rope_write", "check_tail", "check_between"):
        monkeypatch.setattr(backends, name, broken)
    backend = backends.choose_backend(GPU, torch.float32, 16)
    assert backends.choose_between(GPU, torch.float32, 64, 160) is PLAIN
    assert (backend.name, backend.whole_slots) == ("two products", True)
    assert made(backend)._rope_write is None
    why = "fails (RuntimeError: no compiler)"
    assert caplog.messages == [
        f"RoPE and KV write: Triton's kernel {why}: torch runs instead",
        f"tail attention: Triton's kernel {why}: two products runs instead",
        f"add + norm, SiLU: Triton's kernels {why}: torch runs instead",
    ]
