"""What a device is asked, with a stand-in for the GPU's driver."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from support.engine import CPU
from vla_ros.engine.layers.devices import cache_bytes, triton_may_run


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
