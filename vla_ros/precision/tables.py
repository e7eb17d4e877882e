"""Which index stands behind a row: the nearest row of the reference's table.

An index may be computed in many places, and rounded in any of them. What counts is the row that
reached the arithmetic, so the index is told from that row and not from the code that computed it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_NEARER = 0.5  # another row counts only where it is at least so much nearer than the right one
_BLOCK = 512  # rows at a time


@dataclass(frozen=True, slots=True)
class Moved:
    """Row ``place`` was used with the row of index ``found``. ``margin`` 0..1: how far it is on the
    way from the right row to the other; 1 is the other one exactly."""

    place: int
    right: int
    found: int
    margin: float


def moved_rows(rows: torch.Tensor, table: torch.Tensor, first: int = 0) -> list[Moved]:
    """The rows [n, D] that are not those of ``table`` [m, D] from ``first`` on.

    Rounding moves a row a little and never to another one, unless rows are as near to each other
    as the rounding is: so a row counts as another only where that is twice as near as its own.
    """
    out: list[Moved] = []
    for begin in range(0, len(rows), _BLOCK):
        part = rows[begin : begin + _BLOCK]
        distance = torch.cdist(part, table, compute_mode="donot_use_mm_for_euclid_dist")
        nearest, found = distance.min(1)
        right = torch.arange(first + begin, first + begin + len(part))
        own = distance[torch.arange(len(part)), right]
        for place in torch.nonzero(nearest < _NEARER * own).flatten().tolist():
            between = float((table[right[place]] - table[found[place]]).norm())
            margin = float(own[place] - nearest[place]) / max(between, 1e-12)
            out.append(Moved(begin + place, int(right[place]), int(found[place]), min(margin, 1.0)))
    return out
