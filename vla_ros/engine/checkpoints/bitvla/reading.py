"""The authors' tensors, one at a time -> this engine's, ternary ones packed as they come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from vla_ros.engine.checkpoints.bitvla.embedding import FileRows, Rows
from vla_ros.engine.checkpoints.bitvla.names import (
    EMBEDDING,
    TOWER,
    is_ternary,
    own_name,
    qkv_name,
    qkv_parts,
)
from vla_ros.engine.checkpoints.config import ModelConfig
from vla_ros.engine.checkpoints.weights import Stored, read_tensors
from vla_ros.engine.quantised.matrices import Quantised, stacked
from vla_ros.engine.quantised.ternary.matrix import Ternary


@dataclass(slots=True)
class Parts:
    """What a checkpoint is made of: plain tensors and ternary ones by the engine's names."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    ternary: dict[str, Quantised] = field(default_factory=dict)


def read_parts(
    config: ModelConfig,
    stored: Mapping[str, Stored],
    wanted: Iterable[str],
    like: torch.Tensor,
) -> tuple[Parts, Rows]:
    """All of a folder's tensors, in the dtype and on the device of ``like``, and its embeddings."""
    parts = gather(config, read_tensors(stored, wanted), like)  # which also looks at every number
    return parts, FileRows(stored[EMBEDDING].path, EMBEDDING, like)


def gather(
    config: ModelConfig, tensors: Iterable[tuple[str, torch.Tensor]], like: torch.Tensor
) -> Parts:
    """Tensors by the authors' names -> :class:`Parts`. The embedding is left where it is."""
    parts, apart = Parts(), Parts()  # apart: Q, K and V of the tower
    for name, tensor in tensors:
        if name == EMBEDDING:
            continue
        aside = name.startswith(TOWER) and name.rsplit(".", 2)[-2] in ("q_proj", "k_proj", "v_proj")
        target, own = (apart, name) if aside else (parts, own_name(name))
        if is_ternary(name, config):
            made = Ternary.of(tensor)
            target.ternary[own] = Ternary(
                made.packed.to(like.device), made.scale.to(like.device), made.width
            )
        else:
            value = tensor.to(like, copy=True)
            target.tensors[own] = value[None] if own.endswith("pos_embed") else value
    for layer in range(config.towers[0].depth - 1):
        for kind in ("weight", "bias"):
            names, own = qkv_parts(layer, kind), qkv_name(layer, kind)
            if names[0] in apart.ternary:
                parts.ternary[own] = stacked([apart.ternary.pop(n) for n in names])
            else:
                parts.tensors[own] = torch.cat([apart.tensors.pop(n) for n in names])
    return parts
