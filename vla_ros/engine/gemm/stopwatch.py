"""How long a device takes for some calls, without what the host takes to ask for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from vla_ros.engine.packed.devices import on_device

#: a call -> the seconds that its device is busy with it
Stopwatch = Callable[[Callable[[], object]], float]

_ROUNDS = 5
_CYCLES_A_SECOND = 2.5e9  # no GPU's clock is faster


def stopwatch(device: torch.device) -> Stopwatch:
    """The best of five rounds, behind one that is not counted.

    On CUDA the device is kept busy until everything is asked for, as a graph asks for it: kernels
    of microseconds would be timed by the host's pace otherwise.
    """
    return partial(_on_cuda, device) if device.type == "cuda" else _on_cpu


def _on_cpu(run: Callable[[], object]) -> float:
    run()
    return min(_host_seconds(run) for _ in range(_ROUNDS))


def _host_seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _on_cuda(device: torch.device, run: Callable[[], object]) -> float:
    with on_device(device):
        run()  # compiles
        torch.cuda.synchronize()
        asking = _host_seconds(run)
        torch.cuda.synchronize()
        best = float("inf")
        for _ in range(_ROUNDS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
            torch.cuda._sleep(int(2 * asking * _CYCLES_A_SECOND))
            begin.record()
            run()
            end.record()
            end.synchronize()
            best = min(best, begin.elapsed_time(end) * 1e-3)
    return best
