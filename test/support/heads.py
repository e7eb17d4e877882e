"""Draft heads with random weights, and what they are right about made up."""

from __future__ import annotations

import torch

from vla_ros.engine.checkpoints.config import ModelConfig
from vla_ros.engine.decoders.base import tap_layers
from vla_ros.engine.draft_heads import RANKED, HeadConfig, OneShotHead


def random_head(model: ModelConfig, tokens: int, seed: int = 0, **changes: object) -> OneShotHead:
    """A head for a target, that knows nothing; its chances fall with the rank."""
    text = model.text
    options = {"width": 32, **changes}
    layers = tap_layers(text.layers)
    config = HeadConfig(layers, text.hidden_size, tokens, model.bins, **options)  # type: ignore[arg-type]
    torch.manual_seed(seed)
    head = OneShotHead(config)
    head.chances += 0.5 / (1.0 + torch.arange(RANKED))
    return head.requires_grad_(False).eval()
