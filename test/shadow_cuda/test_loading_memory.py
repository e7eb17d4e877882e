"""Device memory while a checkpoint is loaded, counted by the shadow's allocator: what stays, and
one piece of it twice."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shadow_cuda.runtime import shadow
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.families.openvla import FAMILY, PRESETS
from vla_ros.engine.memory import needed

#: RoPE's tables, KV caches, and some rows in float32
BESIDE = 8 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy most of whose 20 M parameters are in layers."""
    text = replace(PRESETS["cpu"].text, hidden_size=512, intermediate_size=1536, layers=4, heads=8,
                   kv_heads=8, vocab_size=8064)  # fmt: skip
    config = replace(PRESETS["cpu"], text=text, action_vocab=8000)
    target = tmp_path_factory.mktemp("memory") / "it"
    FAMILY.write(target, config, 0)
    return target


@pytest.mark.parametrize("weights", ["", "int8", "int4", "fp8"])
def test_loading_takes_one_piece_more_than_stays(folder: Path, weights: str) -> None:
    options = EngineOptions(str(folder), device="cuda:0", dtype="bfloat16", weights=weights)
    with shadow():
        need = needed(options)
        load_engine(options)  # kernels of few bits are timed on a matrix of their own, once
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        engine = load_engine(options)
        stays, peak = (
            found - before
            for found in (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
        )
        assert engine.info.decoding == "speculative"
        assert need.weights <= stays <= 1.05 * need.weights + BESIDE
        assert peak <= 1.05 * stays + need.largest
