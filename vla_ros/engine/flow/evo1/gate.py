"""The gate of Evo-1: what is chosen by integers, against what the references choose.

A step's time takes a row of a table of 1000: ``int(t * 999)`` of t = i / N in double precision. The
rows of absent cameras' images are left out of the prompt, but not their positions. Stored are the
rows for the 32 steps of the published checkpoints, as lerobot 0.6.1 and MINT-SJTU/Evo-1 take them,
and the ends of the table itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.evo1.head import TIME_ROWS, TIMES
from vla_ros.engine.flow.weights import Weights

STEPS = 32
TIME_INDEX = (
    0, 31, 62, 93, 124, 156, 187, 218, 249, 280, 312, 343, 374, 405, 437, 468, 499, 530, 561, 593,
    624, 655, 686, 718, 749, 780, 811, 842, 874, 905, 936, 967,
)  # fmt: skip
TABLE_TOLERANCE = 5e-3  # a table that was kept in bfloat16 differs by 2 ** -9


def time_index(steps: int) -> tuple[int, ...]:
    """Rows of the table of times, one a step."""
    last = TIME_ROWS - 1
    return tuple(min(int(i / steps * last), last) for i in range(steps))


def check_time_index() -> None:
    """CheckpointError where this machine takes other rows than the references did."""
    found = time_index(STEPS)
    if found != TIME_INDEX:
        wrong = [i for i in range(STEPS) if found[i] != TIME_INDEX[i]]
        raise CheckpointError(
            f"{len(wrong)} of {STEPS} times take other rows of the table than those stored"
            f" ([{wrong[0]}] {TIME_INDEX[wrong[0]]} is {found[wrong[0]]})"
        )


def position_table(rows: int, width: int) -> torch.Tensor:
    """Sines and cosines of 0 .. rows - 1, interleaved [rows, width], float32 as the references
    compute them."""
    place = torch.arange(0, rows).unsqueeze(1)
    scale = -(torch.log(torch.tensor(10000.0, dtype=torch.float64)) / width)
    steps = torch.exp(torch.arange(0, width, 2) * float(scale))
    table = torch.zeros(rows, width)
    table[:, 0::2] = torch.sin(place * steps)
    table[:, 1::2] = torch.cos(place * steps)
    return table


def check_table(name: str, stored: torch.Tensor) -> None:
    """CheckpointError where a checkpoint's table [1, rows, width] is not that of its rows."""
    rows, width = stored.shape[1:]
    found = float((stored[0] - position_table(rows, width)).abs().max())
    if not found <= TABLE_TOLERANCE:
        raise CheckpointError(
            f"{name} differs by {found:.3g} from the table of its positions: the checkpoint"
            " is damaged"
        )


class CheckedTables:
    """Weights whose tables are checked as they are read."""

    def __init__(self, within: Weights, names: Sequence[str] = (TIMES,)) -> None:
        self.within, self._names = within, names

    def take(self, name: str) -> torch.Tensor:
        tensor = self.within.take(name)
        if name in self._names:
            check_table(name, tensor)
        return tensor
