"""The authors' tensors, one at a time -> this engine's, ternary ones packed as they come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from vla_ros.engine.checkpoints.bitvla.embedding import FileRows, Rows
from vla_ros.engine.checkpoints.bitvla.names import EMBEDDING, fused, is_ternary, own_name
from vla_ros.engine.checkpoints.config import ModelConfig
from vla_ros.engine.checkpoints.files import WINDOW
from vla_ros.engine.checkpoints.freed import give_back_freed
from vla_ros.engine.checkpoints.weights import Stored, read_tensors
from vla_ros.engine.quantised.matrices import Quantised
from vla_ros.engine.quantised.ternary.matrix import Ternary


@dataclass(slots=True)
class Parts:
    """What a checkpoint is made of: plain tensors and ternary ones by the engine's names."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    ternary: dict[str, Quantised] = field(default_factory=dict)

    def put(self, name: str, value: torch.Tensor | Ternary) -> None:
        if isinstance(value, Ternary):
            self.ternary[name] = value
        else:
            self.tensors[name] = value[None] if name.endswith("pos_embed") else value


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
    """Tensors by the authors' names -> :class:`Parts`. The embedding is left where it is.

    What is multiplied together is put together as it comes, and the memory of what it was made of
    goes back: at no time is there more than the result and one tensor in float32.
    """
    parts, waiting, read = Parts(), dict[str, dict[int, torch.Tensor | Ternary]](), 0
    for name, tensor in tensors:
        if name == EMBEDDING:
            continue
        value: torch.Tensor | Ternary
        if is_ternary(name, config):
            value = Ternary.of(tensor).to(like.device)
        else:
            value = tensor.to(like, copy=True)
        place = fused(name)
        if place is None:
            parts.put(own_name(name), value)
        else:
            own, index, count = place
            others = waiting.setdefault(own, {})
            others[index] = value
            if len(others) == count:
                del waiting[own]
                parts.put(own, _together([others[i] for i in range(count)]))
        read += tensor.nbytes
        del tensor, value
        if read > WINDOW:
            give_back_freed()
            read = 0
    give_back_freed()
    return parts


def _together(values: Sequence[torch.Tensor | Ternary]) -> torch.Tensor | Ternary:
    ternary = [value for value in values if isinstance(value, Ternary)]
    if ternary:
        return Ternary.stacked(ternary)
    return torch.cat([value for value in values if isinstance(value, torch.Tensor)])
