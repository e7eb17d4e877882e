"""Memory that loading a checkpoint will need, of its headers alone, and what is free: a policy that
cannot fit is refused in one line before anything is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.base import LoadOptions, Placement
from vla_ros.engine.families.registry import family_of, source_of
from vla_ros.engine.formats import parse_formats
from vla_ros.engine.layers.prepacked import can_prepack
from vla_ros.engine.options import EngineOptions
from vla_ros.engine.verdicts import settled

_MEMINFO = Path("/proc/meminfo")
_LIMITS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes: ``weights`` in their formats, ``second`` of what is laid out a second time (word
    embeddings that are a head too, on a CPU), ``largest`` of the largest piece, which is there
    twice while it is made; ``dtype`` of what has no other format. KV caches and activations come
    on top, and CUDA's own memory."""

    weights: int
    second: int
    largest: int
    dtype: str

    @property
    def stays(self) -> int:
        """Bytes after loading."""
        return self.weights + self.second

    @property
    def loading(self) -> int:
        """Bytes while loading, at the most."""
        return self.stays + self.largest

    def __str__(self) -> str:
        twice = f", {self.second / 1e9:.2f} of them a second layout of the head" * bool(self.second)
        held = f"{self.stays / 1e9:.2f} GB in {self.dtype}{twice}"
        return f"{held}; {self.loading / 1e9:.2f} GB while loading"


def needed(options: EngineOptions) -> Need:
    """What loading will need; reads headers alone. CheckpointError: it cannot be loaded."""
    options, _ = settled(options)
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    source = source_of(options.checkpoint)
    place = Placement(device, dtype, formats=parse_formats(options.weights))
    sizes = family_of(source).sizes(source, LoadOptions.of(options), place)
    packs = options.decoding != "generate" and can_prepack(device, dtype)
    return Need(sizes.weights, sizes.head if packs else 0, sizes.largest, options.dtype)


def free_bytes(device: torch.device) -> int | None:
    """Memory that a process can have there; None where nobody says."""
    if device.type == "cuda" and not _shares_memory(device):
        with torch.cuda.device(device):
            free = torch.cuda.mem_get_info(device)[0]
            kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + kept)
    found = re.search(r"^MemAvailable: +(\d+) kB", _text(_MEMINFO), re.MULTILINE)
    free_here = [int(found[1]) << 10] if found else []
    most, used = (_text(_LIMITS / f"memory.{name}").strip() for name in ("max", "current"))
    if most.isdigit() and used.isdigit():  # of a container
        reclaimable = re.search(r"^inactive_file (\d+)", _text(_LIMITS / "memory.stat"), re.M)
        free_here.append(int(most) - int(used) + (int(reclaimable[1]) if reclaimable else 0))
    return min(free_here, default=None)


def refuse_unless_fits(options: EngineOptions) -> None:
    """CheckpointError in one line where a checkpoint cannot be loaded for want of memory."""
    free = free_bytes(torch.device(options.device))
    if free is None or (need := needed(options)).loading <= free:
        return
    formats = "weights int8 or int4 take a half or a quarter of it; " if not options.weights else ""
    raise CheckpointError(
        f"{options.checkpoint} does not fit on {options.device}: it needs {need}, and"
        f" {free / 1e9:.2f} GB are free: {formats}end what else runs there"
    )


def _shares_memory(device: torch.device) -> bool:
    """A GPU without memory of its own (a Jetson's): what CUDA says is free leaves out what the
    system would give back."""
    return bool(getattr(torch.cuda.get_device_properties(device), "is_integrated", False))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
