"""Triton's kernels, in its interpreter, against the references in torch."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tails import Case, cases
from vla_ros.engine.io.config import TextConfig
from vla_ros.engine.layers.backends import check_tail
from vla_ros.engine.layers.kernels.fused import (
    PLAIN,
    Heads,
    check_between,
    check_rope_write,
    fits_triton,
    rope_write_reference,
    signed,
)
from vla_ros.engine.layers.tiles import ways
from vla_ros.engine.layers.tuner import check_product


def case(heads: Heads, dtype: torch.dtype, seed: int = 0):  # type: ignore[no-untyped-def]
    """A pack of 9 tokens into 3 slots of 16 entries."""
    torch.manual_seed(seed)
    qkv = torch.randn(9, heads.query + 2 * heads.kv, 32).to(dtype)
    angles = torch.rand(9, 16)
    cos, sin = (torch.cat((f, f), -1).to(dtype) for f in (angles.cos(), angles.sin()))
    sin = signed(sin)
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
    from vla_ros.engine.layers.kernels.layer_triton import rope_write

    expected, actual = case(heads, dtype), case(heads, dtype)
    wanted = rope_write_reference(*expected, heads)
    got = rope_write(*actual, heads)
    for one, other in zip((*wanted, *expected[3]), (*got, *actual[3]), strict=True):
        torch.testing.assert_close(other, one, atol=tolerance, rtol=tolerance)


def tried(heads: Heads) -> None:
    """What a model tries when it is made finds the kernel good, in every type and size."""
    from vla_ros.engine.layers.kernels.layer_triton import rope_write

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for head_dim in (64, 128):
            check_rope_write(rope_write, torch.device("cpu"), dtype, head_dim, heads)


#: the interpreter takes a second for some
EXAMPLES = int(os.environ.get("VLA_ROS_EXAMPLES", "8"))


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(
    case=cases(dims=(16,), most=140),
    parts=st.sampled_from((None, 1, 3, 5)),
    dtype=st.sampled_from((torch.float32, torch.bfloat16)),
)
def compare_tails(case: Case, parts: int | None, dtype: torch.dtype) -> None:
    from vla_ros.engine.layers.kernels.tail_attention_triton import TritonTail

    kv_cache, plan, q = case.made(dtype)
    got = TritonTail(kv_cache, plan, parts)(0, q, 0.3).float()
    wanted = case.token_by_token(kv_cache, q.float(), 0.3)
    limit = 1e-5 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(got, wanted, atol=limit, rtol=limit)


def check_all_tails() -> None:
    from vla_ros.engine.layers.kernels.tail_attention_triton import TritonTail

    for dtype in (torch.float32, torch.bfloat16):
        for heads in (Heads(4, 4), Heads(14, 2)):
            check_tail(TritonTail, torch.device("cpu"), dtype, 64, heads)


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(st.data())
def compare_products(data: st.DataObject) -> None:
    """Every way, of sizes that fit no block, of rows that lie apart, with and without a bias."""
    from vla_ros.engine.layers.kernels.layer_triton import product

    dtype = data.draw(st.sampled_from((torch.float32, torch.bfloat16, torch.float16)))
    rows = data.draw(st.sampled_from((1, 2, 3, 4, 5, 16, 17, 130)))
    count, width = data.draw(st.integers(1, 150)), data.draw(st.integers(1, 300))
    gap = data.draw(st.sampled_from((0, 3)))
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    x = torch.randn(rows, width + gap, generator=random).to(dtype)[:, :width]
    weight = torch.randn(count, width + gap, generator=random).to(dtype)[:, :width]
    bias = data.draw(st.sampled_from((None, torch.randn(count, generator=random).to(dtype))))
    exact = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    way = data.draw(st.sampled_from(ways(rows, torch.bfloat16)))
    got = product(x, weight, bias, way)
    assert got.dtype == dtype and got.shape == (rows, count)
    limit = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.float(), exact, atol=limit * width**0.5, rtol=limit)


def check_all_products() -> None:
    from vla_ros.engine.layers.kernels.layer_triton import product

    random = torch.Generator().manual_seed(0)
    numbers = torch.randn(200, 328, generator=random).bfloat16()
    for rows in (1, 3, 16, 130):
        x, weight = numbers[:rows], numbers[130:]
        for way in ways(rows, torch.bfloat16):
            for bias in (None, weight[:, 0].contiguous()):
                check_product(partial(product, way=way), x, weight, bias)


def check_few_bits() -> None:
    """Rows rounded to e4m3, products of many rows with int8, of any with int4."""
    from vla_ros.engine.layers.int4 import Int4
    from vla_ros.engine.layers.int8 import Int8
    from vla_ros.engine.layers.kernels.layer_triton import int4_product, product
    from vla_ros.engine.layers.kernels.layer_triton import rounded_rows as made
    from vla_ros.engine.layers.kernels.torch_products import GROUP, rounded_rows
    from vla_ros.engine.layers.tiles import INT4_TILES, INT8_TILES

    random = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        for width in (16, 300, 4304):
            x = torch.randn(5, width + 4, generator=random).to(dtype)[:, :width]
            x[0], x[1] = 0, x[1] * 1e-4
            (one, factor), (other, wanted) = made(x), rounded_rows(x)
            torch.testing.assert_close(factor, wanted, rtol=1e-6, atol=0)
            apart = other.view(torch.uint8).int() - one.view(torch.uint8).int()
            # The interpreter makes 16 of 31.6, not 32, and rounds what is halfway upwards.
            assert set(apart.unique().tolist()) <= {-1, 0, 1, 8}
            assert (apart > 0).float().mean() < 0.1
    x[2, 3] = float("nan")
    assert made(x)[1].isnan().tolist() == [False, False, True, False, False]
    x, weight = torch.randn(70, 90, generator=random).bfloat16(), Int8.of(torch.randn(50, 90))
    for way in INT8_TILES:
        check_product(
            lambda x, values, _: product(x, weight.values, None, way, gate=weight.scale),  # noqa: B023
            x, weight.whole(),
        )  # fmt: skip
    for width in (96, 320):
        nibbles = Int4.of(torch.randn(50, width, generator=random))
        for way, rows in zip(INT4_TILES, (3, 70), strict=True):
            x = torch.randn(rows, width, generator=random).bfloat16()
            check_product(
                lambda x, values, _: int4_product(x, nibbles.values, nibbles.scale, GROUP, way),  # noqa: B023
                x, nibbles.whole(),
            )  # fmt: skip


def choose_few_bits() -> None:
    """What is taken on a GPU where Triton's are faster multiplies int8 and int4 as they are."""
    from support.engine import CPU
    from vla_ros.engine.layers import tuner
    from vla_ros.engine.layers.int4 import Int4
    from vla_ros.engine.layers.int8 import Int8

    spent = itertools.count(9.0, -1.0)  # what is timed later is faster

    def timed(call: Callable[[], object]) -> float:
        call()
        return next(spent)

    tuner._TIMED, tuner._PROMPT, tuner.stopwatch = 64, 20, lambda device: timed
    eight = tuner._many_int8_rows(CPU)
    tuner.stopwatch = lambda device: lambda call: 1.0
    four = tuner._int4_as_stored(CPU)
    weight, x = torch.randn(27, 50), torch.randn(20, 50).bfloat16()
    for made in (replace(Int8.of(weight), many=eight), replace(Int4.of(weight), product=four)):
        check_product(lambda x, *_: made.times(x), x, made.whole())  # noqa: B023


