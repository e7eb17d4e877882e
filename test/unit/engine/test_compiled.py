"""A compiled decoder meets every shape of a decoding without falling back to eager passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.engine import CPU, tiny, tiny_config
from vla_ros.engine.layers.attention import Backend, PackedAttention
from vla_ros.engine.layers.pack import PackLayout, chain, prefill_layout
from vla_ros.engine.models.openvla import VLAModel
from vla_ros.engine.options import EngineOptions


@pytest.mark.parametrize("towers", ["single", "fused"])
def test_towers_are_compiled_one_by_one(towers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def keep(function: Any) -> Any:
        asked.append(function)
        return function

    monkeypatch.setattr("vla_ros.engine.models.openvla.compiled", keep)
    checkpoint, chosen = tiny(tiny_config("llama_gqa", towers)), EngineOptions(compile=("vision",))
    made = VLAModel(checkpoint, CPU, torch.float32, chosen)
    assert asked == list(made.vision.vision_backbone.towers)
    pixels = tuple(torch.randn(1, 3, 32, 32) for _ in asked)
    assert torch.equal(made.features(pixels), made.vision.features(pixels))


@pytest.mark.slow
def test_thirteen_shapes_are_a_few_pieces_of_code_and_none_runs_eagerly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a backend that runs what dynamo has traced, so nothing is built."""
    pieces: list[int] = []  # how often each was run

    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        number = len(pieces)
        pieces.append(0)

        def run(*args: Any) -> Any:
            pieces[number] += 1
            return module.forward(*args)

        return run

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: real(function, backend=backend))
    chosen = EngineOptions(compile=("decoder",))
    model = VLAModel(tiny(tiny_config("llama_gqa")), CPU, torch.float32, chosen)
    model.attention = Backend(PackedAttention)  # a GPU's
    runner = model.runner(1, 96)
    prompt, passes = torch.randn(40, 64), 0
    for drafted in range(7):
        rows = tuple(range(39, 40 + drafted))
        tokens = torch.arange(drafted) if drafted else None
        runner.run(prefill_layout(40 + drafted, rows), prompt, tokens)
        passes += 1
        assert sum(pieces) == passes
    for fed in range(1, 7):
        layout = PackLayout(rows=tuple(range(fed)), tail=chain(0, 41, fed))
        runner.run(layout, None, torch.arange(fed))
        passes += 1
        assert sum(pieces) == passes
    assert len(pieces) <= 8
