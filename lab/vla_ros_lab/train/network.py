"""Token policies in training: the engine's own vision and decoder, in batches and with gradients.

There is no second implementation to keep equal: what is trained is what runs, tensor names
included, so a checkpoint is the state of this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from vla_ros.core.types import GRIPPER
from vla_ros.engine.families.openvla import text_table
from vla_ros.engine.families.random import build_tokenizer
from vla_ros.engine.io.checkpoint import LANGUAGE, Tensors
from vla_ros.engine.io.config import ModelConfig
from vla_ros.engine.io.tensors import shapes
from vla_ros.engine.io.tokens import ActionTokens, prompt_text
from vla_ros.engine.layers.attention import Attention
from vla_ros.engine.layers.linear import linear
from vla_ros.engine.models.language.llama import LlamaDecoder
from vla_ros.engine.models.oft import ParallelHeads
from vla_ros.engine.models.towers import Vision
from vla_ros_lab.train.batches import Batches, ChunkBatches, TreePrefixLayout
from vla_ros_lab.train.frames import NOWHERE, FrameTable
from vla_ros_lab.train.loop import Losses, Objective
from vla_ros_lab.train.options import TrainOptions

_POSITION_SCALE = 0.5  # of the sin-cos embedding against patch embeddings at the start
_POSITION_BASE = 100.0


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Attention of q [B, H, T, D] over k and v [B, Hkv, S, D] -> [B, T, H, D]; ``mask`` bool, None:
    causal.

    On a CPU as products and a softmax: of sequences this short, torch's flash attention takes
    three times as long backward.
    """
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    if q.is_cuda:
        causal = mask is None
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
        return out.transpose(1, 2)
    if mask is None:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    scores = (q @ k.transpose(-1, -2)).float() * scale
    chances = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return (chances.to(v.dtype) @ v).transpose(1, 2)


class BatchedAttention(Attention):
    """Attention within each of ``batch`` sequences of one layout; ``mask`` None: causal."""

    def __init__(self, batch: int, mask: torch.Tensor | None) -> None:
        self._batch, self._mask = batch, mask

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """q [B T, H, D], k and v [B T, Hkv, D] -> [B T, H, D]."""
        q, k, v = (
            x.to(v.dtype).view(self._batch, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v)
        )
        return attend(q, k, v, self._mask, scale).flatten(0, 1)


