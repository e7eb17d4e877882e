"""The steps of a flow policy's layers by Triton's kernels, timed and taken on a GPU."""

from __future__ import annotations

import pytest
import torch

from support.flow import chunk_of_preset
from support.gpu import NO_GPU
from vla_ros.engine.families.base import Placement
from vla_ros.engine.io.config import TextConfig
from vla_ros.engine.layers.graphs import CudaCapture
from vla_ros.engine.layers.tuner import choose_tuner
from vla_ros.engine.models.transformer import (
    Layer,
    Modulation,
    Rope,
    attend,
    linear_residual,
    norm_gate_up,
    norm_qkv_rope,
)

pytestmark = [pytest.mark.gpu, NO_GPU]
PI0 = TextConfig("gemma", 1, 1024, 4096, 18, heads=8, kv_heads=1, head_dim=256, tied=True)
GPU = torch.device("cuda:0")


@pytest.mark.parametrize("adaptive", [False, True], ids=["pi0", "pi0.5"])
@pytest.mark.parametrize("rows", [51, 560])
def test_the_steps_of_a_layer(rows: int, adaptive: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A layer of pi0's expert, in a graph, against torch's. A way is left out for want of memory
    and for nothing else. The choices are printed with -s."""
    random = torch.Generator(GPU).manual_seed(0)
    tuner = choose_tuner(GPU, torch.bfloat16)
    assert tuner is not None, "Triton does not run here: see the warning above"

    def normal(*shape: int, by: float = 1.0) -> torch.Tensor:
        made = torch.randn(shape, generator=random, device=GPU, dtype=torch.bfloat16)
        return made * by

    width, middle, dim = PI0.hidden_size, PI0.intermediate_size, PI0.head_dim
    shapes = ((10 * dim, width), (width, 8 * dim), (2 * middle, width), (width, middle))
    weights = [normal(*shape, by=shape[1] ** -0.5) for shape in shapes]
    x, tables = normal(rows, width), normal(2, rows, dim // 2).float().repeat(1, 1, 2)
    into = normal(1, rows + 600, dim), normal(1, rows + 600, dim)
    mask = torch.zeros(1, rows + 600, device=GPU, dtype=torch.bfloat16)
    mask[:, 590:600] = float("-inf")
    change = None
    if adaptive:
        three = [normal(width) for _ in range(3)]
        change = Modulation(*three, three[1].float() @ weights[0].float().T)
    behind = None
    if adaptive:
        behind = Modulation(*three, three[1].float() @ weights[2].float().T)
    gate = three[2] if adaptive else None

    def run(layer: Layer, with_tuner: bool) -> torch.Tensor:
        there = into[0][:, 600:], into[1][:, 600:]
        q, *_ = norm_qkv_rope(x, layer, PI0, (8, 1), Rope(*tables), there, change)
        seen = attend(q * dim**-0.5, *into, mask, tuner if with_tuner else None)
        one = linear_residual(x, seen, layer.out, gate)
        return linear_residual(one, norm_gate_up(one, layer, PI0, behind), layer.down, gate)

    with torch.inference_mode():
        wanted = run(Layer(*weights), False)
        capture = tuner.while_capturing(CudaCapture(GPU))
        ours = capture(lambda: (run(Layer(*map(tuner.of, weights)), True),))()[0]
    for choice in tuner.choices:
        print(choice)
    assert all("resource" in line.lower() for line in caplog.messages), caplog.messages
    assert float((ours - wanted).norm() / wanted.norm()) < 0.03


@pytest.mark.parametrize("preset", ["pi0-small", "pi05-small", "smolvla-small"])
def test_a_chunk(preset: str) -> None:
    """A GPU with its tuner says what a CPU says without, up to rounding."""
    chunks = []
    for where in (torch.device("cpu"), GPU):
        place = Placement(where, torch.bfloat16)
        if where == GPU:
            tuner = choose_tuner(where, torch.bfloat16)
            assert tuner is not None, "Triton does not run here: see the warning above"
            capture, parts = tuner.while_capturing(CudaCapture(where)), {"decoder", "head"}
            place = Placement(where, torch.bfloat16, capture, packed=frozenset(parts), tuner=tuner)
        chunks.append(chunk_of_preset(preset, place))
    assert {choice.kind for choice in tuner.choices} > {"attention", "product + residual"}
    assert float((chunks[1] - chunks[0]).norm() / chunks[0].norm()) < 0.1
