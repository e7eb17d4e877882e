"""A fault of each class planted in the engine: what holds its ways finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from shadow_cuda import CudaError, runtime, shadow
from shadow_cuda.playing import Played, held, play
from support.engine import engine_of, tiny_config
from vla_ros.engine.families.openvla import in_memory
from vla_ros.engine.layers import devices, graphs
from vla_ros.engine.layers.pack import Plan
from vla_ros.engine.models.language import llama

Patch = pytest.MonkeyPatch
CONFIG = tiny_config("llama_gqa")


def played(device: str) -> Played:
    weights = in_memory(CONFIG, 2, torch.device(device), torch.float32, 7)
    engine = engine_of(weights, "speculative", device=device)
    return play(engine, runtime.gpu_here() if device != "cpu" else None)


def wrong_device(patch: Patch) -> None:
    made = llama.rope_tables
    patch.setattr(llama, "rope_tables", lambda *given: tuple(t.cpu() for t in made(*given)))


def item_in_a_capture(patch: Patch) -> None:
    embed = llama.LlamaDecoder.embed

    def looks(self: Any, tokens: torch.Tensor) -> torch.Tensor:
        assert int(tokens.max()) >= 0
        return embed(self, tokens)

    patch.setattr(llama.LlamaDecoder, "embed", looks)


def host_value_baked_in(patch: Patch) -> None:
    """A graph that keeps the plan of its capture."""
    patch.setattr(Plan, "load", lambda self, other: None)


def pageable_copy(patch: Patch) -> None:
    patch.setattr(devices, "pinned", lambda values, device, dtype=None: torch.as_tensor(values))


def missing_wait(patch: Patch) -> None:
    patch.setattr(runtime.Event, "synchronize", lambda self: None)


def graph_over_freed_memory(patch: Patch) -> None:
    begin = graphs.GraphedPass.__init__

    def forgets(self: Any, run: Any, plans: Any, *more: Any) -> None:
        begin(self, run, plans, *more)
        self._plans = tuple(plan.copy() for plan in self._plans)

    patch.setattr(graphs.GraphedPass, "__init__", forgets)


FAULTS: dict[Callable[[Patch], None], str] = {
    wrong_device: "two devices in index", item_in_a_capture: "item while capturing",
    host_value_baked_in: "", pageable_copy: "", missing_wait: "has not waited",
    graph_over_freed_memory: "memory that was given back",
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_it_is_found(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    here = played("cpu")
    with shadow(), monkeypatch.context() as patch:
        fault(patch)
        if FAULTS[fault]:
            with pytest.raises(CudaError, match=FAULTS[fault]):
                played("cuda:0")
            return
        there = played("cuda:0")
    with pytest.raises(AssertionError):
        held("planted", here, there, within=0.0)
    if fault is pageable_copy:
        assert there.journal is not None
        assert there.journal.counts["pageable upload"]


def test_without_a_fault_nothing_is_found() -> None:
    here = played("cpu")
    with shadow():
        there = played("cuda:0")
    held("speculative, no fault", here, there, within=0.0)