class Network(nn.Module):
    """A :class:`ModelConfig` with weights to train, and the heads of the auxiliary losses.

    ``patch_head`` names the object centered in a patch, out of ``objects``; ``place_head`` points
    at the patches of the two things that an instruction is about. Neither is part of a checkpoint.
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
        text = shapes(text_table(config.text)).items()
        self.language = nn.ParameterDict(
            {n.replace(".", "/"): _start(n, shape) for n, shape in text}
        )
        torch.random.set_rng_state(generator)
        tower = self.vision.vision_backbone.featurizer
        with torch.no_grad():
            tower.pos_embed.copy_(sincos(config.towers[0].patches, config.towers[0].width))

    def forward(
        self, pixels: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor, layout: TreePrefixLayout
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits of ``rows``, their hidden states, and the patch features.

        pixels [B, images, 3, s, s]; ids int64 [B, L]: the layout's tokens without the patches,
        every branch right-padded; rows int64 [B, R] of the whole layout.
        Returns [B, R, V], [B, R, C] and [B, patches, W].
        """
        batch, device = len(ids), ids.device
        decoder, x, features = self._embed(pixels, ids)
        positions = layout.positions(device).repeat(batch)
        attention = BatchedAttention(batch, layout.mask(device) if layout.branches else None)
        starts = torch.arange(batch, device=device)[:, None] * layout.total
        wanted = (starts + rows).flatten()
        hidden = decoder.hidden(x.flatten(0, 1), positions, attention, wanted)
        hidden = hidden.view(batch, rows.shape[1], -1)
        return linear(hidden, decoder.head), hidden, features

    def _embed(
        self, pixels: torch.Tensor, ids: torch.Tensor, blank: torch.Tensor | None = None
    ) -> tuple[LlamaDecoder, torch.Tensor, torch.Tensor]:
        """The decoder, its input [B, patches + L, C], 0 where it is ``blank``, and the patch
        features."""
        longest = ids.shape[1] + self.config.patches
        decoder = LlamaDecoder(self.config.text, self.text_tensors(), max_positions=longest)
        features = self.vision.vision_backbone((pixels.flatten(0, 1),))
        features = features.reshape(len(ids), self.config.patches, -1)
        embedded = decoder.embed(ids)
        if blank is not None:
            embedded = embedded.masked_fill(blank[..., None], 0.0)
        patches = self.vision.projector(features).to(embedded.dtype)
        return decoder, torch.cat((embedded[:, :1], patches, embedded[:, 1:]), 1), features

    def chunk(
        self,
        pixels: torch.Tensor,
        ids: torch.Tensor,
        blank: torch.Tensor,
        seen: torch.Tensor,
        rows: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """OpenVLA-OFT's actions, of one bidirectional pass, and the patch features.

        pixels [B, images, 3, s, s]; the rest as in ChunkBatch.
        Returns [B, C, 7] and [B, patches, W].
        """
        assert self.heads is not None
        batch = len(ids)
        decoder, x, features = self._embed(pixels, ids, blank)
        always = seen.new_ones(batch, self.config.patches)
        mask = torch.cat((seen[:, :1], always, seen[:, 1:]), 1)[:, None, None]
        positions = torch.arange(x.shape[1], device=ids.device).repeat(batch)
        wanted = (torch.arange(batch, device=ids.device)[:, None] * x.shape[1] + rows).flatten()
        attention = BatchedAttention(batch, mask)
        states = decoder.hidden(x.flatten(0, 1), positions, attention, wanted)
        actions = self.heads.action_head(states)
        return actions.view(batch, self.config.chunk, -1), features

    def text_tensors(self) -> Tensors:
        """The language model's tensors under the checkpoint's names."""
        return {LANGUAGE + key.replace("/", "."): one for key, one in self.language.items()}

    def tensors(self) -> Tensors:
        """Tensors of a checkpoint, under its names."""
        heads = self.heads.state_dict() if self.heads is not None else {}
        return {**self.vision.state_dict(), **self.text_tensors(), **heads}

    def load_tensors(self, tensors: Tensors) -> None:
        """Take the weights of a checkpoint of the same sizes; heads that it lacks stay."""
        self.vision.load_state_dict({n: tensors[n] for n in self.vision.state_dict()})
        with torch.no_grad():
            for name, parameter in self.text_tensors().items():
                parameter.copy_(tensors[name])
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
    """transformers' initialization: norms 1, biases 0, all else normal with deviation 0.02."""
    if name.endswith("norm.weight"):
        return nn.Parameter(torch.ones(shape))
    if name.endswith("bias"):
        return nn.Parameter(torch.zeros(shape))
    return nn.Parameter(torch.randn(shape) * 0.02)


_BACKGROUND = 0.05  # weight of patches without an object's center: nearly all of them


class SoftBins:
    """Cross-entropy against a Gaussian over the bins: a near miss costs less than a far one.

    ``sigma`` in bins; 0 is the hard cross-entropy (which stays at chance on little data).
    """

    def __init__(self, actions: ActionTokens, sigma: float, device: torch.device) -> None:
        self.actions = actions
        self._first, self._end = actions.first, actions.vocab
        bins = torch.arange(actions.bins, device=device, dtype=torch.float32)
        if sigma > 0:
            weights = torch.exp(-0.5 * ((bins[:, None] - bins[None]) / sigma) ** 2)
        else:
            weights = torch.eye(actions.bins, device=device)
        self._weights = weights / weights.sum(1, keepdim=True)

    def __call__(
        self, logits: torch.Tensor, tokens: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Logits [..., V] over the whole vocabulary, action tokens [...] and their weights
        [...] -> the weighted mean loss."""
        chances = logits.float().log_softmax(-1)[..., self._first : self._end]
        each = -(self._weights[tokens - self._first] * chances).sum(-1)
        return (each * weights).sum() / weights.sum()


def token_error(logits: torch.Tensor, tokens: torch.Tensor, actions: ActionTokens) -> torch.Tensor:
    """Mean distance of the likeliest action token from the right one, in units of [-1, 1]."""
    likeliest = logits[..., actions.first : actions.vocab].argmax(-1) + actions.first
    return (likeliest - tokens).abs().float().mean() * 2 / (actions.bins - 1)


def patch_loss(logits: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
    """Logits [B, P, K + 1], labels int64 [B, P] with 0 for no object -> the mean loss; 0 where it
    is not known what is in the images."""
    if labels is None:
        return logits.new_zeros((), dtype=torch.float32)
    weight = torch.ones(logits.shape[-1], device=logits.device)
    weight[0] = _BACKGROUND
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), weight=weight)


def place_loss(logits: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
    """Logits [B, K, 3, 2 P] of two patches, places int64 [B, K, 2], NOWHERE for none -> the mean;
    0 where no instruction names a thing whose place is known.

    At the end of the instruction it is of both, at the word for a thing of that thing alone.
    """
    if places is None:
        return logits.new_zeros((), dtype=torch.float32)
    end, first, second = logits.float().unflatten(-1, (2, -1)).unbind(2)
    each = torch.stack((end[:, :, 0], end[:, :, 1], first[:, :, 0], second[:, :, 1]), 2)
    wanted = torch.cat((places, places), -1)
    return F.cross_entropy(each.flatten(0, 2), wanted.flatten(), ignore_index=NOWHERE)


_OWN = 2.0  # weight of the instruction that was pursued, against each of the others


def make_objective(
    frames: FrameTable,
    network: Any,
    options: TrainOptions,
    device: torch.device,
    compiled: bool = False,
    tokenize: Callable[..., list[int]] | None = None,
) -> Objective:
    """The objective of the network's architecture. ``tokenize``: the checkpoint's own instead of
    the small policies'. UserError: unfit data."""
    config, tokenize = network.config, tokenize or small_tokenizer(network.config.prompt_style)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=options.dtype == "bfloat16")
    if config.parallel:
        chunks = ChunkBatches(frames, config, tokenize, options, device)
        # No fixed shapes: the longest instruction of a batch sets its length.
        run = torch.compile(network.chunk) if compiled else network.chunk
        return ChunkObjective(network, run, chunks, autocast)
    tokens = Batches(frames, config, tokenize, options, device)
    run = torch.compile(network, dynamic=False) if compiled else network
    soft = SoftBins(ActionTokens(config.action_vocab, config.bins), options.sigma_bins, device)
    return TokenObjective(network, run, tokens, autocast, soft, options.carry_weight)


class Alternating:
    """Parts of the data that do not fit into one batch, a step each in turn."""

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._objectives = tuple(objectives)

    def losses(self, step: int) -> Losses:
        turn, part = divmod(step, len(self._objectives))
        return self._objectives[part].losses(turn)


class TokenObjective:
    """Behavior cloning of the answers' tokens, of several instructions an image."""

    def __init__(
        self,
        network: Any,
        run: Callable[..., Any],
        batches: Batches,
        autocast: torch.autocast,
        soft: SoftBins,
        carry_weight: float = 1.0,
    ) -> None:
        self._network, self._forward, self._batches = network, run, batches
        self._autocast, self._soft, self._carry_weight = autocast, soft, carry_weight

    def losses(self, step: int) -> Losses:
        batch = self._batches.batch(step)
        with self._autocast:
            count = batch.tokens.shape[-1]
            rows = torch.cat((batch.rows, batch.words), -1)
            logits, hidden, features = self._forward(
                batch.pixels, batch.ids, rows.flatten(1), batch.layout
            )
            patches = self._network.patch_head(features)
            hidden = hidden.view(*rows.shape, -1)
            # Where the instruction ends, and at the words themselves.
            places = self._network.place_head(hidden[:, :, [0, count, count + 1]])
        logits = logits.view(*rows.shape, -1)[:, :, :count]
        weights = torch.ones(batch.rows.shape, device=logits.device)
        weights[:, 0] = _OWN
        weights[:, :, GRIPPER] *= 1.0 + (self._carry_weight - 1.0) * batch.carried
        return Losses(
            self._soft(logits, batch.tokens, weights),
            patch_loss(patches, batch.patches),
            place_loss(places, batch.places),
            token_error(logits[:, 0], batch.tokens[:, 0], self._soft.actions),
        )


class ChunkObjective:
    """L1 regression of a chunk. Source: openvla-oft ``vla-scripts/finetune.py``."""

    def __init__(
        self,
        network: Network,
        run: Callable[..., Any],
        batches: ChunkBatches,
        autocast: torch.autocast,
    ) -> None:
        self._network, self._forward, self._batches = network, run, batches
        self._autocast = autocast

    def losses(self, step: int) -> Losses:
        batch = self._batches.batch(step)
        with self._autocast:
            actions, features = self._forward(
                batch.pixels, batch.ids, batch.blank, batch.seen, batch.rows
            )
            patches = self._network.patch_head(features)
        error = (actions.float() - batch.values).abs()
        return Losses(
            error[batch.known].mean(),
            patch_loss(patches, batch.patches),
            error=error[:, 0].detach().mean(),
        )


def small_tokenizer(style: str) -> Callable[..., list[int]]:
    """The small policies': an instruction, and a delay in steps -> the ids of its whole prompt."""
    tokenizer = build_tokenizer()
    return lambda text, *delay: list(tokenizer.encode(prompt_text(style, text, *delay)).ids)
