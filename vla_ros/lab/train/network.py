"""The model in training: the engine's own vision and decoder, in batches and with gradients.

There is no second implementation to keep equal: what is trained is what runs, tensor names
included, so a checkpoint is the state of this module.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from vla_ros.engine.checkpoints.config import ModelConfig
from vla_ros.engine.checkpoints.shapes import LANGUAGE, Tensors, text_shapes
from vla_ros.engine.decoders.llama import LlamaDecoder
from vla_ros.engine.heads import ParallelHeads
from vla_ros.engine.packed.attention import Attention
from vla_ros.engine.quantised.matrices import linear
from vla_ros.engine.vision.towers import Vision
from vla_ros.train.data.layout import Layout

_POSITION_SCALE = 0.5  # of the sin-cos embedding against patch embeddings at the start
_POSITION_BASE = 100.0


class BatchedAttention(Attention):
    """Attention within each of ``batch`` sequences of one layout; ``mask`` None: causal."""

    def __init__(self, batch: int, mask: torch.Tensor | None) -> None:
        self._batch, self._mask = batch, mask

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """q [B T, H, D], k and v [B T, Hkv, D] -> [B T, H, D]."""
        q, k, v = (self._split(x.to(v.dtype)) for x in (q, k, v))
        groups = q.shape[1] // k.shape[1]
        if groups > 1:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        causal = self._mask is None
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=self._mask, is_causal=causal, scale=scale
        )
        return out.transpose(1, 2).flatten(0, 1)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(self._batch, -1, *x.shape[1:]).transpose(1, 2)


class Network(nn.Module):
    """A :class:`ModelConfig` with weights to train, and the heads of the auxiliary losses.

    ``patch_head`` names the object centred in a patch, out of ``objects``; ``place_head`` points
    at the patches of the two things that a sentence is about. Neither is part of a checkpoint.
    """

    def __init__(self, config: ModelConfig, objects: int, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        generator = torch.random.get_rng_state()
        torch.manual_seed(seed)
        self.vision = Vision(config)
        self.patch_head = nn.Linear(config.feature_width, objects + 1)
        self.place_head = nn.Linear(config.text.hidden_size, 2 * config.patches)
        self.heads = ParallelHeads(config) if config.parallel else None
        self._names = {n.replace(".", "/"): LANGUAGE + n for n in text_shapes(config.text)}
        self.language = nn.ParameterDict(
            {key: _start(name, text_shapes(config.text)[key.replace("/", ".")])
             for key, name in self._names.items()}
        )  # fmt: skip
        torch.random.set_rng_state(generator)
        tower = self.vision.vision_backbone.featurizer
        with torch.no_grad():
            tower.pos_embed.copy_(sincos(config.towers[0].patches, config.towers[0].width))

    def forward(
        self, pixels: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor, layout: Layout
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits of the rows asked for, their hidden states, and the patch features.

        pixels [B, images, 3, s, s]; ids int64 [B, L]: the layout's tokens without the patches,
        every branch right-padded; rows int64 [B, R]: places in the whole layout.
        Returns [B, R, V], [B, R, C] and [B, patches, W].
        """
        batch, device = len(ids), ids.device
        decoder = LlamaDecoder(
            self.config.text, self.text_tensors(), max_positions=ids.shape[1] + self.config.patches
        )
        features = self.vision.vision_backbone((pixels.flatten(0, 1),))
        features = features.reshape(batch, self.config.patches, -1)
        embedded = decoder.embed(ids)
        patches = self.vision.projector(features).to(embedded.dtype)
        x = torch.cat((embedded[:, :1], patches, embedded[:, 1:]), 1)
        positions = layout.positions(device).repeat(batch)
        attention = BatchedAttention(batch, layout.mask(device) if layout.branches else None)
        starts = torch.arange(batch, device=device)[:, None] * layout.total
        asked = (starts + rows).flatten()
        hidden = decoder.hidden(x.flatten(0, 1), positions, attention, asked)
        hidden = hidden.view(batch, rows.shape[1], -1)
        return linear(hidden, decoder.head), hidden, features

    def chunk(
        self,
        pixels: torch.Tensor,
        ids: torch.Tensor,
        blank: torch.Tensor,
        seen: torch.Tensor,
        rows: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What OpenVLA-OFT's head makes of one bidirectional pass, and the patch features.

        pixels [B, images, 3, s, s]; the rest as in chunk_batches.ChunkBatch.
        Returns [B, C, 7] and [B, patches, W].
        """
        assert self.heads is not None
        batch = len(ids)
        decoder = LlamaDecoder(
            self.config.text, self.text_tensors(), max_positions=ids.shape[1] + self.config.patches
        )
        features = self.vision.vision_backbone((pixels.flatten(0, 1),))
        features = features.reshape(batch, self.config.patches, -1)
        embedded = decoder.embed(ids).masked_fill(blank[..., None], 0.0)
        patches = self.vision.projector(features).to(embedded.dtype)
        x = torch.cat((embedded[:, :1], patches, embedded[:, 1:]), 1)
        always = seen.new_ones(batch, self.config.patches)
        mask = torch.cat((seen[:, :1], always, seen[:, 1:]), 1)[:, None, None]
        positions = torch.arange(x.shape[1], device=ids.device).repeat(batch)
        asked = (torch.arange(batch, device=ids.device)[:, None] * x.shape[1] + rows).flatten()
        attention = BatchedAttention(batch, mask)
        states = decoder.hidden(x.flatten(0, 1), positions, attention, asked)
        actions = self.heads.action_head(states)
        return actions.view(batch, self.config.chunk, -1), features

    def greedy(self, pixels: torch.Tensor, prompt: list[int], count: int) -> list[int]:
        """The ``count`` most likely tokens for one frame [images, 3, s, s], one at a time."""
        tokens: list[int] = []
        for _ in range(count):
            ids = torch.tensor([[*prompt, *tokens]], device=pixels.device)
            layout = Layout(ids.shape[1] + self.config.patches)
            last = torch.tensor([[layout.common - 1]], device=pixels.device)
            logits, _, _ = self(pixels[None], ids, last, layout)
            tokens.append(int(logits[0, 0].argmax()))
        return tokens

    def text_tensors(self) -> Tensors:
        """The language model's tensors under the checkpoint's names."""
        return {name: self.language[key] for key, name in self._names.items()}

    def tensors(self) -> Tensors:
        """Everything a checkpoint holds, under its names."""
        heads = self.heads.state_dict() if self.heads is not None else {}
        return {**self.vision.state_dict(), **self.text_tensors(), **heads}

    def load_tensors(self, tensors: Tensors) -> None:
        """Take the weights of a checkpoint of the same sizes; heads that it lacks stay."""
        self.vision.load_state_dict({n: tensors[n] for n in self.vision.state_dict()})
        with torch.no_grad():
            for key, name in self._names.items():
                self.language[key].copy_(tensors[name])
        if self.heads is not None and all(n in tensors for n in self.heads.state_dict()):
            self.heads.load_state_dict({n: tensors[n] for n in self.heads.state_dict()})


def sincos(patches: int, width: int) -> torch.Tensor:
    """2-D sin-cos position embedding [1, patches, width]: without it training stays at chance."""
    side = math.isqrt(patches)
    quarter = width // 4
    frequency = _POSITION_BASE ** (-torch.arange(quarter) / quarter)
    y, x = torch.meshgrid(torch.arange(side).float(), torch.arange(side).float(), indexing="ij")
    parts = [f(axis.reshape(-1, 1) * frequency) for axis in (x, y) for f in (torch.sin, torch.cos)]
    return _POSITION_SCALE * torch.cat(parts, 1)[None]


def _start(name: str, shape: tuple[int, ...]) -> nn.Parameter:
    """transformers' initialisation: norms 1, biases 0, all else normal with deviation 0.02."""
    if name.endswith("norm.weight"):
        return nn.Parameter(torch.ones(shape))
    if name.endswith("bias"):
        return nn.Parameter(torch.zeros(shape))
    return nn.Parameter(torch.randn(shape) * 0.02)
