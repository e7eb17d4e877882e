"""Device memory while a checkpoint is loaded, counted by the shadow's allocator: what stays, and
one piece of it twice."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from shadow_cuda.runtime import shadow
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.families.openvla import FAMILY, PRESETS
from vla_ros.engine.memory import Need, needed

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


def loaded(checkpoint: str, weights: str) -> tuple[Need, int, int]:
    """What loading was said to need; bytes that stay, and at the peak."""
    options = EngineOptions(checkpoint, device="cuda:0", dtype="bfloat16", weights=weights)
    with shadow():
        need = needed(options)
        if weights:
            load_engine(options)  # kernels of few bits are timed on a matrix of their own, once
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        engine = load_engine(options)
        there = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        assert engine.info.decoding
        return need, there[0] - before, there[1] - before


@pytest.mark.parametrize("weights", ["", "int8", "int4", "fp8"])
def test_loading_takes_one_piece_more_than_stays(folder: Path, weights: str) -> None:
    need, stays, peak = loaded(str(folder), weights)
    assert need.weights <= stays <= 1.05 * need.weights + BESIDE
    assert peak <= 1.05 * stays + need.largest


ROWS = 64 << 10  # some, in float32, while they are packed
#: families and what each has beside its weights: KV caches, RoPE's tables, norms in float32
TABLES = {
    "pi0-small": 0.3e6, "pi05-small": 0.3e6, "smolvla-small": 0.3e6, "groot-n1.5-small": 0.3e6,
    "groot-n1.6-small": 0.4e6, "groot-n1.7-small": 0.3e6, "evo1-small": 0.3e6,
    "turbovla-small": 0.3e6, "act-small": 0.3e6, "pi0_fast-small": 0.3e6, "small-oft": 2.2e6,
    "bitvla-small": 2.2e6,
}  # fmt: skip
#: Few bits are refused, or of no use; of the small Evo-1 the largest piece is one that is packed
#: whole, its pooling, which is a third of the published one's word embeddings.
STORED = {"turbovla-small", "act-small", "bitvla-small", "evo1-small"}
QUICK = {"groot-n1.6-small-int8", "pi0-small-int4", "smolvla-small-fp8"}


def of_families() -> list[Any]:
    """Each as it is stored; in few bits one of each format, the others for `make test-long`."""
    made = []
    for name, weights in product(TABLES, ("", "int8", "int4", "fp8")):
        if weights and name in STORED:
            continue
        key = f"{name}-{weights or 'stored'}"
        long = pytest.mark.long if weights and key not in QUICK else ()
        made.append(pytest.param(name, weights, id=key, marks=long))
    return made


@pytest.mark.parametrize(("name", "weights"), of_families())
def test_no_family_holds_a_piece_twice(name: str, weights: str) -> None:
    """Of small checkpoints, whose largest piece is a fifth of them or less."""
    need, stays, peak = loaded(f"random:{name}", weights)
    assert stays <= 1.05 * need.weights + TABLES[name]
    assert peak <= 1.05 * stays + need.largest + ROWS
