"""Whether anything but torch's products may run on a device."""

from __future__ import annotations

from functools import partial

import torch

from vla_ros.engine.gemm.stopwatch import stopwatch
from vla_ros.engine.gemm.tuner import Tuner
from vla_ros.engine.gemm.ways import Gemv, Product, Tile, Way, check_product
from vla_ros.engine.packed.devices import cache_bytes, triton_may_run
from vla_ros.engine.packed.probe import first_that_runs

_CACHES = 4  # sizes of a cache behind which nothing is left in it


def choose_tuner(device: torch.device, dtype: torch.dtype) -> Tuner | None:
    """What chooses between torch's products and Triton's; None where torch's are to be used."""
    if not triton_may_run(device):
        return None

    def kernels() -> Tuner:
        from vla_ros.engine.gemm.triton_kernels import product

        def made(way: Way) -> Product:
            return partial(product, way=way)

        random = torch.Generator().manual_seed(0)
        numbers = torch.randn(72, 200, generator=random).to(device, dtype)
        for way, rows in ((Gemv(4, 64, 4), 3), (Tile(16, 32, 64, parts=2), 20)):
            x, weight = numbers[:rows], numbers[rows:]
            for bias in (None, weight[:, 0].contiguous()):
                check_product(made(way), x, weight, bias)
        return Tuner(made, stopwatch(device), _CACHES * cache_bytes(device))

    return first_that_runs("GEMM", {"Triton's kernels": kernels}, "torch")[1]
