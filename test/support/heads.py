"""Draft heads with random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vla_ros.engine.decoding.draft_heads import RecursiveConfig, RecursiveHead
from vla_ros.engine.io.config import ModelConfig
from vla_ros.engine.models.language.base import tap_layers

if TYPE_CHECKING:
    from vla_ros_lab.train.head.features import HeadEpisode


def recursive_head(
    model: ModelConfig, tokens: int, dim: int = 7, seed: int = 0, **changes: object
) -> RecursiveHead:
    """A head that knows nothing; what is expected draws it, so that some drafts stand."""
    text = model.text
    options = {"width": 32, "heads": 2, "bins": model.bins, **changes}
    config = RecursiveConfig(tap_layers(text.layers), text.hidden_size, tokens, dim, **options)  # type: ignore[arg-type]
    torch.manual_seed(seed)
    head = RecursiveHead(config)
    if config.ordered:
        with torch.no_grad():
            head.gate.bias.fill_(3.0)
    return head.requires_grad_(False).eval()


def rollouts(model: ModelConfig, tokens: int, frames: int, seed: int = 0) -> HeadEpisode:
    """An episode that nobody played: tokens that walk, and taps at random."""
    from vla_ros_lab.train.head.features import HeadEpisode

    text, draw = model.text, torch.Generator().manual_seed(seed)
    moves = torch.randint(-1, 2, (frames, tokens), generator=draw).cumsum(0)
    said = model.action_vocab - model.bins + 100 + moves.clamp(-90, 90)
    width = len(tap_layers(text.layers)) * text.hidden_size
    taps = torch.randn(frames, tokens, width, generator=draw).bfloat16()
    bins = said - (model.action_vocab - model.bins)
    return HeadEpisode(said, taps, torch.nn.functional.one_hot(bins, model.bins).bfloat16())
