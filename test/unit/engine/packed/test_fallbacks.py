"""What a library cannot do here is found out when a model is made, and said in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from support.engine import CPU
from vla_ros.engine.packed import backends, probe, varlen
from vla_ros.engine.packed.kernels.rope_write import Heads, rope_write_reference
from vla_ros.engine.packed.masked import MaskedAttention
from vla_ros.engine.packed.pack import prefill_layout
from vla_ros.engine.packed.planner import Planner
from vla_ros.engine.packed.ring import Ring

CUDA = torch.device("cuda")
KERNELS = "vla_ros.engine.packed.kernels.rope_write_triton"


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be tried on a GPU is tried here, and nothing counts as said."""
    probe.say.cache_clear()
    for module, name in ((varlen, "check_varlen"), (backends, "check_rope_write")):
        check = getattr(module, name)
        here = lambda call, device, *rest, check=check: check(call, CPU, *rest)  # noqa: E731
        monkeypatch.setattr(module, name, here)
    monkeypatch.setattr(varlen, "with_flash_3", lambda: None)
    monkeypatch.setattr(varlen, "without_flash_3", lambda: None)
    install(monkeypatch, rope_write_reference)


def install(monkeypatch: pytest.MonkeyPatch, kernel: Callable[..., object]) -> None:
    """A Triton that is there and does this."""
    module = ModuleType(KERNELS)
    module.rope_write = kernel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, KERNELS, module)


def raises(error: Exception) -> Callable[..., torch.Tensor]:
    def call(*args: object) -> torch.Tensor:
        raise error

    return call


def attention_of(dtype: torch.dtype) -> object:
    """What a pass on a GPU would attend with."""
    backend = backends.choose_backend(CUDA, dtype, 16, "varlen", Heads(4, 2))
    ring = Ring(1, 2, 256, 2, 16, dtype, CPU)
    assert ring.slot_length % backend.page == 0
    plan = Planner(ring).plan(prefill_layout(3, (2,)))
    return backend.make(ring, plan)


NO_FLASH_3 = RuntimeError("Paged attention needs FlashAttention 3\nsecond line")
NO_PACKAGE = ModuleNotFoundError("No module named 'flash_attn'")


def test_no_variable_length_attention_is_masked_attention_and_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(varlen, "varlen_torch", raises(NO_FLASH_3))
    monkeypatch.setattr(varlen, "varlen_flash", raises(NO_PACKAGE))
    for _ in ("target", "draft"):
        assert isinstance(attention_of(torch.bfloat16), MaskedAttention)
    (line,) = caplog.messages
    assert line == (
        "attention varlen: torch's varlen fails (RuntimeError: Paged attention needs"
        " FlashAttention 3), flash-attn fails (ModuleNotFoundError: No module named 'flash_attn'):"
        " masked attention runs instead"
    )


@pytest.mark.parametrize("runs", ["varlen_torch", "varlen_flash"])
def test_the_one_that_runs_is_taken(
    runs: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("varlen_torch", "varlen_flash"):
        call = varlen.varlen_reference if name == runs else raises(NO_FLASH_3)
        monkeypatch.setattr(varlen, name, call)
    assert isinstance(attention_of(torch.bfloat16), varlen.VarlenAttention)
    assert len(caplog.messages) == (runs == "varlen_flash")


def test_a_call_that_reads_the_wrong_page_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def first_page(q, keys, values, sequences, scale, causal):  # type: ignore[no-untyped-def]
        wrong = sequences._replace(pages=torch.zeros_like(sequences.pages))
        return varlen.varlen_reference(q, keys, values, wrong, scale, causal)

    monkeypatch.setattr(varlen, "varlen_torch", first_page)
    monkeypatch.setattr(varlen, "varlen_flash", varlen.varlen_reference)
    assert isinstance(attention_of(torch.bfloat16), varlen.VarlenAttention)
    assert "torch's varlen fails (ValueError: its result is off by" in caplog.text


def test_float32_has_none_on_a_gpu(caplog: pytest.LogCaptureFixture) -> None:
    """The reference reads the device, which no graph can."""
    assert isinstance(attention_of(torch.float32), MaskedAttention)
    assert "there is none in float32" in caplog.text


def test_flash_3_is_only_left_on_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(varlen, "with_flash_3", lambda: done.append("on"))
    monkeypatch.setattr(varlen, "without_flash_3", lambda: done.append("off"))
    monkeypatch.setattr(varlen, "varlen_torch", raises(NO_FLASH_3))
    monkeypatch.setattr(varlen, "varlen_flash", raises(NO_PACKAGE))
    attention_of(torch.bfloat16)
    assert done == ["on", "off"]


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (raises(RuntimeError("Failed to find C compiler. Please specify via CC")), "C compiler"),
        (lambda *args: tuple(t + 1 for t in rope_write_reference(*args)), "off by"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_triton_that_cannot_compile_is_left_out_with_one_line(
    kernel: Callable[..., object],
    said: str,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert backends.choose_rope_write(CUDA, 16, dtype) is rope_write_reference
    install(monkeypatch, kernel)
    assert backends.choose_rope_write(CUDA, 16, dtype) is None
    assert backends.choose_rope_write(CUDA, 16, dtype) is None
    (line,) = caplog.messages
    assert line.startswith("RoPE and KV write: Triton's kernel fails (")
    assert said in line
    assert line.endswith("): torch runs instead")


def test_without_triton_torch_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, KERNELS, None)
    assert backends.choose_rope_write(CUDA, 16) is None
    assert len(caplog.messages) == 1
