"""Triton's kernels compile for GPUs that are not here, and fit the shared memory of small ones."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

import torch
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from vla_ros.engine.layers.kernels import layer_triton, tail_attention_triton
from vla_ros.engine.layers.tiles import (
    INT4_TILES,
    INT8_TILES,
    Gemv,
    Tile,
    Way,
    attention_ways,
    paired_ways,
    ways,
)

SMALL = 99 * 1024  # of a GeForce; a data center's GPUs have more
CAPABILITIES = (80, 87, 89, 90, 120)  # 87: Jetson Orin
#: KV heads, queries of each, tokens a block, rows, head size, entries a block, as TritonTail picks
SHAPES = [(32, 1, 1, 16, 128, 64), (2, 7, 9, 64, 64, 64), (8, 4, 16, 64, 128, 64)]
TENSORS = {"slot": "*i64", "index": "*i64", "sees": "*i64", "sums": "*fp32", "weights": "*fp32",
           "scale": "fp32", "eps": "fp32"}  # fmt: skip
PAIRED = tuple(dict.fromkeys(w for n in (1, 51, 560) for w in paired_ways(n, torch.bfloat16)))
LARGE = {80: 163, 87: 163, 89: 99, 90: 227, 120: 99}  # KiB that a program can have, by capability
WAYS = tuple(dict.fromkeys(w for rows in (1, 16, 300) for w in ways(rows, torch.bfloat16)))
POINTERS = ("q", "keys", "values", "out", "x", "added", "weight", "total", "normed", "gate_up",
            "qkv", "cos", "sin", "bias", "gate", "mask")  # fmt: skip


def compiled(
    kernel, dtype: str, capability: int, options=None, aligned=(), types=None, **constants
):  # type: ignore[no-untyped-def]
    """The kernel; ``aligned`` names what is divisible by 16, ``types`` what is of another type than
    by its name."""
    names, known = kernel.arg_names, TENSORS | (types or {})
    signature = {n: known.get(n, f"*{dtype}" if n in POINTERS else "i32") for n in names}
    signature |= dict.fromkeys(constants, "constexpr")
    values = {(names.index(name),): value for name, value in constants.items()}
    hints = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=hints)
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options=options or {"num_stages": 2})


def shared(kernel, dtype: str, capability: int, **constants) -> int:  # type: ignore[no-untyped-def]
    """Bytes of shared memory of the kernel as it is compiled."""
    return int(compiled(kernel, dtype, capability, **constants).metadata.shared)


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_tails_kernels(dtype: str, shape: tuple[int, ...], capability: int) -> None:
    kv, group, tokens, rows, dim, entries = shape
    single = dtype == "fp32"
    used = shared(
        tail_attention_triton._attend, dtype, capability, KV=kv, GROUP=group, TOKENS=tokens,
        ROWS=rows, DIM=dim, ENTRIES=entries if not single else min(entries, 4096 // dim),
        OPERAND=tl.float32 if single else tl.bfloat16,
    )  # fmt: skip
    assert 0 < used <= SMALL
    shared(tail_attention_triton._together, dtype, capability, PARTS=9, PADDED=16, DIM=dim)


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_other_kernels(capability: int) -> None:
    shared(layer_triton._add_norm, "bf16", capability, BLOCK=4096)
    shared(layer_triton._silu_mul, "bf16", capability, BLOCK=1024)
    shared(layer_triton._rope_write, "bf16", capability, QUERY=32, KV=32, HALF=64)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [89, 90, 120])
def test_rows_in_fp8(capability: int) -> None:
    types = {"values": "*fp8e4nv", "factor": "*fp32"}
    shared(layer_triton._round_rows, "bf16", capability, types=types, BLOCK=4096)


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("way", INT8_TILES, ids=str)
def test_many_rows_with_int8(way: Tile, capability: int) -> None:
    made = compiled(
        layer_triton._tile, "bf16", capability, {"num_warps": way.warps, "num_stages": way.stages},
        ("x", "weight", "out", "count", "width", "x_row", "weight_row"), {"weight": "*i8"},
        ROWS=way.rows, COLUMNS=way.columns, DEPTH=way.depth, SPLIT=False, BIAS=False, GATE=True,
        ADDED=False, OPERAND=tl.bfloat16,
    )  # fmt: skip
    assert made.metadata.shared <= LARGE[capability] * 1024
    assert spilled(made) <= 32


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("way", INT4_TILES, ids=str)
def test_rows_with_int4(way: Tile, capability: int) -> None:
    made = compiled(
        layer_triton._int4, "bf16", capability,
        {"num_warps": way.warps, "num_stages": way.stages},
        ("x", "values", "scale", "out", "count", "bytes_", "x_row"),
        {"values": "*u8", "scale": "*bf16"},
        ROWS=way.rows, COLUMNS=way.columns, BYTES=way.depth // 2, GROUP=32, OPERAND=tl.bfloat16,
    )  # fmt: skip
    assert made.metadata.shared <= LARGE[capability] * 1024
    assert spilled(made) <= 32


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_products(way: Way, capability: int) -> None:
    """None spills registers; weights come 16 bytes at a time, by way of shared memory where there
    are tiles; what does not fit a small GPU is known, and something does."""
    aligned = ("x", "weight", "out", "count", "width", "x_row", "weight_row")
    if isinstance(way, Gemv):
        made = compiled(
            layer_triton._gemv, "bf16", capability, {"num_warps": way.warps}, aligned, ROWS=1,
            COLUMNS=way.columns, DEPTH=way.depth, BIAS=False,
        )  # fmt: skip
        assert "ld.global" in made.asm["ptx"] and ".v4.b32" in made.asm["ptx"]
    else:
        made = compiled(
            layer_triton._tile, "bf16", capability,
            {"num_warps": way.warps, "num_stages": way.stages}, aligned, ROWS=way.rows,
            COLUMNS=way.columns, DEPTH=way.depth, SPLIT=way.parts > 1, BIAS=False, GATE=False,
            ADDED=way.parts == 1, OPERAND=tl.bfloat16,
        )  # fmt: skip
        product = "wgmma.mma_async" if capability == 90 and way.rows >= 64 else "mma.sync"
        assert product in made.asm["ptx"] and "cp.async.cg" in made.asm["ptx"]
    fits = made.metadata.shared <= LARGE[capability] * 1024
    assert fits or way in (Tile(64, 256, 64, warps=8), Tile(128, 256, 64, warps=8))
    assert fits or LARGE[capability] == 99
    assert spilled(made) <= 8


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("way", PAIRED, ids=str)
@pytest.mark.parametrize("turned", [True, False], ids=["heads", "gate and up"])
@pytest.mark.parametrize("adaptive", [False, True], ids=["pi0", "pi0.5"])
def test_the_steps_of_a_flow_layer(
    adaptive: bool, turned: bool, way: Tile, capability: int
) -> None:
    """Of pi0's sizes. They fit every GPU, and spill nothing."""
    made = compiled(
        layer_triton._paired, "bf16", capability,
        {"num_warps": way.warps, "num_stages": way.stages},
        ("x", "weight", "out", "keys", "values", "width", "half", "x_row", "pairs"),
        {"scale": "*bf16", "bias": "*fp32", "cos": "*fp32", "sin": "*fp32"},
        ROWS=way.rows, COLUMNS=way.columns, DEPTH=way.depth, OPERAND=tl.bfloat16, SCALE=adaptive,
        BIAS=adaptive, TURNED=turned, QUERY=8 if turned else 0, KV=1 if turned else 0,
        WRITE=turned, GELU=not turned,
    )  # fmt: skip
    assert "mma.sync" in made.asm["ptx"] or "wgmma" in made.asm["ptx"]
    assert made.metadata.shared <= LARGE[capability] * 1024
    assert spilled(made) <= 32


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("way", attention_ways(torch.bfloat16), ids=str)
@pytest.mark.parametrize("heads", [(8, 256), (3, 64), (2, 128), (1, 48)], ids=str)
def test_attention_of_flow_policies(heads: tuple[int, int], way: Tile, capability: int) -> None:
    """pi0, SmolVLA, a Qwen3, GR00T's head."""
    group, size = heads
    made = compiled(
        layer_triton._attend, "bf16", capability,
        {"num_warps": way.warps, "num_stages": way.stages},
        ("q", "keys", "values", "out", "q_head", "q_token", "key_head", "key_entry", "value_head",
         "value_entry"),
        GROUP=group, SIZE=size, DIM=triton.next_power_of_2(size), ROWS=way.rows,
        ENTRIES=way.columns, MASK=True, OPERAND=tl.bfloat16,
    )  # fmt: skip
    assert "mma.sync" in made.asm["ptx"] or "wgmma" in made.asm["ptx"]
    fits = made.metadata.shared <= LARGE[capability] * 1024
    assert fits or way.columns * size > 32 * 256
    assert spilled(made) <= (32 if way.rows * size <= 32 * 256 else 256)  # what costs time is timed


def spilled(made) -> int:  # type: ignore[no-untyped-def]
    """Bytes of registers that the assembler had to put into memory."""
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder, "kernel.cubin")
        code.write_bytes(made.asm["cubin"])
        tool = triton.knobs.nvidia.cuobjdump.path
        done = subprocess.run([tool, "-res-usage", code], capture_output=True, text=True)
    found = re.findall(r"LOCAL:(\d+)|STACK:(\d+)", done.stdout)
    assert found, done.stdout + done.stderr
    return max(int(number) for pair in found for number in pair if number)
