"""Triton's kernels, in its interpreter, against the references in torch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from vla_ros.engine.packed.kernels.between import PLAIN, check_between
from vla_ros.engine.packed.kernels.rope_write import (
    Heads,
    check_rope_write,
    fits_triton,
    rope_write_reference,
)


def case(heads: Heads, dtype: torch.dtype, seed: int = 0):  # type: ignore[no-untyped-def]
    """A pack of 9 tokens into 3 slots of 16 entries."""
    torch.manual_seed(seed)
    qkv = torch.randn(9, heads.query + 2 * heads.kv, 32).to(dtype)
    angles = torch.rand(9, 16)
    cos, sin = (torch.cat((f, f), -1).to(dtype) for f in (angles.cos(), angles.sin()))
    entries = tuple(torch.zeros(3, heads.kv, 16, 32, dtype=dtype) for _ in range(2))
    slot = torch.tensor([1, 1, 1, 1, 0, 2, 2, 2, 0])
    index = torch.tensor([0, 1, 2, 3, 7, 4, 5, 6, 8])
    return qkv, cos, sin, entries, (slot, index)


def test_the_reference_rotates_and_writes_where_it_is_told() -> None:
    heads = Heads(4, 2)
    qkv, cos, sin, entries, where = case(heads, torch.float32)
    q, k, v = rope_write_reference(qkv, cos, sin, entries, where, heads)
    assert torch.equal(entries[0][2, :, 5], k[6])
    assert torch.equal(entries[1][0, :, 8], v[8])
    assert entries[0].count_nonzero() == k.numel()
    # A rotation keeps the length of every pair (i, i + D / 2).
    before, after = qkv[:, :4].view(9, 4, 2, 16), q.view(9, 4, 2, 16)
    torch.testing.assert_close(after.norm(dim=2), before.norm(dim=2))


@pytest.mark.parametrize(("dim", "fits"), [(64, True), (128, True), (80, False), (7, False)])
def test_head_sizes_the_kernel_takes(dim: int, fits: bool) -> None:
    assert fits_triton(dim) is fits


def compare(heads: Heads, dtype: torch.dtype, tolerance: float) -> None:
    from vla_ros.engine.packed.kernels.rope_write_triton import rope_write

    expected, actual = case(heads, dtype), case(heads, dtype)
    wanted = rope_write_reference(*expected, heads)
    got = rope_write(*actual, heads)
    for one, other in zip((*wanted, *expected[3]), (*got, *actual[3]), strict=True):
        torch.testing.assert_close(other, one, atol=tolerance, rtol=tolerance)


def tried(heads: Heads) -> None:
    """What a model tries when it is made finds the kernel good, in every type and size."""
    from vla_ros.engine.packed.kernels.rope_write_triton import rope_write

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for head_dim in (64, 128):
            check_rope_write(rope_write, torch.device("cpu"), dtype, head_dim, heads)


def compare_engines() -> None:
    """The whole engine with the kernel in place says what it says without."""
    from support.engine import CPU, TEXTS, engine_of, play, stream, tiny, tiny_config
    from vla_ros.engine.packed import backends

    checkpoint = tiny(tiny_config("llama_gqa"), dim=2, seed=1)
    engine = engine_of(checkpoint, "actionflow")
    assert backends.choose_rope_write(CPU, 16) is not None
    assert backends.choose_between(CPU, torch.float32, 64, 160) is not PLAIN
    backends.triton_may_run = lambda device: False  # type: ignore[assignment]
    plain = engine_of(checkpoint, "actionflow")
    assert backends.choose_rope_write(CPU, 16) is None
    assert backends.choose_between(CPU, torch.float32, 64, 160) is PLAIN
    events = stream(4, {0: TEXTS[0]})
    one, other = play(engine, events), play(plain, events)
    assert len(one) == 3
    assert [a.tokens for a in one.values()] == [a.tokens for a in other.values()]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_triton_kernel_in_its_interpreter() -> None:
    """In a process of its own: the interpreter is chosen when Triton is first imported."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "all equal" in done.stdout


if __name__ == "__main__":
    from vla_ros.engine.packed.kernels.between_triton import KERNELS

    torch.set_num_threads(1)
    for widths in ((64, 160), (896, 4864), (80, 1100)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            check_between(KERNELS, torch.device("cpu"), dtype, *widths)
    for shape in (Heads(4, 4), Heads(4, 2), Heads(14, 2)):
        compare(shape, torch.float32, 1e-6)
        compare(shape, torch.bfloat16, 2e-2)
        tried(shape)
    compare_engines()
    print("all equal")
