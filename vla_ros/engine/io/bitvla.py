"""BitVLA's checkpoints: BitNet b1.58 and BitSigLIP under OpenVLA-OFT's heads.

Source: github.com/ustcwhy/BitVLA. Its folders are transformers' Llava with other classes; what they
publish is bfloat16 weights that are made ternary in every product. Here that is done once, while
they are read. The tower is transformers' SigLIP there and timm's here: the same network, Q, K and V
in one matrix.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from vla_ros.core.files import open_file
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.config import ModelConfig
from vla_ros.engine.io.files import header, memory_returned
from vla_ros.engine.io.tensors import Plain, Table
from vla_ros.engine.layers.linear import LowBit
from vla_ros.engine.layers.ternary import Ternary

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
TOWER, PROJECTOR = "vision_tower.vision_model.", "multi_modal_projector."
OURS = "vision_backbone.featurizer."
EMBEDDING = "language_model.model.embed_tokens.weight"
LAYERS = "language_model.model.layers."
#: What is multiplied together: the name of it all, a tensor's place in it, how many there are.
_FUSED = {
    "q_proj": ("qkv", 0, 3),
    "k_proj": ("qkv", 1, 3),
    "v_proj": ("qkv", 2, 3),
    "gate_proj": ("gate_up", 0, 2),
    "up_proj": ("gate_up", 1, 2),
}
_LANGUAGE_MATRIX = re.compile(
    r"language_model\.model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj\.weight"
)
_TOWER_MATRIX = re.compile(re.escape(TOWER) + r"encoder\.layers\.\d+\.(self_attn|mlp)\.\w+\.weight")
_BLOCK = {
    "self_attn.out_proj": "attn.proj",
    "layer_norm1": "norm1",
    "layer_norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}


def is_ternary(name: str, config: ModelConfig) -> bool:
    """True of the authors' tensors that are multiplied with two bits a weight."""
    if _LANGUAGE_MATRIX.fullmatch(name):
        return True
    return config.towers[0].ternary and _TOWER_MATRIX.fullmatch(name) is not None


def vision_table(config: ModelConfig) -> Table:
    """The authors' tower and projector as far as they are read; the last block is never run."""
    (tower,), hidden = config.towers, config.text.hidden_size
    width = tower.width
    maps = {f"self_attn.{name}_proj": (width, width) for name in ("q", "k", "v", "out")}
    block: Table = {
        "layer_norm1": width,
        "layer_norm2": width,
        **maps,
        "mlp.fc1": (width, tower.mlp),
        "mlp.fc2": (tower.mlp, width),
    }
    return {
        f"{TOWER}embeddings.patch_embedding.weight": Plain((width, 3, tower.patch, tower.patch)),
        f"{TOWER}embeddings.patch_embedding.bias": Plain((width,)),
        f"{TOWER}embeddings.position_embedding.weight": Plain((tower.patches, width)),
        f"{TOWER}encoder.layers": [block] * (tower.depth - 1),
        f"{PROJECTOR}linear_1": (width, hidden),
        f"{PROJECTOR}linear_2": (hidden, hidden),
    }


def vision_unused(config: ModelConfig) -> tuple[str, ...]:
    """Prefixes of the tower's tensors that are never read."""
    last = config.towers[0].depth - 1
    return tuple(TOWER + part for part in ("post_layernorm.", "head.", f"encoder.layers.{last}."))


def place_of(name: str) -> tuple[str, int, int]:
    """The engine's name for a tensor of the authors; where tensors are multiplied together, its
    place among them and their number."""
    if name.startswith(PROJECTOR):
        return name.replace(f"{PROJECTOR}linear_", "projector.fc"), 0, 1
    rest = name.removeprefix(TOWER)
    base, _, kind = rest.rpartition(".")
    base, _, own = base.rpartition(".")
    group, index, count = _FUSED.get(own, ("", 0, 1))
    if name.startswith(LAYERS) and group:
        return f"{base}.{group}_proj.{kind}", index, count
    if not name.startswith(TOWER):
        return name, 0, 1
    if rest.startswith("embeddings."):
        rest = rest.removeprefix("embeddings.").replace("patch_embedding", "patch_embed.proj")
        return OURS + rest.replace("position_embedding.weight", "pos_embed"), 0, 1
    _, _, layer, place = rest.split(".", 3)
    place = "attn.qkv" if group else _BLOCK[place.removesuffix(f".{kind}")]
    return f"{OURS}blocks.{layer}.{place}.{kind}", index, count


