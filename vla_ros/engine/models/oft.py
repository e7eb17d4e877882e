"""OpenVLA-OFT's continuous heads: the L1 action head and the proprio projector.

Source: openvla-oft ``prismatic/models/action_heads.py`` (MLPResNet) and ``projectors.py``.
Tensor names are theirs under ``action_head.`` and ``proprio_projector.``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn

from vla_ros.engine.io.config import ModelConfig
from vla_ros.engine.layers.linear import LowBit, replace_linear

BLOCKS = 2


class ResidualBlock(nn.Module):
    """x + ReLU(Linear(LayerNorm(x)))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.ffn(x)


class ResidualMlp(nn.Module):
    """LayerNorm, Linear, ReLU, two residual blocks, LayerNorm, Linear."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(inputs)
        self.fc1 = nn.Linear(inputs, width)
        self.mlp_resnet_blocks = nn.ModuleList(ResidualBlock(width) for _ in range(BLOCKS))
        self.layer_norm2 = nn.LayerNorm(width)
        self.fc2 = nn.Linear(width, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.fc1(self.layer_norm1(x)))
        for block in self.mlp_resnet_blocks:
            x = block(x)
        return self.fc2(self.layer_norm2(x))


class ActionHead(nn.Module):
    """Hidden states [chunk * dim, C] -> actions [chunk, dim] in [-1, 1]."""

    def __init__(self, hidden: int, dim: int) -> None:
        super().__init__()
        self.model = ResidualMlp(hidden * dim, hidden, dim)
        self.dim = dim

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.model(states.reshape(len(states) // self.dim, -1))


class ProprioProjector(nn.Module):
    """Robot state [P] -> one embedding [1, C]."""

    def __init__(self, hidden: int, proprio: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(proprio, hidden)
        self.fc2 = nn.Linear(hidden, hidden)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(state[None])))


class ParallelHeads(nn.Module):
    """OFT's two heads under the checkpoint's names; no projector without proprio."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden = config.text.hidden_size
        self.action_head = ActionHead(hidden, config.action_dim)
        if config.proprio_dim:
            self.proprio_projector = ProprioProjector(hidden, config.proprio_dim)


def head_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors that an OFT checkpoint has besides vision and language model."""
    with torch.device("meta"):
        heads = ParallelHeads(config)
    return {n: tuple(t.shape) for n, t in heads.state_dict().items()}


def load_heads(
    config: ModelConfig,
    tensors: Mapping[str, torch.Tensor],
    quantized: Mapping[str, LowBit] | None = None,
) -> ParallelHeads:
    """The heads with a checkpoint's weights, of which the ``quantized`` are no tensors."""
    with torch.device("meta"):
        heads = ParallelHeads(config)
    few = {n: m for n, m in (quantized or {}).items() if n.startswith("action_head.")}
    replace_linear(heads, few, tensors)
    heads.load_state_dict({n: tensors[n] for n in heads.state_dict()}, assign=True)
    return heads.requires_grad_(False).eval()
