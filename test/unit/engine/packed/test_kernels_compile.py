"""Triton's kernels compile for GPUs that are not here, and fit the shared memory of small ones."""

from __future__ import annotations

import pytest

triton = pytest.importorskip("triton")

import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from vla_ros.engine.packed.kernels import (
    between_triton,
    rope_write_triton,
    tail_attention_triton,
)

SMALL = 99 * 1024  # of a GeForce; a data centre's GPUs have more
CAPABILITIES = (80, 89, 90, 120)
#: KV heads, queries of each, tokens a block, rows, head size, entries a block, as TritonTail picks
SHAPES = [(32, 1, 1, 16, 128, 64), (2, 7, 9, 64, 64, 64), (8, 4, 16, 64, 128, 64)]
TENSORS = {"slot": "*i64", "index": "*i64", "sees": "*i64", "sums": "*fp32", "weights": "*fp32",
           "scale": "fp32", "eps": "fp32"}  # fmt: skip
POINTERS = ("q", "keys", "values", "out", "x", "added", "weight", "total", "normed", "gate_up",
            "qkv", "cos", "sin")  # fmt: skip


def shared(kernel, dtype: str, capability: int, **constants) -> int:  # type: ignore[no-untyped-def]
    """Bytes of shared memory of the kernel as it is compiled."""
    names = kernel.arg_names
    signature = {n: TENSORS.get(n, f"*{dtype}" if n in POINTERS else "i32") for n in names}
    signature |= dict.fromkeys(constants, "constexpr")
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values)
    target = GPUTarget("cuda", capability, 32)
    return int(triton.compile(source, target=target, options={"num_stages": 2}).metadata.shared)


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
    shared(between_triton._add_norm, "bf16", capability, BLOCK=4096)
    shared(between_triton._silu_mul, "bf16", capability, BLOCK=1024)
    shared(rope_write_triton._kernel, "bf16", capability, QUERY=32, KV=32, HALF=64)
