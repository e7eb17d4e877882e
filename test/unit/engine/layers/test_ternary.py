"""Two bits a weight: what is packed comes back, and every product gives the same integers."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_ros.engine.layers import ternary as products
from vla_ros.engine.layers.linear import LowBitLinear, linear, rows_of, stacked
from vla_ros.engine.layers.ternary import (
    Product,
    Ternary,
    by_float32,
    by_int8,
    check_product,
    choose_product,
    int8_rows,
    pack,
    plane,
    reference,
    unpack,
)

CPU = torch.device("cpu")
BOTH = pytest.mark.parametrize("product", [by_int8, by_float32], ids=["int8", "float32"])


def signs(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, (rows, width), generator=random, dtype=torch.int8)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=50)
@given(rows=st.integers(1, 9), width=st.integers(1, 300), seed=st.integers(0, 2**31))
def test_what_is_packed_comes_back(rows: int, width: int, seed: int) -> None:
    values = signs(rows, width, seed)
    packed = pack(values)
    assert packed.shape == (rows, plane(width))
    assert torch.equal(unpack(packed, width), values)


def test_a_weight_takes_two_bits() -> None:
    made = Ternary.of(normal(96, 6912))
    assert made.packed.nbytes * 4 == made.parameters == 96 * 6912


@BOTH
@settings(deadline=None, max_examples=25)
@given(
    count=st.integers(1, 40), rows=st.integers(1, 50), width=st.integers(1, 200),
    seed=st.integers(0, 2**31),
)  # fmt: skip
def test_the_integers_are_those_of_the_reference(
    product: Product, count: int, rows: int, width: int, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    x = torch.randint(-128, 128, (count, 4 * plane(width)), generator=random).to(torch.int8)
    x[:, width:] = 0
    packed = pack(signs(rows, width, seed))
    given_ = x, torch.ones(count), packed, torch.ones(rows)
    assert torch.equal(product(*given_, torch.float32), reference(*given_, torch.float32))


@BOTH
def test_the_largest_sums_are_exact(product: Product) -> None:
    """Columns of the published model's widest matrix, all of one sign, over more than one tile."""
    width = 6912
    x = torch.stack((torch.full((width,), 127), torch.full((width,), -128))).to(torch.int8)
    packed = pack(torch.stack((torch.ones(width), -torch.ones(width))).to(torch.int8))
    given_ = x, torch.ones(2), packed.repeat(600, 1), torch.ones(1200)
    found = product(*given_, torch.float32)
    assert found[0, 0] == 127 * width
    assert found[1, 1199] == 128 * width
    assert torch.equal(found, reference(*given_, torch.float32))


@BOTH
def test_what_is_tried_before_a_product_is_used(product: Product) -> None:
    check_product(product, CPU)
    with pytest.raises(ValueError, match="off by 1"):
        check_product(lambda *given_: product(*given_) + 1, CPU)


def test_without_vnni_the_product_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_product.cache_clear()
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    assert choose_product(CPU) is by_float32
    choose_product.cache_clear()
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True)
    assert choose_product(CPU) is by_int8
    choose_product.cache_clear()


def test_a_gpu_without_triton_has_torch_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(device: torch.device) -> Product:
        raise ImportError("No module named 'triton'")

    choose_product.cache_clear()
    monkeypatch.setattr(products, "_triton", fails)
    assert choose_product(torch.device("cuda:0")) is by_float32
    choose_product.cache_clear()
    assert "Ternary product: Triton's kernel fails (ImportError" in caplog.text


def test_weights_and_inputs_are_rounded_as_the_authors_round() -> None:
    """Their lines, written out: what both make of a value that lies between two steps."""
    weight, x = normal(24, 40) * 0.02, normal(5, 40, seed=1)
    s = 1.0 / weight.abs().mean().clamp_(min=1e-5)
    theirs = (weight * s).round().clamp(-1, 1) / s
    made = Ternary.of(weight)
    assert torch.equal(made.whole(), theirs)
    inverse = 127 / x.abs().max(dim=-1, keepdim=True).values.clamp_(min=1e-5)
    values, factor = int8_rows(x)
    assert torch.equal(values, (x * inverse).round().clamp(-128, 127).to(torch.int8))
    rounded = (x * inverse).round().clamp(-128, 127) / inverse
    assert torch.allclose(values * factor[:, None], rounded, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [40, 64, 4304])
