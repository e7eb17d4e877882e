"""The ablation of torch.compile: what is compiled, and that no shape of a decoding runs eagerly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from support.engine import CPU, tiny, tiny_config
from vla_ros.engine.layers.attention import Backend, PackedAttention
from vla_ros.engine.layers.pack import PackLayout, chain, prefill_layout
from vla_ros.engine.layers.prepacked import can_prepack
from vla_ros.engine.models import openvla
from vla_ros.engine.models.openvla import VLAModel
from vla_ros_lab.bench import suite
from vla_ros_lab.bench.compiled import CompiledDecoder, compiled_model


@pytest.mark.parametrize("towers", ["single", "fused"])
def test_towers_are_compiled_one_by_one(towers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.nn.Module] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: asked.append(module))
    checkpoint = tiny(tiny_config("llama_gqa", towers))
    made = compiled_model(("vision",))(checkpoint, CPU, torch.float32)
    assert asked == list(made.vision.vision_backbone.towers)


@pytest.mark.skipif(not can_prepack(CPU, torch.float32), reason="oneDNN packs nothing here")
@pytest.mark.parametrize("part", ["vision", "decoder"])
def test_what_is_compiled_has_its_matrices_as_they_are_stored(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is not compiled has them as ever."""
    monkeypatch.setattr(openvla, "has_wide_products", lambda device, dtype: True)
    model = compiled_model((part,))(tiny(), CPU, torch.float32)
    assert isinstance(model.decoder, CompiledDecoder) == (part == "decoder")
    prefixes = {"vision": ("vision_backbone.", "projector."), "decoder": ("language_model.",)}
    for other, names in prefixes.items():
        own = {name for name in tiny().tensors if name.startswith(names)}
        assert (own <= set(model.tensors)) == (other == part)


def traced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """torch.compile with a backend that runs what dynamo has traced, so nothing is built; how often
    each piece of code was run."""
    pieces: list[int] = []

    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        number = len(pieces)
        pieces.append(0)

        def run(*args: Any) -> Any:
            pieces[number] += 1
            return module.forward(*args)

        return run

    torch._dynamo.reset()  # it remembers what it could not trace in other tests
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: real(function, backend=backend))
    return pieces


@pytest.mark.slow
def test_a_compiled_policy_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, options = traced(monkeypatch), suite.BenchOptions()
    engine = replace(options.engine, checkpoint="random:small", dtype="float32")
    options = replace(options, engine=engine, rows=("autoregressive",), warm_up=0, timed=2)
    found = suite.run_ablation(options)
    assert len({run.rows["autoregressive"]["said"] for run in found.values()}) == 1
    assert sum(pieces) > 0


@pytest.mark.slow
def test_thirteen_shapes_are_a_few_pieces_of_code_and_none_runs_eagerly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces, checkpoint = traced(monkeypatch), tiny(tiny_config("llama_gqa"))
    model: VLAModel = compiled_model(("decoder",))(checkpoint, CPU, torch.float32)
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
