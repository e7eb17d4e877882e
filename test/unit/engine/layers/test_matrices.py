"""Weights of fewer bits: what they are off by, and that the products are those of the weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_ros.engine.formats import Formats, parse_formats
from vla_ros.engine.layers import int8
from vla_ros.engine.layers.fp8 import Fp8
from vla_ros.engine.layers.int4 import Int4
from vla_ros.engine.layers.int8 import Int8
from vla_ros.engine.layers.kernels import torch_products
from vla_ros.engine.layers.kernels.torch_products import as_bfloat16, rounded_rows
from vla_ros.engine.layers.linear import LowBit, linear, quantize, rows_of, stacked
from vla_ros.engine.layers.tuner import multiplies_integers

KINDS = ("int8", "int4", "fp8")


def matrix(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, width, generator=generator) * width**-0.5).bfloat16()


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), rows=st.integers(1, 90), width=st.integers(1, 150))
def test_no_value_is_off_by_more_than_half_a_step(
    kind: str, seed: int, rows: int, width: int
) -> None:
    """Of any size: a step is the format's, of its row or group."""
    weight = matrix(rows, width, seed)
    made = quantize(weight, kind)
    assert made.shape == (rows, width)
    exact, off = weight.float(), (made.whole().float() - weight.float()).abs()
    if kind == "fp8":  # three bits behind the leading one, and a last step below 2 ** -6
        largest = exact.abs().amax(1, keepdim=True)
        half = torch.maximum(exact.abs() * 2**-4, largest / 448 * 2**-10)
    elif kind == "int8":
        half = exact.abs().amax(1, keepdim=True) / 254
    else:
        groups = F.pad(exact, (0, -width % 32)).view(rows, -1, 32)
        step = (groups.amax(-1) - groups.amin(-1)) / 15
        half = 0.5 * step.repeat_interleave(32, 1)[:, :width]
    # scales and results are bfloat16: 2 ** -8 of the largest on top
    allowed = half + 2**-7 * exact.abs().amax(1, keepdim=True)
    assert (off <= allowed + 1e-6).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 7, 8, 9, 100, 600])
@pytest.mark.parametrize("shape", [(1040, 64), (48, 160), (27, 50)])
def test_products_are_those_of_the_matrix(kind: str, count: int, shape: tuple[int, int]) -> None:
    made = quantize(matrix(*shape), kind)
    x = matrix(count, shape[1], 1)
    given = x.float()
    if kind == "fp8":  # which rounds its inputs too
        rows, factor = rounded_rows(x)
        given = rows.float() * factor[:, None]
    ready = made.ready()
    if isinstance(ready, Int8) and ready.packed is not None:  # and so does a CPU with VNNI
        step = given.abs().amax(1, keepdim=True) / 127
        given = (given / step).round() * step
    exact = F.linear(given, made.whole().float())
    out = linear(x, ready)
    assert out.shape == exact.shape
    assert out.dtype == torch.bfloat16
    assert float((out.float() - exact).norm() / exact.norm()) < 0.01


