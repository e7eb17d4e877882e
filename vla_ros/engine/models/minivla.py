"""Action tokens that are codes of a VQ-VAE (MiniVLA's VQ checkpoints), not bins.

Sources: openvla-mini ``prismatic/vla/action_tokenizer.py`` (``VQActionTokenizer``) and
vq_bet_official ``vqvae/vqvae.py``. Each of the K tokens chooses an entry of its own codebook;
their sum is decoded to a chunk of actions, of which the original, and so this, takes the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from vla_ros.core.types import Floats
from vla_ros.engine.io.config import ModelConfig, VqConfig
from vla_ros.engine.io.tensors import Plain, Table
from vla_ros.engine.io.tokens import ActionTokens

_Float32s = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ActionCodes(ActionTokens):
    """Action tokens of a VQ-VAE: code c of every group has the token V - 1 - c; neighboring codes
    mean nothing alike.

    ``codebooks`` [groups, codes, latent]; ``layers`` are weights and biases of the decoder.
    """

    codebooks: _Float32s
    layers: tuple[tuple[_Float32s, _Float32s], ...]
    scale: float = 1.0
    ordered: ClassVar[bool] = False

    def encode(self, values: Floats) -> list[int]:
        raise TypeError("codes of a VQ-VAE are found by its encoder, which is not kept")

    def decode(self, tokens: Sequence[int]) -> Floats:
        """The first action [A] in [-1, 1] of one code a group; InvalidAction as for bins."""
        self.refuse_others(tokens)
        codes = self.vocab - 1 - np.asarray(tokens)
        x = self.codebooks[np.arange(len(self.codebooks)), codes].sum(0)
        for weight, bias in self.layers[:-1]:
            x = np.maximum(weight @ x + bias, 0)
        weight, bias = self.layers[-1]
        chunk = (weight @ x + bias) * np.float32(self.scale)
        return np.asarray(chunk[: len(self.codebooks)], dtype=np.float64)


def action_tokens(config: ModelConfig, tensors: Mapping[str, torch.Tensor]) -> ActionTokens:
    """A checkpoint's action tokens: bins, or codes where it has a VQ-VAE."""
    if config.vq is None:
        return ActionTokens(config.action_vocab, config.bins)

    def part(name: str) -> _Float32s:
        return tensors[f"vq.{name}"].float().cpu().numpy()

    layers = tuple((part(f"decoder.{i}.weight"), part(f"decoder.{i}.bias")) for i in range(3))
    return ActionCodes(
        config.action_vocab,
        config.bins,
        codebooks=part("codebooks"),
        layers=layers,
        scale=config.vq.scale,
    )


def vq_table(vq: VqConfig, config: ModelConfig) -> Table:
    """The tensor table of the VQ-VAE; it stays float32 whatever the model is."""
    sizes = (vq.latent, vq.hidden, vq.hidden, vq.horizon * config.action_dim)
    return {
        "vq.codebooks": Plain((config.action_dim, config.bins, vq.latent)),
        **{f"vq.decoder.{number}": size for number, size in enumerate(pairwise(sizes))},
    }
