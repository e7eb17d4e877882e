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


class Shifted(TorchTail):
    """A kernel that reads the entry behind the one it should."""

    def __call__(self, layer: int, q: torch.Tensor, scale: float) -> torch.Tensor:
        self._mask = self._mask.roll(1, -1)
        return super().__call__(layer, q, scale)


OWN = AddNorm(*PLAIN)
LAYOUT = PackLayout((0,), tail=chain(0, 3, 1))
CHECKS = ("check_rope_write", "check_tail", "check_between")
FILES = {"TritonTail": f"{KERNELS}tail_attention_triton"}


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Triton that is there, and nothing was logged yet."""
    devices.warn_once.cache_clear()
    install(monkeypatch, rope_write=rope_write_reference, TritonTail=Kernel, KERNELS=OWN)


def install(monkeypatch: pytest.MonkeyPatch, **kernels: object) -> None:
    for name, kernel in kernels.items():
        path = FILES.get(name, f"{KERNELS}layer_triton")
        module = sys.modules.get(path) or ModuleType(path)
        monkeypatch.setitem(sys.modules, path, module)
        monkeypatch.setattr(module, name, kernel, raising=False)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, ...]]:
    """What the checks are given, which are not run."""
    found: dict[str, tuple[Any, ...]] = {}
    for name in CHECKS:
        note = lambda *given, name=name: found.update({name: given})  # noqa: E731
        monkeypatch.setattr(backends, name, note)
    return found


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be tried on a GPU is tried here."""
    for name in CHECKS:
        check = getattr(backends, name)
        here = lambda call, device, *rest, check=check: check(call, CPU, *rest)  # noqa: E731
        monkeypatch.setattr(backends, name, here)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_does_as_torch_does_is_taken(
    dtype: torch.dtype, on_the_cpu: None, caplog: pytest.LogCaptureFixture
) -> None:
    assert backends.choose_backend(GPU, dtype, 16).name == "Triton's tail attention"
    assert backends.choose_rope_write(GPU, 16, dtype) is rope_write_reference
    assert backends.choose_between(GPU, dtype, 64, 160) is OWN
    assert not caplog.messages


def test_what_fails_is_named_once_with_what_runs_instead(
    on_the_cpu: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*given: object) -> object:
        raise RuntimeError("no compiler\nsecond line")

    between = AddNorm(broken, broken)  # type: ignore[arg-type]
    install(monkeypatch, rope_write=broken, TritonTail=broken, KERNELS=between)
    for _ in ("target", "draft"):
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


@pytest.mark.parametrize(
    ("kernel", "what"),
    [
        ({"TritonTail": Shifted}, "tail attention"),
        ({"rope_write": lambda *a: tuple(t + 1 for t in rope_write_reference(*a))}, "RoPE"),
        ({"KERNELS": PLAIN._replace(silu_mul=lambda x: PLAIN.silu_mul(-x))}, "add + norm"),
        (
            {"KERNELS": PLAIN._replace(add_norm=lambda x, y, w, e: PLAIN.add_norm(x, 2 * y, w, e))},
            "add + norm",
        ),
    ],
)
def test_what_gives_something_else_is_left_out(
    kernel: dict[str, object],
    what: str,
    on_the_cpu: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    install(monkeypatch, **kernel)
    backend = backends.choose_backend(GPU, torch.float32, 16)
    between = backends.choose_between(GPU, torch.float32, 64, 160)
    assert (backend.name == "two products") is ("TritonTail" in kernel)
    assert (made(backend)._rope_write is None) is ("rope_write" in kernel)
    assert (between is PLAIN) is ("KERNELS" in kernel)
    (line,) = caplog.messages
    assert line.startswith(what) and "its result is off by" in line


def test_without_triton_torch_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (f"{KERNELS}layer_triton", *FILES.values()):
        monkeypatch.setitem(sys.modules, path, None)
    assert backends.choose_backend(GPU, torch.float32, 16).name == "two products"
    assert backends.choose_between(GPU, torch.float32, 64, 160) is PLAIN
    assert len(caplog.messages) == 3
