"""Weights of fewer bits: what they are off by, and that the products are those of the weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_ros.engine.quantised.formats import Formats, parse_formats
from vla_ros.engine.quantised.matrices import (
    Int4,
    Int8,
    Quantised,
    linear,
    quantise,
    rows_of,
    stacked,
)

KINDS = ("int8", "int4")


def matrix(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, width, generator=generator) * width**-0.5).bfloat16()


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), rows=st.integers(1, 6), groups=st.integers(1, 5))
def test_no_value_is_off_by_more_than_half_a_step(
    kind: str, seed: int, rows: int, groups: int
) -> None:
    weight = matrix(16 * rows, 32 * groups, seed)
    made = quantise(weight, kind, "w")
    off = (made.whole().float() - weight.float()).abs()
    parts = weight.float() if kind == "int8" else weight.float().view(len(weight), -1, 32)
    reach = 2 * parts.abs().amax(-1) if kind == "int8" else parts.amax(-1) - parts.amin(-1)
    step = reach / (254 if kind == "int8" else 15)
    # scales and results are bfloat16: 2 ** -8 of the largest on top
    allowed = 0.5 * step + 2**-7 * parts.abs().amax(-1)
    assert (off.view(parts.shape) <= allowed[..., None] + 1e-6).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 7, 8, 9, 100])
@pytest.mark.parametrize("shape", [(1040, 64), (48, 160)])
def test_products_are_those_of_the_matrix(kind: str, count: int, shape: tuple[int, int]) -> None:
    made = quantise(matrix(*shape), kind, "w")
    x = matrix(count, shape[1], 1)
    exact = F.linear(x.float(), made.whole().float())
    out = linear(x, made.ready())
    assert out.dtype == torch.bfloat16
    assert float((out.float() - exact).norm() / exact.norm()) < 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_batches_and_bias(kind: str) -> None:
    made = quantise(matrix(32, 64), kind, "w").ready()
    x, bias = matrix(6, 64, 2).view(2, 3, 64), matrix(1, 32, 3)[0]
    out = linear(x, made, bias)
    assert out.shape == (2, 3, 32)
    torch.testing.assert_close(out[1, 2], linear(x[1, 2:], made)[0] + bias, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_quantised_by_themselves(kind: str) -> None:
    one, other = matrix(32, 96, 1), matrix(64, 96, 2)
    apart = stacked([quantise(one, kind, "a"), quantise(other, kind, "b")])
    together = quantise(torch.cat((one, other)), kind, "c")
    assert torch.equal(apart.values, together.values)
    assert torch.equal(apart.scale, together.scale)
    assert torch.equal(together.rows(32, 96).whole(), quantise(other, kind, "b").whole())
    assert len(apart) == 96
    assert apart.parameters == 96 * 96


def test_a_row_of_zeros_stays_zero() -> None:
    for kind in KINDS:
        made = quantise(torch.zeros(16, 32).bfloat16(), kind, "w")
        assert not made.whole().any()


@pytest.mark.parametrize(
    ("shape", "kind"), [((16, 52), "int8"), ((16, 52), "int4"), ((17, 64), "int4")]
)
def test_sizes_that_the_kernels_would_get_wrong(shape: tuple[int, int], kind: str) -> None:
    with pytest.raises(ValueError, match=r"the.name is 1\d x \d+: int\d needs a multiple"):
        quantise(matrix(*shape), kind, "the.name")


def test_some_rows_of_a_head() -> None:
    head = matrix(96, 64)
    eight: Quantised = Int8.of(head)
    part = rows_of(eight, range(32, 64))
    assert isinstance(part, Int8)
    assert torch.equal(part.whole(), eight.whole()[32:64])
    assert rows_of(head, range(32, 64)) is not head
    four = Int4.of(head).ready()
    assert rows_of(four, range(96)) is four
    with pytest.raises(ValueError, match="give head=int8"):
        rows_of(four, range(32, 64))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", Formats()),
        ("bf16", Formats()),
        ("int8", Formats(decoder="int8", head="int8")),
        ("decoder=int4", Formats(decoder="int4")),
        (" head=int8, decoder=int4 ,vision=bf16", Formats(decoder="int4", head="int8")),
    ],
)
def test_formats(text: str, found: Formats) -> None:
    assert parse_formats(text) == found
    assert parse_formats(str(found)) == found
    assert bool(found) == (text not in ("", "bf16"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("int3", "give bf16, int8, int4"),
        ("fp8", "needs a GPU"),
        ("decoder=fp8", "needs a GPU"),
        ("tower=int8", "vision, decoder, head"),
        ("head=int8,head=int4", "once at most"),
        ("int8,int4", "once at most"),
    ],
)
def test_formats_that_are_none(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_formats(text)