def test_a_product_is_that_of_the_rounded_matrices(dtype: torch.dtype, width: int) -> None:
    made, x = Ternary.of(normal(50, width)).ready(), normal(9, width, seed=1).to(dtype)
    values, factor = int8_rows(x)
    exact = (values.double() * factor[:, None].double()) @ made.whole().double().t()
    out = linear(x, made)
    assert out.dtype == dtype
    step = 2**-23 if dtype == torch.float32 else 2**-8
    assert ((out.double() - exact).abs() <= 4 * step * exact.abs().clamp_min(1e-6)).all()


def test_matrices_on_top_of_each_other_keep_their_scales() -> None:
    parts = [Ternary.of(normal(16, 48, seed=i) * 10.0**i) for i in range(3)]
    x = normal(4, 48, seed=9)
    whole = stacked(parts).ready()
    apart = torch.cat([linear(x, part.ready()) for part in parts], 1)
    assert torch.equal(linear(x, whole), apart)
    assert torch.equal(linear(x, rows_of(whole, range(16, 32))), apart[:, 16:32])
    module = LowBitLinear(whole, torch.arange(48.0))
    assert torch.equal(module(x.view(2, 2, 48)), (apart + torch.arange(48.0)).view(2, 2, 48))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_does_not_become_an_integer(bad: float) -> None:
    """Int8 has no NaN: the row must still come out as none, and the others as they are."""
    made, x = Ternary.of(normal(8, 32)).ready(), normal(3, 32, seed=1)
    fine = linear(x, made)
    x[1, 7] = bad
    out = linear(x, made)
    assert not out[1].isfinite().any()
    assert torch.equal(out[[0, 2]], fine[[0, 2]])


def test_rows_and_weights_of_zeros() -> None:
    made = Ternary.of(torch.zeros(8, 32)).ready()
    assert (linear(normal(3, 32), made) == 0).all()
    assert (linear(torch.zeros(3, 32), Ternary.of(normal(8, 32)).ready()) == 0).all()


def test_a_matrix_that_is_too_wide_for_float32s_integers() -> None:
    with pytest.raises(ValueError, match="at most 65536 columns, not 65537"):
        Ternary.of(torch.zeros(1, 65537))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_triton_kernel_in_its_interpreter() -> None:
    """In a process of its own: the interpreter is chosen when Triton is first imported."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "all equal" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90, 120])
def test_the_triton_kernel_compiles_for_gpus_that_are_not_here(capability: int) -> None:
    """To products of int8 on tensor cores, in the shared memory that every GPU has."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from vla_ros.engine.layers.kernels.layer_triton import TERNARY_BLOCKS as BLOCKS
    from vla_ros.engine.layers.kernels.layer_triton import _ternary

    names = _ternary.arg_names
    types = {
        "rows": "*i8", "factor": "*fp32", "packed": "*u8", "scale": "*fp32", "out": "*bf16",
    }  # fmt: skip
    signature = {n: types.get(n, "i32") for n in names} | dict.fromkeys(BLOCKS, "constexpr")
    values = {(names.index(name),): value for name, value in BLOCKS.items()}
    source = ASTSource(fn=_ternary, signature=signature, constexprs=values)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert 0 < made.metadata.shared <= 48 * 1024
    assert "mma" in made.asm["ptx"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    from vla_ros.engine.layers.kernels.layer_triton import ternary_product as kernel

    check_product(kernel, CPU)
    assert choose_product(CPU) is kernel
    weight = Ternary.of(normal(70, 4304))
    given_rows, factors = int8_rows(normal(5, 4304, seed=1))
    beyond = 4 * weight.packed.shape[1] - 4304
    given_rows = torch.nn.functional.pad(given_rows, (0, beyond))
    for kind, allowed in ((torch.float32, 0.0), (torch.bfloat16, 2**-7)):
        ours = kernel(given_rows, factors, weight.packed, weight.scale, kind)
        wanted = by_float32(given_rows, factors, weight.packed, weight.scale, kind)
        # the interpreter cuts off what a GPU rounds to bfloat16
        torch.testing.assert_close(ours, wanted, rtol=allowed, atol=0.0)
    print("all equal")
