"""Weights of fewer bits on a device, against plain products of the same numbers on a CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from support.engine import Again, engine_of, play, stream, tiny_config
from support.flow import chunk_of_preset
from vla_ros.engine.families.base import Placement
from vla_ros.engine.families.openvla import in_memory, quantized
from vla_ros.engine.formats import parse_formats
from vla_ros.engine.layers.fp8 import Fp8
from vla_ros.engine.layers.graphs import CudaCapture
from vla_ros.engine.layers.kernels.torch_products import rounded_rows
from vla_ros.engine.layers.linear import linear, quantize
from vla_ros.engine.layers.tuner import choose_fp8, runs_tinygemm

KINDS = ["int8", "int4", "fp8"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 64, 281])
@pytest.mark.parametrize("shape", [(4096, 4096), (1152, 4304), (27, 50)])
def test_a_product(kind: str, rows: int, shape: tuple[int, int], device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator) * shape[1] ** -0.5
    x = torch.randn(rows, shape[1], generator=generator).bfloat16()
    made = quantize(weight, kind)
    given = x.float()
    if kind == "fp8":
        small, factor = rounded_rows(x)
        given = small.float() * factor[:, None]
    exact = F.linear(given, made.whole().float())
    there = quantize(weight.to(device), kind).ready()
    out = linear(x.to(device), there).float().cpu()
    assert float((out - exact).norm() / exact.norm()) < 0.01


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_kernels_run() -> None:
    """What this generation of GPU should have: otherwise a line above says why it has not."""
    device = torch.device("cuda:0")
    capability = torch.cuda.get_device_capability(device)
    assert runs_tinygemm(device) == (capability >= (8, 0))
    assert (choose_fp8(device) is not None) == (capability >= (8, 9))
    assert Fp8.of(torch.ones(16, 16, device=device)).ready().fast == (capability >= (8, 9))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_rows_in_fp8_are_rounded_by_one_kernel() -> None:
    """To the bits of torch's eight; otherwise a line above says why not."""
    device = torch.device("cuda:0")
    made = choose_fp8(device)
    if made is None:
        pytest.skip("this GPU has no fp8 products")
    assert made is not rounded_rows
    x = torch.randn(7, 4096, device=device).bfloat16()
    x[1, 5] = float("nan")
    for one, other in zip(made(x), rounded_rows(x), strict=True):
        assert torch.equal(one.float()[[0, *range(2, 7)]], other.float()[[0, *range(2, 7)]])
    assert made(x)[1].isnan().tolist() == [False, True, *[False] * 5]


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_policy(kind: str, device: str) -> None:
    """Graphs over these products give what they give without graphs."""
    where = torch.device(device)
    checkpoint = in_memory(tiny_config("llama_gqa"), 0, where, torch.bfloat16, 7)
    few = quantized(checkpoint, parse_formats(kind))
    events = stream(3, {0: "pick up the red cube"})
    graphs, plain = (
        play(
            engine_of(
                few, "autoregressive", capture, device=device, dtype="bfloat16", cuda_graphs=on
            ),
            events,
        )
        for on, capture in ((True, Again() if where.type == "cpu" else None), (False, None))
    )
    assert [i.tokens for i in graphs.values()] == [i.tokens for i in plain.values()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preset", ["pi05-small", "smolvla-small", "groot-n1.7-small"])
def test_a_flow_policy(preset: str, kind: str, device: str) -> None:
    """Of a device and its graphs the chunk that a CPU says without, up to rounding."""
    chunks = []
    for name, graphs in (("cpu", False), (device, True)):
        where = torch.device(name)
        capture = (CudaCapture(where) if where.type == "cuda" else Again()) if graphs else None
        place = Placement(where, torch.bfloat16, capture, parse_formats(kind))
        chunks.append(chunk_of_preset(preset, place))
    off = float((chunks[1] - chunks[0]).norm() / chunks[0].norm())
    assert off < 0.1