@pytest.fixture(params=[False, True], ids=["bfloat16", "integers"])
def integers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether int8 is multiplied as integers, as on a CPU with VNNI."""
    if request.param and not multiplies_integers(torch.device("cpu")):
        pytest.skip("this CPU has no VNNI")
    monkeypatch.setattr(int8, "multiplies_integers", lambda device: request.param)
    return bool(request.param)


def test_int8_is_held_once_and_can_be_had_again(integers: bool) -> None:
    weight, x = matrix(96, 50), matrix(5, 50, 1)
    made, ready = Int8.of(weight), Int8.of(weight).ready()
    assert (ready.packed is not None) == integers
    assert ready.values.numel() in (0, 96 * 64)  # padded for torch's kernel, or let go
    assert ready.shape == made.shape
    assert len(ready) == 96
    assert ready.parameters == made.parameters
    assert torch.equal(ready.whole(), made.whole())
    part = ready.rows(32, 64)
    assert torch.equal(part.whole(), made.whole()[32:64])
    torch.testing.assert_close(linear(x, part), linear(x, ready)[:, 32:64], rtol=0, atol=0)


def test_a_row_of_integers_is_what_it_is_alone() -> None:
    """Sums of integers are exact, so an answer does not depend on how many rows a pass has."""
    if not multiplies_integers(torch.device("cpu")):
        pytest.skip("this CPU has no VNNI")
    made, x = quantize(matrix(300, 130), "int8").ready(), matrix(89, 130, 1)
    together = linear(x, made)
    for count in (1, 2, 3, 4, 7, 64):
        assert torch.equal(linear(x[:count], made), together[:count])
    assert not linear(torch.zeros(2, 130).bfloat16(), made).any()
    x[1, 5] = float("nan")
    found = linear(x, made)
    assert found[1].isnan().all()
    assert torch.equal(found[2:], together[2:])


@pytest.mark.parametrize("kind", KINDS)
def test_batches_and_bias(kind: str) -> None:
    made = quantize(matrix(32, 64), kind).ready()
    x, bias = matrix(6, 64, 2).view(2, 3, 64), matrix(1, 32, 3)[0]
    out = linear(x, made, bias)
    assert out.shape == (2, 3, 32)
    torch.testing.assert_close(out[1, 2], linear(x[1, 2:], made)[0] + bias, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_quantized_by_themselves(kind: str) -> None:
    one, other = matrix(32, 96, 1), matrix(64, 96, 2)
    apart = stacked([quantize(one, kind), quantize(other, kind)])
    together = quantize(torch.cat((one, other)), kind)
    assert torch.equal(apart.values.view(torch.uint8), together.values.view(torch.uint8))
    assert torch.equal(apart.scale, together.scale)
    assert torch.equal(together.rows(32, 96).whole(), quantize(other, kind).whole())
    assert len(apart) == 96
    assert apart.parameters == 96 * 96


def test_every_e4m3_value_is_what_torch_says() -> None:
    every = torch.arange(256).to(torch.uint8)
    every = every[(every & 0x7F) != 0x7F].view(torch.float8_e4m3fn)  # without NaN
    assert torch.equal(as_bfloat16(every), every.bfloat16())


def test_a_row_of_zeros_stays_zero() -> None:
    for kind in KINDS:
        made = quantize(torch.zeros(16, 32).bfloat16(), kind)
        assert not made.whole().any()


def test_some_rows_of_a_head() -> None:
    head = matrix(96, 64)
    eight: LowBit = Int8.of(head)
    part = rows_of(eight, range(32, 64))
    assert isinstance(part, Int8)
    assert torch.equal(part.whole(), eight.whole()[32:64])
    assert rows_of(head, range(32, 64)) is not head
    little = rows_of(Fp8.of(head).ready(), range(32, 64))
    assert isinstance(little, Fp8)
    assert torch.equal(little.whole(), Fp8.of(head[32:64]).whole())
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
        ("fp8", Formats(decoder="fp8", head="fp8")),
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
        ("decoder=fp4", "give bf16, int8, int4, fp8"),
        ("tower=int8", "vision, decoder, head"),
        ("head=int8,head=int4", "once at most"),
        ("int8,int4", "once at most"),
    ],
)
def test_formats_that_are_none(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_formats(text)


@pytest.mark.parametrize("rows", [1, 4, 89])
def test_many_rows_in_bfloat16_without_instructions_for_it(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are summed in float32 and rounded once: whatever the CPU, the exact product's bits."""
    weight, x, bias = matrix(1100, 160), matrix(rows, 160, 1), matrix(1, 1100, 2)[0]
    exact = F.linear(x.float(), weight.float()).bfloat16()
    asked: list[torch.dtype] = []

    def product(x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        asked.append(x.dtype)
        return F.linear(x, *more)

    class Watched:
        linear, pad = staticmethod(product), staticmethod(F.pad)

    monkeypatch.setattr(torch_products, "F", Watched)
    for wide in (torch.float32, torch.bfloat16):
        monkeypatch.setattr(torch_products, "wide_type", lambda device, wide=wide: wide)
        asked.clear()
        with torch.inference_mode():
            out = linear(x, weight)
            both = linear(x, weight, bias)
        many = wide == torch.float32 and rows >= 4
        assert set(asked) == {torch.float32 if many else torch.bfloat16}
        if many:
            assert torch.equal(out, exact)
            assert torch.equal(both, exact + bias)
        asked.clear()
        linear(x, weight.requires_grad_())  # what has a gradient is torch's
        assert asked == [torch.bfloat16]
        eight = Int8.of(weight.detach()).ready()
        torch.testing.assert_close(linear(x, eight), linear(x, eight.whole()), rtol=0.02, atol=0.02)
