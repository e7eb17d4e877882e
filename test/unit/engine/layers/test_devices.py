"""Fast paths are tried once, and what failed is logged once, in one line; caches, Triton."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from support.engine import CPU
from vla_ros.engine.layers.devices import (
    cache_bytes,
    multiplies_bfloat16,
    reason,
    tried,
    triton_may_run,
    warn_once,
)


@pytest.fixture(autouse=True)
def _nothing_was_logged() -> None:
    warn_once.cache_clear()


def fails(text: str, kind: type[Exception] = RuntimeError):  # type: ignore[no-untyped-def]
    def make() -> object:
        raise kind(text)

    return make


def test_what_runs_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    assert tried("attention", "one", lambda: 1, "torch") == 1
    assert not caplog.records


@pytest.mark.parametrize(
    ("kind", "reason"), [(RuntimeError, "RuntimeError: no GPU"), (KeyError, "KeyError: 'no GPU'")]
)
def test_what_fails_is_named_with_its_reason_and_what_runs_instead(
    kind: type[Exception], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert tried("attention", "one", fails("no GPU", kind), "torch") is None
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("vla_ros.engine", logging.WARNING)
    assert record.getMessage() == f"attention: one fails ({reason}): torch runs instead"


def test_the_same_line_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for line in ("one", "two", "one", "one"):
        warn_once(line)
    assert caplog.messages == ["one", "two"]


def test_a_way_that_is_interrupted_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt):
        tried("attention", "one", fails("", KeyboardInterrupt), "torch")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("  too long \n and more"), "ValueError: too long"),
        (ValueError(""), "ValueError"),
        (ValueError(" \n "), "ValueError"),
        (RuntimeError("\n\nthe second\nthe third"), "RuntimeError: the second"),
        (OSError("x" * 151), f"OSError: {'x' * 151}"),  # 160 characters
        (OSError("x" * 152), f"OSError: {'x' * 148}..."),
    ],
)
def test_a_reason_is_one_line_of_160_characters_at_most(error: Exception, said: str) -> None:
    assert reason(error) == said
    assert len(said) <= 160


def test_a_gpus_cache_is_its_own_and_a_cpu_has_none_to_clear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = {"cuda:0": 1, "cuda:1": 50 * 2**20}
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(L2_cache_size=sizes[str(device)]),
    )
    assert cache_bytes(torch.device("cuda:1")) == 50 * 2**20
    assert cache_bytes(CPU) == 0


def test_triton_is_for_gpus_and_its_interpreter_for_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert triton_may_run(torch.device("cuda:1")) and not triton_may_run(CPU)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert not triton_may_run(CPU)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert triton_may_run(CPU)


@pytest.mark.parametrize(
    ("flags", "multiplies"),
    [
        ("fpu avx2 avx512f avx512bw avx512vl avx512_vnni", False),  # Cascade Lake: oneDNN emulates
        ("fpu avx2 avx512f avx512bw avx512vl avx512_bf16", True),  # Zen 4
        ("fpu avx2 avx512f amx_tile amx_bf16", True),
    ],
)
def test_a_processor_that_onednn_helps_out_does_not_multiply_bfloat16(
    flags: str, multiplies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nmodel name\t: any\nflags\t\t: {flags}\nbugs\t\t:\n")
    monkeypatch.setattr("vla_ros.engine.layers.devices._CPUINFO", cpuinfo)
    helped = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    assert multiplies_bfloat16(CPU) is (multiplies and helped)


def test_where_nothing_names_the_instructions_onednn_knows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vla_ros.engine.layers.devices._CPUINFO", tmp_path / "none")
    assert multiplies_bfloat16(CPU) is bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
