"""The kernels of GPUs, tried before anything depends on them: on a CPU, by stand-ins."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vla_ros.engine.layers import devices, tuner
from vla_ros.engine.layers.fp8 import Fp8
from vla_ros.engine.layers.int8 import Int8
from vla_ros.engine.layers.kernels import torch_products

CPU = torch.device("cpu")


def test_what_is_tried_passes_where_the_kernels_are_right() -> None:
    """torch's CPU has all three, under these names or another."""
    assert tuner._tinygemm(CPU)
    assert tuner._scaled_mm(CPU)


@pytest.mark.parametrize(
    ("kernel", "attempt"),
    [
        ("_weight_int8pack_mm", tuner._few_int8_rows),
        ("_weight_int4pack_mm_for_cpu", tuner._tinygemm),
        ("_scaled_mm", tuner._scaled_mm),
    ],
)
def test_a_kernel_that_says_something_else_is_found(
    kernel: str, attempt, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    right = getattr(torch, kernel)
    monkeypatch.setattr(torch, kernel, lambda *a, **k: right(*a, **k) * 1.1)
    with pytest.raises(RuntimeError, match="off by 0"):
        attempt(CPU)


def test_int8_that_is_slower_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([1.0, 2.0, 1.0, 2.0, 3.0, 2.0])
    monkeypatch.setattr(tuner, "stopwatch", lambda device: lambda run: next(took))
    assert tuner._few_int8_rows(CPU) == 2  # for four rows it took 3, the other way 2
    monkeypatch.setattr(tuner, "stopwatch", lambda device: lambda run: next(took, 1.0))
    took = iter([2.0, 1.0])
    with pytest.raises(RuntimeError, match="slower"):
        tuner._few_int8_rows(CPU)


def test_what_fails_is_one_line_and_something_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(devices, "_log", type("Log", (), {"warning": staticmethod(said.append)}))
    devices.warn_once.cache_clear()

    def fails(device: torch.device) -> int:
        raise NotImplementedError("Could not run 'aten::_weight_int8pack_mm'\nwith arguments")

    monkeypatch.setattr(tuner, "_few_int8_rows", fails)
    meta = torch.device("meta")
    tuner.fastest_int8.cache_clear()
    assert tuner.fastest_int8(meta) == (0, None)
    tuner.fastest_int8.cache_clear()
    (line,) = said
    assert "bfloat16 on the way runs instead" in line
    assert "\n" not in line
    weight, x = torch.randn(40, 64).bfloat16(), torch.randn(2, 64).bfloat16()
    made = Int8.of(weight)
    exact = F.linear(x.float(), made.whole().float())
    off = (made.times(x).float() - exact).norm() / exact.norm()  # few is 0 as on such a device
    assert float(off) < 0.01


def test_tinygemms_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that reads pairs as torch's documentation of the CUDA kernel has them: the even
    column in the high half of a byte, tiles of 16 columns, 2, 4 or 8 behind each other."""
    tiles: list[int] = []

    def convert(pairs: torch.Tensor, inner: int) -> torch.Tensor:
        assert pairs.dtype == torch.uint8
        assert pairs.is_contiguous()
        assert 2 * pairs.shape[1] % (16 * inner) == 0
        tiles.append(inner)
        return pairs

    monkeypatch.setattr(torch, "_convert_weight_to_int4pack", convert)
    for width in (32, 64, 96, 128, 320):
        codes = torch.randint(0, 16, (16, width), dtype=torch.int32)
        pairs = torch_products.tinygemm_packed(codes)
        back = torch.stack((pairs >> 4, pairs & 15), -1).flatten(1)
        assert torch.equal(back.int(), codes)
    assert tiles == [2, 4, 2, 8, 4]


@pytest.mark.parametrize("shape", [(48, 64), (27, 50)])
@pytest.mark.parametrize("rows", [1, 19])
def test_the_gpus_way_of_fp8_says_what_the_reference_says(
    shape: tuple[int, int], rows: int
) -> None:
    """Padded as for a GPU and through torch's product, which a CPU has too."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator).bfloat16()
    x = torch.randn(rows, shape[1], generator=generator).bfloat16()
    made = Fp8.of(weight)
    fast = made.padded()
    assert fast.fast
    assert fast.shape == made.shape == shape
    assert all(size % 16 == 0 for size in fast.values.shape)
    assert torch.equal(fast.whole(), made.whole())
    out, reference = fast.times(x), made.times(x)
    assert out.shape == reference.shape
    torch.testing.assert_close(out, reference, rtol=0.01, atol=0.02)
