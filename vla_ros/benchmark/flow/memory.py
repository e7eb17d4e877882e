"""What a loaded policy holds beside its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

SPARE = 0.2  # of the weights: what everything else may take
LEAST = 200e6  # bytes of weights below which libraries and arenas say more than the policy


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes: of the checkpoint's weights in the chosen format, what loading took at the most, and
    what a chunk left resident, both beyond what the process had before (on CUDA: held by tensors
    at the most, up to the end of each)."""

    weights: int
    loading: int
    held: int

    @property
    def good(self) -> bool | None:
        """Whether the rest stays within a fifth; None where the weights are too small to say."""
        return None if self.weights < LEAST else self.held <= (1 + SPARE) * self.weights

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
    """Of this process now; on CUDA the most that torch had allocated so far."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated(device)
    return _status("VmRSS")


def peak_bytes(device: str) -> int:
    """The most since :func:`forget_peak`; on CUDA as :func:`resident_bytes`."""
    return resident_bytes(device) if device != "cpu" else _status("VmHWM")


def forget_peak() -> None:
    """Let the process's peak begin at what it holds now (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
