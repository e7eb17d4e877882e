"""What was seen of one engine at work on one frame. Tensors: float32 or integers, on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vla_ros.core import Floats, Observation


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A frame that both engines are asked about. ``episode``: what belongs together."""

    episode: int
    instruction: str
    observation: Observation


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the image is in the rows of a stage: ``images`` squares of ``side`` x ``side`` patches
    from row ``first`` on. side 0: no row is of a patch."""

    first: int = 0
    images: int = 0
    side: int = 0

    @property
    def patches(self) -> int:
        return self.images * self.side**2


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """What a stage gave: ``values`` float32 [rows, width]."""

    name: str
    values: torch.Tensor
    layout: Layout = Layout()


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """Discrete choices: ``picked`` int64 [n], and for an argmax the ``logits`` [n, V] behind them,
    for a threshold at 0.5 the ``values`` [n].

    ``exact``: an integer that no rounding may move, such as an index into a table of positions;
    others may flip where the reference itself was undecided.
    """

    name: str
    picked: torch.Tensor
    exact: bool = False
    logits: torch.Tensor | None = None
    values: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Used:
    """Rows of a table as they were used [n, D]; row i should be the reference's row ``first`` + i
    of the table ``of``."""

    name: str
    rows: torch.Tensor
    of: str
    first: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """One engine on one frame.

    ``tokens`` are what it said by itself, ``actions`` float64 [C, D] in m, rad and 0..1. The stages
    and choices of a token policy are taken with the reference's tokens as input, so that each is
    judged by itself and not by what an earlier token had become.
    """

    stages: tuple[Stage, ...]
    choices: tuple[Choices, ...]
    used: tuple[Used, ...]
    tokens: tuple[int, ...]
    actions: Floats


def seen(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in float32 on the CPU, one row a line."""
    return tensor.detach().float().cpu().clone().reshape(len(tensor), -1)