def tune_an_engine() -> None:
    """Graphs whose products are Triton's say what torch's say."""
    from support.engine import CPU, TEXTS, Again, engine_of, play, stream, tiny, tiny_config
    from support.tuned import MadeUp
    from vla_ros.engine.decoding import tokens
    from vla_ros.engine.layers.kernels.layer_triton import product
    from vla_ros.engine.layers.tuner import PRODUCT, TORCH, choose_tuner
    from vla_ros.engine.models import openvla

    tokens.MAX_TEXT = 48  # few lengths of prompts to prepare for
    assert choose_tuner(CPU, torch.float32) is not None  # what is tried there is right
    made = MadeUp({TORCH: 2.0, "GEMV 4x512": 1.0}, kernel=lambda way: partial(product, way=way))
    openvla.choose_tuner = lambda device, dtype: made.tuner  # type: ignore[assignment]
    checkpoint, events = tiny(tiny_config("llama_gqa"), dim=2, seed=1), stream(2, {0: TEXTS[0]})
    tuned = play(engine_of(checkpoint, "autoregressive", Again(), gemm="auto"), events)
    chosen = [choice for choice in made.tuner.choices if choice.kind == PRODUCT]
    few = [choice.way for choice in chosen if choice.rows == 1]
    assert few and set(few) == {"GEMV 4x512"} and not made.tuner.unfit
    plain = play(engine_of(checkpoint, "autoregressive", Again(), gemm="torch"), events)
    assert [a.tokens for a in tuned.values()] == [a.tokens for a in plain.values()]


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(st.data())
def compare_steps(data: st.DataObject) -> None:
    """The steps of a flow policy's layer, of sizes that fit no block: without K and V or Q, with
    adaRMS, where K and V are written, masks of one row and of all."""
    from vla_ros.engine.layers.kernels.layer_triton import (
        attend,
        norm_gate_up,
        norm_linear,
        norm_qkv_rope,
    )
    from vla_ros.engine.layers.tiles import Tile
    from vla_ros.engine.models import transformer

    dtype = data.draw(st.sampled_from((torch.float32, torch.bfloat16)))
    limit = 1e-5 if dtype == torch.float32 else 0.03
    rows, width, middle = (data.draw(st.integers(1, most)) for most in (70, 80, 60))
    query, kv = data.draw(st.sampled_from(((4, 1), (6, 3), (3, 0), (0, 2))))
    dim = 2 * data.draw(st.integers(1, 20))
    way = data.draw(st.sampled_from((Tile(16, 16, 32, stages=1), Tile(64, 32, 16, stages=1))))
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random).to(dtype)

    def near(one: torch.Tensor, other: torch.Tensor) -> None:
        assert one.dtype == other.dtype and one.shape == other.shape
        assert float((one.float() - other.float()).norm()) <= limit * float(other.float().norm())

    def folded(weight: torch.Tensor) -> torch.Tensor | None:
        return None if change is None else change.shift.float() @ weight.float().T

    x = normal(rows, width + 3)[:, :width]
    qkv, gate_up = normal((query + 2 * kv) * dim, width), normal(2 * middle, width)
    layer = transformer.Layer(qkv * width**-0.5, qkv, gate_up * width**-0.5, qkv)
    change = None
    if data.draw(st.booleans()):
        change = transformer.Modulation(1 + normal(width), normal(width), normal(width))
    scale = None if change is None else change.scale
    gelu = data.draw(st.booleans())
    config = TextConfig("gemma" if gelu else "llama", 1, width, middle, 1, 8, 8, dim)

    wanted = transformer.norm_gate_up(x, layer, config, change)
    up = layer.gate_up
    near(norm_gate_up(x, up, folded(up), scale, config.rms_eps, gelu, way), wanted)
    wanted = F.linear(transformer._normed(x, config, change), up)
    near(norm_linear(x, up, folded(up), scale, config.rms_eps, way), wanted)
    rope = transformer.Rope(*torch.randn(2, rows, dim // 2, generator=random).repeat(1, 1, 2))
    buffers = torch.zeros(2, kv, rows + 5, dim, dtype=dtype)
    into = (buffers[0, :, 2 : rows + 2], buffers[1, :, 2 : rows + 2])
    q, k, v = transformer.norm_qkv_rope(x, layer, config, (query, kv), rope, None, change)
    given = x, layer.qkv, folded(layer.qkv), scale, config.rms_eps, (query, kv), rope.cos, rope.sin
    for there in (None, into):
        every = norm_qkv_rope(*given, there, way).transpose(0, 1)
        near(every, torch.cat((q, k, v)))
    near(into[0], k)
    near(into[1], v)
    assert not buffers[:, :, :2].any() and not buffers[:, :, rows + 2 :].any()
    if query and kv:
        mask = data.draw(st.sampled_from((None, 1, rows)))
        hidden = None
        if mask is not None:
            hidden = torch.zeros(mask, rows + 5, dtype=dtype)
            hidden[:, 1:3] = float("-inf")
            hidden[0, 4:] = float("-inf")
        near(attend(q, *buffers, hidden, way), transformer.attend(q, *buffers, hidden))


def check_flow_layers() -> None:
    """pi0, pi0.5 and SmolVLA of odd sizes: each step of each layer by its kernel, which is held to
    torch's when it is chosen, and the chunk to torch's chunk."""
    from support.engine import Again
    from support.flow import chunk_of, model_of, tiny_flow, tuned_model
    from vla_ros.engine.layers import tuner as tuning
    from vla_ros.engine.layers.kernels.layer_triton import product
    from vla_ros.engine.layers.tiles import Tile
    from vla_ros.engine.layers.tuner import PRODUCT, Tuner
    from vla_ros.engine.models import transformer

    some = (Tile(32, 16, 32, stages=1), Tile(16, 32, 16, stages=1))
    tuning.ways = lambda rows, dtype: ()  # products alone stay torch's
    transformer.paired_ways = transformer.sum_ways = lambda rows, dtype: some  # type: ignore[assignment]
    transformer.attention_ways = lambda dtype: some  # type: ignore[assignment]
    for kind in ("pi0", "pi05", "smolvla"):
        for dtype, limit in ((torch.float32, 1e-5), (torch.bfloat16, 0.1)):
            # What is timed later is faster; torch's own comes first.
            spent = (0.9**number for number in itertools.count())

            def seconds(call: Callable[[], object], spent: Iterator[float] = spent) -> float:
                call()
                return next(spent)

            tuner = Tuner(lambda way: partial(product, way=way), seconds)
            config = tiny_flow(kind)
            ours = chunk_of(tuned_model(config, tuner, dtype), config)
            wanted = chunk_of(model_of(config, Again(), dtype), config)
            assert not tuner.unfit
            assert {c.way for c in tuner.choices if c.kind != PRODUCT} == {str(some[1])}
            off = float((ours - wanted).abs().max() / wanted.abs().max())
            assert off < limit, f"{kind} {dtype}: {off}"


def compare_engines() -> None:
    """The whole engine with the kernel in place says what it says without."""
    from support.engine import CPU, TEXTS, engine_of, play, stream, tiny, tiny_config
    from vla_ros.engine.layers import backends

    checkpoint = tiny(tiny_config("llama_gqa"), dim=2, seed=1)
    engine = engine_of(checkpoint, "actionflow")
    assert backends.choose_rope_write(CPU, 16) is not None
    assert "Triton" in engine.model.attention.name
    assert backends.choose_between(CPU, torch.float32, 64, 160) is not PLAIN
    may_run = backends.triton_may_run
    backends.triton_may_run = lambda device: False  # type: ignore[assignment]
    plain = engine_of(checkpoint, "actionflow")
    assert backends.choose_rope_write(CPU, 16) is None
    assert backends.choose_between(CPU, torch.float32, 64, 160) is PLAIN
    events = stream(4, {0: TEXTS[0]})
    one, other = play(engine, events), play(plain, events)
    assert len(one) == 3
    assert [a.tokens for a in one.values()] == [a.tokens for a in other.values()]
    options = {"drafter": "temporal_tree", "adaptive_draft": False}
    events = events[:2]
    trees = play(engine_of(checkpoint, "speculative", **options), events)
    backends.triton_may_run = may_run  # type: ignore[assignment]
    again = play(engine_of(checkpoint, "speculative", **options), events)
    assert [a.tokens for a in trees.values()] == [a.tokens for a in again.values()]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.timeout(900)  # half a minute of one core; a busy machine gave it a seventh of one
def test_the_triton_kernel_in_its_interpreter() -> None:
    """In a process of its own: the interpreter is chosen when Triton is first imported."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "all equal" in done.stdout


if __name__ == "__main__":
    from vla_ros.engine.layers.kernels.layer_triton import KERNELS

    torch.set_num_threads(1)
    for widths in ((64, 160), (896, 4864), (80, 1100)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            check_between(KERNELS, torch.device("cpu"), dtype, *widths)
    for shape in (Heads(4, 4), Heads(4, 2), Heads(14, 2)):
        compare(shape, torch.float32, 1e-6)
        compare(shape, torch.bfloat16, 2e-2)
        tried(shape)
    check_all_tails()
    compare_tails()
    check_all_products()
    compare_products()
    check_few_bits()
    choose_few_bits()
    tune_an_engine()
    compare_engines()
    compare_steps()
    check_flow_layers()
    print("all equal")
