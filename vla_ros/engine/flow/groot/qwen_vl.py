"""Qwen3-VL as GR00T N1.7 uses it: the tower, and the first layers of the language model.

Sources: NVIDIA/Isaac-GR00T ``qwen3_backbone.py``, transformers 4.57 ``modeling_qwen3_vl.py``. Rows
of pictures have three positions (moment, row, column), words one in all three, and the first
layers add what the tower was tapped for. The rows are those behind the last layer used, in front
of the language model's norm, which is not even read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F

from vla_ros.engine.checkpoints.config import TextConfig
from vla_ros.engine.flow.buffers import MASKED
from vla_ros.engine.flow.groot.qwen3 import qwen3_layer_shapes, read_qwen3_layer, run_layer
from vla_ros.engine.flow.groot.qwen_tower import QwenTower, QwenTowerConfig, qwen_tower_shapes
from vla_ros.engine.flow.layers import Rope
from vla_ros.engine.flow.weights import Expected, Shape, Weights

BASE = "backbone.model."
IMAGE_TOKEN = 151655  # <|image_pad|>
_TEXT = TextConfig("qwen3", 151936, 2048, 6144, 16, 16, 8, 128, 5e6, 1e-6, tied=True)


@dataclass(frozen=True, slots=True)
class QwenVlConfig:
    """``text.layers`` counts the layers that are used; ``sections``: how many of a head's
    frequencies follow the moment, the row and the column of a picture, in turn."""

    vision: QwenTowerConfig = field(default_factory=QwenTowerConfig)
    text: TextConfig = _TEXT
    sections: tuple[int, int, int] = (24, 20, 20)
    image_token: int = IMAGE_TOKEN

    @property
    def view_tokens(self) -> int:
        """Tokens of one camera."""
        return self.vision.tokens


class QwenVl:
    """Loaded, in the dtype and on the device of ``like``; ``longest`` rows at most."""

    def __init__(
        self, config: QwenVlConfig, weights: Weights, like: torch.Tensor, longest: int
    ) -> None:
        self.config, text = config, config.text
        self.image_token, self.width = config.image_token, text.hidden_size
        self.tower = QwenTower(config.vision, weights, f"{BASE}model.visual.", like)
        words = f"{BASE}model.language_model."
        self._embedding = weights.take(f"{words}embed_tokens.weight").to(like)
        self._layers = [
            read_qwen3_layer(weights, f"{words}layers.{i}.", text, like) for i in range(text.layers)
        ]
        self._mask = like.new_full((longest, longest), MASKED).triu_(1)
        self._cos = torch.zeros(longest, text.head_dim, device=like.device)
        self._sin = torch.zeros_like(self._cos)

    def see(self, pixels: torch.Tensor) -> torch.Tensor:
        """See Backbone."""
        return self.tower(pixels)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """See Backbone."""
        return F.embedding(ids, self._embedding)

    def lay(self, ids: list[int], length: int) -> None:
        """See Backbone."""
        angles = word_angles(self.config, positions_of(self.config, ids))
        self._cos[: len(ids)].copy_(angles.cos())
        self._sin[: len(ids)].copy_(angles.sin())

    def read(self, x: torch.Tensor, features: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """See Backbone."""
        count, text = len(x), self.config.text
        turn = Rope(self._cos[:count], self._sin[:count])
        mask = self._mask[:count, :count]
        taps = features.split(self.width, -1)[1:]
        for number, layer in enumerate(self._layers):
            x = run_layer(x, layer, text, turn, mask)
            if number < len(taps):
                x = x.index_add(0, places, taps[number])
        return x


def positions_of(config: QwenVlConfig, ids: list[int]) -> torch.Tensor:
    """Moment, row and column of every place of a prompt: int64 [3, n].

    Source: ``get_rope_index``. A picture counts as its rows; what follows goes on behind its last.
    """
    side = config.vision.side // config.vision.merge
    grid = torch.arange(side * side)
    in_picture = torch.stack((torch.zeros_like(grid), grid // side, grid % side))
    parts: list[torch.Tensor] = []
    place = begin = 0
    while place < len(ids):
        if ids[place] == config.image_token:
            parts.append(in_picture + begin)
            place, begin = place + len(grid), begin + side
        else:
            parts.append(torch.full((3, 1), begin))
            place, begin = place + 1, begin + 1
    return torch.cat(parts, 1)


def word_angles(config: QwenVlConfig, positions: torch.Tensor) -> torch.Tensor:
    """Angles [n, head_dim] of positions [3, n]: frequencies follow the three in turn."""
    text = config.text
    steps = torch.arange(0, text.head_dim, 2, dtype=torch.float64)
    frequencies = text.rope_theta ** (-steps / text.head_dim)
    follows = torch.tensor(frequency_axes(config))
    angles = positions.double()[follows].T * frequencies
    return torch.cat((angles, angles), -1).float()


def frequency_axes(config: QwenVlConfig) -> list[int]:
    """Which of moment (0), row (1) and column (2) each frequency of a head follows."""
    axes = [0] * (config.text.head_dim // 2)
    for axis in (1, 2):
        for place in range(axis, 3 * config.sections[axis], 3):
            axes[place] = axis
    return axes


def qwen_vl_expected(config: QwenVlConfig) -> Expected:
    """Its tensors. The last norm and the head of words are there and unused."""
    text, words = config.text, f"{BASE}model.language_model."
    must: dict[str, Shape] = qwen_tower_shapes(config.vision, f"{BASE}model.visual.")
    must[f"{words}embed_tokens.weight"] = (text.vocab_size, text.hidden_size)
    for number in range(text.layers):
        must |= qwen3_layer_shapes(f"{words}layers.{number}.", text)
    must[f"{words}norm.weight"] = (text.hidden_size,)
    return Expected(must, {f"{BASE}lm_head.weight": (text.vocab_size, text.hidden_size)})


def first_layers(config: QwenVlConfig, layers: int) -> QwenVlConfig:
    """The same with so many layers of its language model."""
    return replace(config, text=replace(config.text, layers=layers))
