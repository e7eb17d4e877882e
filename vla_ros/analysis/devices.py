"""Devices: how fast they compute and read memory, and where each figure comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_ros.analysis.work import COMPUTE


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

    def flops(self, dtype: str, rates: str = "achieved") -> float:
        """FLOP/s in a format.

        Raises:
            ValueError: the device has no units for it.
        """
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
        ValueError: a missing or wrong entry, with its place.
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


def _size(place: str, value: Any) -> float:
    if not 0 <= float(value) < math.inf:
        raise ValueError(f"{place} is {value}: give a size in GB, or 0 where it is unknown")
    return float(value)


def _rate(place: str, values: Any, unit: float, sources: Mapping[str, str]) -> Rate:
    if not isinstance(values, list) or len(values) != 4:
        raise ValueError(f"{place} is {values}: give [peak, its source, achieved, its source]")
    peak, peak_from, achieved, achieved_from = values
    for source in (peak_from, achieved_from):
        if source not in sources:
            raise ValueError(f"{place}: source {source!r} is not in sources")
    if not 0 < achieved <= peak < math.inf:
        raise ValueError(f"{place}: achieved {achieved} must be above 0 and at most peak {peak}")
    return Rate(peak * unit, achieved * unit, sources[peak_from], sources[achieved_from])