class FileRows:
    """Word embeddings that stay in a safetensors file: a row is read when a word is said.

    Of BitVLA's 128 256 embeddings, 0.66 GB, an instruction needs a few dozen once; an answer, none.
    The file is kept open: a folder that is moved or deleted meanwhile does no harm, one that is
    written over is noticed.
    """

    def __init__(self, path: Path, name: str, like: torch.Tensor) -> None:
        self._path, self._like = path, like
        self._file = open_file(path)
        size = int.from_bytes(os.pread(self._file.fileno(), 8, 0), "little")
        stored = header(path)[name]
        self.count, self.width = stored["shape"]
        self._dtype = _DTYPES[stored["dtype"]]
        self._begin = 8 + size + int(stored["data_offsets"][0])
        self._written = self._state()

    def take(self, ids: Sequence[int]) -> torch.Tensor:
        """[n, C] on the model's device, in its dtype. CheckpointError: they cannot be had."""
        if self._state() != self._written:
            raise CheckpointError(f"{self._path} was written over while it is used: load it again")
        length = self.width * self._dtype.itemsize
        rows = b"".join(
            os.pread(self._file.fileno(), length, self._begin + index * length) for index in ids
        )
        table = torch.frombuffer(bytearray(rows), dtype=self._dtype).view(len(ids), self.width)
        return table.to(self._like, copy=True)

    def _state(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns


class DrawnRows:
    """Random rows, each drawn by its number."""

    def __init__(self, width: int, seed: int, scale: float, like: torch.Tensor) -> None:
        self.width, self._seed, self._scale, self._like = width, seed, scale, like

    def take(self, ids: Sequence[int]) -> torch.Tensor:
        rows = []
        for index in ids:
            random = torch.Generator().manual_seed((self._seed << 20) + index)
            rows.append(torch.randn(self.width, generator=random) * self._scale)
        return torch.stack(rows).to(self._like)


#: A table [V, C] by rows.
Rows = FileRows | DrawnRows


@dataclass(slots=True)
class CheckpointParts:
    """The parts of a checkpoint: plain tensors and ternary ones by the engine's names."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    ternary: dict[str, LowBit] = field(default_factory=dict)

    def put(self, name: str, value: torch.Tensor | Ternary) -> None:
        if isinstance(value, Ternary):
            self.ternary[name] = value
        else:
            self.tensors[name] = value[None] if name.endswith("pos_embed") else value


def gather(
    config: ModelConfig, tensors: Iterable[tuple[str, torch.Tensor]], like: torch.Tensor
) -> CheckpointParts:
    """Tensors by the authors' names -> :class:`CheckpointParts`. The embedding is left where it is.

    What is multiplied together is put together as it comes, and the memory of what it was made of
    goes back: at no time is there more than the result and one tensor in float32.
    """
    parts, waiting = CheckpointParts(), dict[str, dict[int, torch.Tensor | Ternary]]()
    with memory_returned():
        for name, tensor in tensors:
            if name == EMBEDDING:
                continue
            value: torch.Tensor | Ternary
            if is_ternary(name, config):
                value = Ternary.of(tensor).to(like.device)
            else:
                value = tensor.to(like, copy=True)
            own, index, count = place_of(name)
            others = waiting.setdefault(own, {})
            others[index] = value
            if len(others) == count:
                del waiting[own]
                parts.put(own, _together([others[i] for i in range(count)]))
            del tensor, value
    return parts


def _together(values: Sequence[torch.Tensor | Ternary]) -> torch.Tensor | Ternary:
    if len(values) == 1:
        return values[0]
    ternary = [value for value in values if isinstance(value, Ternary)]
    if ternary:
        return Ternary.stacked(ternary)
    return torch.cat([value for value in values if isinstance(value, torch.Tensor)])
