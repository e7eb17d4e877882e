"""Golden integers: discrete choices against what is stored for a checkpoint.

A table that is off by one row still gives plausible actions (vla.cpp's paper, appendix E, lost
a task suite to it). So position indices, bucketised states and the table of times are computed
when a checkpoint is loaded and compared, as integers, with stored ones: those of the folder's
``discrete.json`` where there is one, else those below, which are what LeRobot 0.6.1 computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.fields import SMOLVLM2_500M
from vla_ros.engine.io.files import read_json
from vla_ros.engine.io.flow_config import FlowConfig
from vla_ros.engine.layers.flow_matching import Euler
from vla_ros.engine.models.preparation import state_bins
from vla_ros.engine.models.vlm_with_expert import time_table

FILE = "discrete.json"
TIME_SCALE = 1 << 15  # the table of times is compared in steps of 2 ** -15

#: States at and around the edges of pi0.5's bins, and their bins.
STATE_PROBES = (-1.5, -1.0, -0.9921875, -0.99218744, -0.5, -0.001, 0.0, 0.25, 0.9921874,
                0.9921875, 1.0, 1.5)  # fmt: skip
STATE_BINS = (-1, 0, 1, 1, 64, 127, 128, 160, 254, 255, 255, 255)


#: How SmolVLM's patches find their row of the position table. transformers 5 counts exactly;
#: transformers 4 scaled by 1 - 1e-6 in the precision of the pixels, which in float32 puts
#: almost every patch one row and one column too low.
POSITION_TABLES = ("exact", "transformers-4")


@dataclass(frozen=True, slots=True)
class Discrete:
    """Stored integers. None: nothing is stored for this choice.

    ``table``: how a checkpoint's patches find their positions, one of POSITION_TABLES.
    """

    table: str = "exact"
    position_ids: tuple[int, ...] | None = None
    state_values: tuple[float, ...] = STATE_PROBES
    state_bins: tuple[int, ...] = STATE_BINS
    time_table: tuple[int, ...] | None = None


def read_discrete(directory: Path, config: FlowConfig) -> Discrete:
    """The stored integers of a checkpoint: its own ``discrete.json``, else what is known here."""
    path = directory / FILE
    if not path.is_file():
        return known_discrete(config)
    fields = Fields(read_json(path), FILE)
    states = fields.part("state_bins")
    known = known_discrete(config)
    values = states.items("values")
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        raise states.wrong("values", "numbers")
    return Discrete(
        fields.choice("position_table", "exact", POSITION_TABLES),
        _ints(fields, "position_ids") or known.position_ids,
        tuple(map(float, values)) or STATE_PROBES,
        _ints(states, "bins") or STATE_BINS,
        _ints(fields, "time_table"),
    )


def discrete_json(config: FlowConfig, table: str = "exact") -> dict[str, object]:
    """The content of ``discrete.json`` for a checkpoint that is written here."""
    out: dict[str, object] = {"position_table": table}
    if config.steps:
        out["time_table"] = _times(config, config.steps)
    if config.kind == "smolvla":
        out["position_ids"] = position_ids(config, table).tolist()
    if config.speaks_state:
        out["state_bins"] = {"values": list(STATE_PROBES), "bins": list(STATE_BINS)}
    return out


def position_ids(config: FlowConfig, table: str) -> torch.Tensor:
    """Rows of the position table for the patches of one image."""
    vision = config.shapes.vision
    side = vision.image_size // vision.patch
    if config.kind != "smolvla":
        return torch.arange(side * side)
    return patch_positions(config.image_size // vision.patch, side, table)


def patch_positions(patches: int, side: int, table: str = "exact") -> torch.Tensor:
    """Rows of a ``side`` x ``side`` position table for ``patches`` x ``patches`` patches.

    int64 [patches ** 2], in float32. Sources: transformers 5.5 and 5.23 (``exact``) and 4.57
    ``SmolVLMVisionEmbeddings.forward``.
    """
    edges = torch.arange(1 / side, 1.0, 1 / side)
    index = torch.arange(patches, dtype=torch.float32)
    if table == "exact":
        step = 1.0 / torch.tensor([patches])
        where = torch.clamp(index * step, max=1.0 - 1e-6)
    elif table == "transformers-4":
        where = index / patches * (1 - 1e-6)
    else:
        raise ValueError(f"position table {table!r}: give one of {', '.join(POSITION_TABLES)}")
    bucket = torch.bucketize(where, edges, right=True)
    return (bucket[:, None] * side + bucket).flatten()


def check_discrete(config: FlowConfig, stored: Discrete, where: str) -> torch.Tensor:
    """Compare everything; returns the position ids. CheckpointError names the numbers."""
    ids = position_ids(config, stored.table)
    if config.kind == "smolvla" and stored.position_ids is not None:
        same_integers(where, "position ids", stored.position_ids, ids.tolist())
    if config.speaks_state:
        values = np.asarray(stored.state_values, dtype=np.float32)
        same_integers(where, "state bins", stored.state_bins, state_bins(values).tolist())
    if stored.time_table is not None:
        width = config.shapes.expert.hidden_size
        steps = max(1, len(stored.time_table) // width)  # others may be asked for
        same_integers(where, "values of the time table", stored.time_table, _times(config, steps))
    return ids


def known_discrete(config: FlowConfig) -> Discrete:
    """The integers that LeRobot computes for the published models."""
    if config.vlm == SMOLVLM2_500M and config.image_size == 512:
        return Discrete(position_ids=tuple(range(1024)))  # every patch its own row
    return Discrete()


def _times(config: FlowConfig, steps: int) -> list[int]:
    times = Euler(steps).times
    width = config.shapes.expert.hidden_size
    table = time_table(times, width, config.min_period, config.max_period)
    return [int(v) for v in (table * TIME_SCALE).round().flatten().tolist()]


def same_integers(where: str, what: str, stored: Sequence[int], computed: Sequence[int]) -> None:
    """CheckpointError with the first of those that differ."""
    if len(stored) != len(computed):
        raise CheckpointError(f"{where}: {len(stored)} {what} are stored, {len(computed)} computed")
    wrong = [i for i, pair in enumerate(zip(stored, computed, strict=True)) if pair[0] != pair[1]]
    if wrong:
        few = ", ".join(f"[{i}] {stored[i]} is {computed[i]}" for i in wrong[:3])
        raise CheckpointError(
            f"{where}: {len(wrong)} of {len(stored)} {what} are not those stored for it"
            f" ({few}): this would be another policy"
        )


def _ints(fields: Fields, name: str) -> tuple[int, ...] | None:
    values = fields.items(name)
    if any(isinstance(v, bool) or not isinstance(v, int) for v in values):
        raise fields.wrong(name, "whole numbers")
    return tuple(values) or None
