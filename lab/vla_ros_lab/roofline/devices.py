"""Devices: how fast they compute and read memory, and where each figure comes from."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vla_ros.core.origin import processor
from vla_ros_lab.roofline.work import COMPUTE


@dataclass(frozen=True, slots=True)
class Rate:
    """One figure, twice: what the maker states and what programs reach, each with its source.

    In FLOP/s or bytes/s.
    """

    peak: float
    achieved: float
    peak_from: str
    achieved_from: str

    def get(self, which: str) -> float:
        return self.peak if which == "peak" else self.achieved


@dataclass(frozen=True, slots=True)
class Device:
    """A device. ``compute`` by number format; ``memory_gb`` 0 where it does not matter."""

    name: str
    title: str
    compute: Mapping[str, Rate]
    memory: Rate
    memory_gb: float = 0.0
    notes: str = ""

    def computes(self, dtype: str) -> str:
        """The format in which it multiplies numbers of this one."""
        return "bf16" if dtype == "int8w" and dtype not in self.compute else dtype

    def flops(self, dtype: str, rates: str = "achieved") -> float:
        """FLOP/s in a format.

        Raises:
            ValueError: the device has no units for it.
        """
        dtype = self.computes(dtype)
        if dtype not in self.compute:
            known = ", ".join(self.compute)
            raise ValueError(f"{self.name} has no rate for {dtype}: it has {known}")
        return self.compute[dtype].get(rates)

    def bandwidth(self, rates: str = "achieved") -> float:
        """Bytes a second."""
        return self.memory.get(rates)


def load_devices(path: Path) -> dict[str, Device]:
    """The table of devices, by name.

    Raises:
        ValueError: a missing or wrong entry, with its key.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        sources = content["sources"]
        return {name: _device(name, entry, sources) for name, entry in content["devices"].items()}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: missing or malformed entry {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _device(name: str, entry: Mapping[str, Any], sources: Mapping[str, str]) -> Device:
    compute = {}
    for dtype, values in entry["tflops"].items():
        if dtype not in COMPUTE.values():
            raise ValueError(f"{name}: unknown format {dtype!r}")
        compute[dtype] = _rate(f"{name}.tflops.{dtype}", values, 1e12, sources)
    return Device(
        name=name,
        title=str(entry["title"]),
        compute=compute,
        memory=_rate(f"{name}.gb_s", entry["gb_s"], 1e9, sources),
        memory_gb=_size(f"{name}.memory_gb", entry["memory_gb"]),
        notes=str(entry.get("notes", "")),
    )


def _size(key: str, value: Any) -> float:
    if not 0 <= float(value) < math.inf:
        raise ValueError(f"{key} is {value}: give a size in GB, or 0 where it is unknown")
    return float(value)


def _rate(key: str, values: Any, unit: float, sources: Mapping[str, str]) -> Rate:
    if not isinstance(values, list) or len(values) != 4:
        raise ValueError(f"{key} is {values}: give [peak, its source, achieved, its source]")
    peak, peak_from, achieved, achieved_from = values
    for source in (peak_from, achieved_from):
        if source not in sources:
            raise ValueError(f"{key}: source {source!r} is not in sources")
    if not 0 < achieved <= peak < math.inf:
        raise ValueError(f"{key}: achieved {achieved} must be above 0 and at most peak {peak}")
    return Rate(peak * unit, achieved * unit, sources[peak_from], sources[achieved_from])


# The machine this runs on, as a device: a few seconds of matrix products and reads.
#
# Each figure is the best of several runs: what is reachable, not what is usual.


BUDGET_S = 0.8  # for each figure
LEAST_BYTES, MOST_BYTES = 1 << 22, 1 << 29


def measure(
    working_set: float, threads: int | None = None, gpu: bool = True, budget_s: float = BUDGET_S
) -> Device:
    """Measure this machine.

    Args:
        working_set: bytes read in a decode pass. The read rate is measured on an array of this
            size (4 MB to 512 MB), because what fits the cache is read faster than memory.
        threads: of torch; None takes the better of one and all.
        gpu: prefer the GPU where torch has one.
        budget_s: seconds for each figure.
    """
    import torch

    if gpu and torch.cuda.is_available():
        return _with_cuda(torch, budget_s)
    before = torch.get_num_threads()
    counts = (threads,) if threads else tuple(sorted({1, before}))
    try:
        return _with_torch(torch, _clip(working_set), counts, budget_s)
    finally:
        torch.set_num_threads(before)


def _clip(size: float) -> int:
    return int(min(max(size, LEAST_BYTES), MOST_BYTES))


def _best(run: Callable[[], Any], budget_s: float, sync: Callable[[], Any] | None = None) -> float:
    """Seconds of the fastest run; one is thrown away, then at least three."""
    run()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < budget_s:
        if sync:
            sync()
        start = time.perf_counter()
        run()
        if sync:
            sync()
        times.append(time.perf_counter() - start)
    return min(times)


def _measured_rate(value: float, how: str) -> Rate:
    return Rate(value, value, "measured just now: no data sheet was asked", how)


def _numbers(torch: Any, *shape: int, dtype: Any, device: str = "cpu") -> Any:
    """Random numbers, as weights are: ones take less power, so a GPU's clock would stay higher
    than it does at work."""
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(*shape, generator=generator, device=device, dtype=dtype)


def _readers(torch: Any, matrix: Any, vector: Any) -> tuple[Callable[[], Any], ...]:
    """Functions that read a matrix once, the same on every device: the fastest is its rate."""
    return partial(torch.mv, matrix, vector), matrix.sum


def _with_torch(torch: Any, size: int, threads: tuple[int, ...], budget_s: float) -> Device:
    """The best over the numbers of threads: on a busy machine more are not always faster."""
    from vla_ros.engine.layers.int8 import Int8
    from vla_ros.engine.layers.linear import for_one_row
    from vla_ros.engine.layers.prepacked import Prepacked, can_prepack
    from vla_ros.engine.layers.tuner import multiplies_integers

    n, width = 1024, 2048
    products: dict[str, list[Callable[[], Any]]] = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        a = _numbers(torch, n, n, dtype=dtype)
        products[name] = [partial(torch.mm, a, a)]
        if can_prepack(a.device, dtype):  # as the engine multiplies, where it can
            products[name].append(partial(Prepacked.of(a).times, a))
    if multiplies_integers(a.device):
        products["int8w"] = [partial(Int8.of(a).ready().times, a)]
    matrix = _numbers(torch, size // (4 * width), width, dtype=torch.float32)
    vector = _numbers(torch, width, dtype=torch.float32)
    readers = [*_readers(torch, matrix, vector)]
    if can_prepack(matrix.device, torch.float32):  # one row, as the engine multiplies it
        readers.append(partial(for_one_row(Prepacked.of(matrix)).times, vector[None]))  # type: ignore[union-attr]
    read = matrix.numel() * 4
    flops, bytes_s = dict.fromkeys(products, 0.0), 0.0
    for count in threads:
        torch.set_num_threads(count)
        each = budget_s / len(threads)
        for name, ways in products.items():
            seconds = min(_best(way, each / len(ways)) for way in ways)
            flops[name] = max(flops[name], 2 * n**3 / seconds)
        for kernel in readers:
            bytes_s = max(bytes_s, read / _best(kernel, each / len(readers)))
    how = f"torch, {max(threads)} thread(s)"
    compute = {name: _measured_rate(f, f"{how}, {n} x {n} product") for name, f in flops.items()}
    return _this_device(compute, bytes_s, read, how)


def _with_cuda(torch: Any, budget_s: float) -> Device:
    n, rows, width = 8192, 1 << 17, 8192
    sync = torch.cuda.synchronize
    compute = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        a = _numbers(torch, n, n, dtype=dtype, device="cuda")
        out = torch.empty_like(a)
        seconds = _best(partial(torch.mm, a, a, out=out), budget_s, sync)
        compute[name] = _measured_rate(2 * n**3 / seconds, f"torch, {n} x {n} product")
    matrix = _numbers(torch, rows, width, dtype=torch.bfloat16, device="cuda")
    vector = _numbers(torch, width, dtype=torch.bfloat16, device="cuda")
    seconds = min(_best(one, budget_s, sync) for one in _readers(torch, matrix, vector))
    read = matrix.numel() * 2
    title = torch.cuda.get_device_name()
    memory_gb = torch.cuda.get_device_properties(0).total_memory / 1e9
    bandwidth = _measured_rate(read / seconds, f"reading {read / 1e9:.1f} GB")
    return Device("this", title, compute, bandwidth, memory_gb)


def _this_device(compute: dict[str, Rate], bytes_s: float, size: int, how: str) -> Device:
    memory = _measured_rate(bytes_s, f"{how}, reading {size / 1e6:.0f} MB again and again")
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return Device("this", f"{processor()}, {how}", compute, memory, room, busy())


def busy() -> str:
    """A warning when others use the processors, else nothing."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < 0.6 * cores:
        return ""
    return f"measured while the machine was busy (load {load:.1f} on {cores} CPUs): too low"
