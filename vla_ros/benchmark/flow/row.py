"""What a row of the table is: the same inputs, a chunk, and how long each of its phases took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch

from vla_ros.engine.packed.devices import synchronise

PHASES = ("vision", "prefill", "decode")  # images; the rest of the prefix; all solver steps
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Inputs:
    """Of one chunk, in model space: pixels [V, ...], ids int64 [n], state [S], noise [H, D], none
    for a single pass."""

    pixels: torch.Tensor
    ids: torch.Tensor
    state: torch.Tensor
    noise: torch.Tensor | None


@dataclass(slots=True)
class Spent:
    """Seconds of one chunk: of the process and on the wall, by phase."""

    cpu: dict[str, float] = field(default_factory=dict)
    wall: dict[str, float] = field(default_factory=dict)

    def total(self, cpu: bool) -> float:
        return sum((self.cpu if cpu else self.wall).values())


class Row(Protocol):
    """One program that makes a chunk."""

    def chunk(self, inputs: Inputs) -> tuple[torch.Tensor, Spent]:
        """The chunk [H, D] on the CPU in float32, and the time of its phases."""
        ...


class Stopwatch:
    """Adds up the time of calls by phase, the device's work included."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.spent = Spent()

    def time(self, phase: str, call: Callable[[], T]) -> T:
        """Call it; what it takes belongs to ``phase`` alone."""
        cpu, wall = self._now()
        out = call()
        cpu_end, wall_end = self._now()
        self.spent.cpu[phase] = self.spent.cpu.get(phase, 0.0) + cpu_end - cpu
        self.spent.wall[phase] = self.spent.wall.get(phase, 0.0) + wall_end - wall
        return out

    def rest(self, phase: str, whole: str) -> None:
        """What ``whole`` took and no other phase did is ``phase``'s."""
        for spent in (self.spent.cpu, self.spent.wall):
            total = spent.pop(whole)
            spent[phase] = total - sum(spent.values())

    def _now(self) -> tuple[float, float]:
        synchronise(self._device)
        return time.process_time(), time.perf_counter()
