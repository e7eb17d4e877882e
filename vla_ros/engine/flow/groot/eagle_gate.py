"""The gate of GR00T N1.5 and N1.6: what is discrete in them, against what is stored.

As :mod:`vla_ros.engine.flow.gate` has it for other families. The rows of the table of positions
that a patch reads and their weights (in steps of 2 ** -15), and the integer times of the solver's
steps, are computed when a checkpoint is loaded and compared with those of its ``discrete.json``
({"position_rows": [...], "position_weights": [[...], ...], "times": [...]}), else with those that
torch's ``interpolate`` and NVIDIA's ``int(t * 1000)`` give for the published sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.gate import FILE
from vla_ros.engine.flow.groot.eagle import EagleConfig
from vla_ros.engine.flow.groot.interpolation import Taps, taps
from vla_ros.engine.flow.groot.shapes import HeadConfig

#: N1.6's pictures of 252 pixels: 18 patches a side of a table of 16; the other half mirrors this.
_HALF = ((32768,), (5461, 27307), (9102, 23666), (12743, 20025), (16384, 16384), (20025, 12743),
         (23666, 9102), (27307, 5461), (30948, 1820))  # fmt: skip
N16_TAPS = Taps(
    (0, 0, 1, 2, 3, 4, 5, 6, 7, 7, 8, 9, 10, 11, 12, 13, 14, 15),
    (*_HALF, *(row[::-1] for row in reversed(_HALF))),
)
TIMES = (0, 250, 500, 750)  # four steps of 1000


@dataclass(frozen=True, slots=True)
class Stored:
    """Stored integers. None: nothing is stored for this choice."""

    positions: Taps | None = None
    times: tuple[int, ...] | None = None


def read_stored(directory: Path, eagle: EagleConfig, head: HeadConfig) -> Stored:
    """What is stored for a checkpoint: its own ``discrete.json``, else what is known here."""
    known = known_stored(eagle, head)
    path = directory / FILE
    if not path.is_file():
        return known
    fields = Fields(read_json(path), FILE)
    rows, weights = fields.items("position_rows"), fields.items("position_weights")
    positions = known.positions
    if rows or weights:
        if any(not isinstance(row, list) for row in weights):
            raise fields.wrong("position_weights", "lists of whole numbers")
        positions = Taps(
            _whole(fields, "position_rows", rows),
            tuple(_whole(fields, "position_weights", row) for row in weights),
        )
    times = _whole(fields, "times", fields.items("times"))
    return Stored(positions, times or known.times)


def known_stored(eagle: EagleConfig, head: HeadConfig) -> Stored:
    """For the published sizes."""
    patches = eagle.vision.image_size // eagle.vision.patch
    return Stored(
        N16_TAPS if (eagle.table, patches) == (16, 18) else None,
        TIMES if (head.steps, head.buckets) == (4, 1000) else None,
    )


def discrete_json(eagle: EagleConfig, head: HeadConfig) -> dict[str, Any]:
    """The content of ``discrete.json`` for a checkpoint that is written here."""
    found = taps(eagle.table, eagle.vision.image_size // eagle.vision.patch)
    return {
        "position_rows": list(found.first),
        "position_weights": [list(row) for row in found.weights],
        "times": list(head.times),
    }


def check_stored(eagle: EagleConfig, head: HeadConfig, stored: Stored, where: str) -> None:
    """CheckpointError names what is not as it is stored."""
    if stored.positions is not None:
        found = taps(eagle.table, eagle.vision.image_size // eagle.vision.patch)
        _same(where, "rows of the position table", stored.positions.first, found.first)
        _same(where, "weights of the position table", stored.positions.weights, found.weights)
    if stored.times is not None:
        steps = len(stored.times)  # others may be asked for
        _same(where, "times", stored.times, replace(head, steps=steps).times)


def _same(where: str, what: str, stored: Sequence[object], computed: Sequence[object]) -> None:
    if len(stored) != len(computed):
        raise CheckpointError(f"{where}: {len(stored)} {what} are stored, {len(computed)} computed")
    wrong = [i for i, pair in enumerate(zip(stored, computed, strict=True)) if pair[0] != pair[1]]
    if wrong:
        few = ", ".join(f"[{i}] {stored[i]} is {computed[i]}" for i in wrong[:3])
        raise CheckpointError(
            f"{where}: {len(wrong)} of {len(stored)} {what} are not those stored for it ({few}):"
            " this would be another policy"
        )


def _whole(fields: Fields, name: str, values: list[Any]) -> tuple[int, ...]:
    if any(isinstance(v, bool) or not isinstance(v, int) for v in values):
        raise fields.wrong(name, "whole numbers")
    return tuple(values)
