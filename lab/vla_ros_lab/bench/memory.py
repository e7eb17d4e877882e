"""Memory that a loaded policy holds beside its weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

SPARE = 0.2  # of the weights: what everything else may take
LEAST = 200e6  # bytes of weights below which libraries and arenas weigh more than the policy


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """Memory in bytes: the checkpoint's weights in the chosen format, what loading took at the
    most, and what a chunk left resident, both beyond what the process had before (on CUDA: what
    torch had taken from the device, graphs' pools included, caches given back)."""

    weights: int
    loading: int
    held: int

    @property
    def good(self) -> bool | None:
        """Whether the rest stays within a fifth; None where the weights are too small to judge."""
        return None if self.weights < LEAST else self.held <= (1 + SPARE) * self.weights

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "within_20_percent": self.good}

    def __str__(self) -> str:
        verdict = "too small to judge"
        if self.good is not None:
            more = self.held / self.weights - 1
            verdict = f"{100 * more:+.0f} %, {'within' if self.good else 'NOT within'} 20 %"
        return (
            f"memory: weights {self.weights / 1e6:.0f} MB; by a chunk the process had grown by"
            f" {self.held / 1e6:.0f} MB ({verdict}), libraries and scratch included; while loading"
            f" by {self.loading / 1e6:.0f} MB at the most"
        )


def resident_bytes(device: str) -> int:
    """Memory of this process now; on CUDA what torch holds of the device, without what it could
    give back: a graph's pool stays, though no tensor of it is alive."""
    if device != "cpu":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(device)
    return status_bytes("VmRSS")


def peak_bytes(device: str) -> int:
    """Peak of :func:`resident_bytes` since :func:`forget_peak`."""
    return torch.cuda.max_memory_reserved(device) if device != "cpu" else status_bytes("VmHWM")


def forget_peak(device: str) -> None:
    """Let the peak begin at what is held now (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)


def status_bytes(name: str, pid: int | None = None) -> int:
    """A line of /proc/PID/status, of this process by default; 0 where there is none."""
    try:
        lines = Path(f"/proc/{pid or 'self'}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(s.split()[1]) * 1024 for s in lines if s.startswith(f"{name}:")), 0)
