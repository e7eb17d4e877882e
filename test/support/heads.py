"""Draft heads with random weights."""

from __future__ import annotations

import torch

from vla_ros.engine.checkpoints.config import ModelConfig
from vla_ros.engine.decoders.base import tap_layers
from vla_ros.engine.draft_heads import HeadConfig, OneShotHead


def random_head(model: ModelConfig, tokens: int, seed: int = 0, **changes: object) -> OneShotHead:
    """A head for a target, that knows nothing."""
    text = model.text
    options = {"width": 32, **changes}
    layers = tap_layers(text.layers)
    config = HeadConfig(layers, text.hidden_size, tokens, model.bins, **options)  # type: ignore[arg-type]
    torch.manual_seed(seed)
    return OneShotHead(config).requires_grad_(False).eval()
