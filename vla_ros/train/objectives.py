"""What a network learns: tokens one after another, of an action or of a chunk, or OpenVLA-OFT's
chunk at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from vla_ros.engine.checkpoints.small_tokenizer import build_tokenizer
from vla_ros.engine.tokens import ActionTokens, prompt_text
from vla_ros.train.data.batches import Batches
from vla_ros.train.data.chunk_batches import ChunkBatches
from vla_ros.train.data.frames import Frames
from vla_ros.train.loss import Losses, SoftBins, patch_loss, place_loss, token_error
from vla_ros.train.network import Network
from vla_ros.train.options import TrainOptions

_OWN = 2.0  # weight of the sentence that was pursued, against each of the others


class Objective(Protocol):
    """Knows the data and the network."""

    def losses(self, step: int) -> Losses:
        """Of the batch of ``step``, with gradients."""
        ...


def make_objective(
    frames: Frames,
    network: Network,
    options: TrainOptions,
    device: torch.device,
    compiled: bool = False,
) -> Objective:
    """The objective that belongs to the network's architecture. UserError: unfit data."""
    config, tokenize = network.config, _Tokenize(network.config.prompt_style)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=options.dtype == "bfloat16")
    if config.parallel:
        chunks = ChunkBatches(
            frames, config, tokenize, options.batch, options.seed, options.shift, device
        )
        # No fixed shapes: the longest sentence of a batch sets its length.
        run = torch.compile(network.chunk) if compiled else network.chunk
        return ChunkObjective(network, run, chunks, autocast)
    tokens = Batches(
        frames,
        config,
        tokenize,
        options.batch,
        options.branches,
        options.seed,
        options.shift,
        device,
    )
    run = torch.compile(network, dynamic=False) if compiled else network
    soft = SoftBins(ActionTokens(config.action_vocab, config.bins), options.sigma_bins, device)
    return TokenObjective(network, run, tokens, autocast, soft)


class TokenObjective:
    """Behaviour cloning of the answers' tokens, of several sentences an image."""

    def __init__(
        self,
        network: Network,
        run: Callable[..., Any],
        batches: Batches,
        autocast: torch.autocast,
        soft: SoftBins,
    ) -> None:
        self._network, self._forward, self._batches = network, run, batches
        self._autocast, self._soft = autocast, soft

    def losses(self, step: int) -> Losses:
        """See Objective."""
        batch = self._batches.batch(step)
        with self._autocast:
            count = batch.tokens.shape[-1]
            rows = torch.cat((batch.rows, batch.words), -1)
            logits, hidden, features = self._forward(
                batch.pixels, batch.ids, rows.flatten(1), batch.layout
            )
            patches = self._network.patch_head(features)
            hidden = hidden.view(*rows.shape, -1)
            # Where the sentence ends, and at the words themselves.
            places = self._network.place_head(hidden[:, :, [0, count, count + 1]])
        logits = logits.view(*rows.shape, -1)[:, :, :count]
        weights = torch.ones(batch.rows.shape, device=logits.device)
        weights[:, 0] = _OWN
        return Losses(
            self._soft(logits, batch.tokens, weights),
            patch_loss(patches, batch.patches),
            self._place_loss(places, batch.places),
            token_error(logits[:, 0], batch.tokens[:, 0], self._soft.actions),
        )

    def _place_loss(self, logits: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Zero where no sentence names a thing whose place is known."""
        if not self._batches.pointing:
            return logits.new_zeros((), dtype=torch.float32)
        return place_loss(logits, places)


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
        """See Objective; nothing is pointed at."""
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
            error.new_zeros(()),
            error[:, 0].detach().mean(),
        )


class _Tokenize:
    """A sentence -> the ids of its whole prompt."""

    def __init__(self, style: str) -> None:
        self._tokenizer, self._style = build_tokenizer(), style

    def __call__(self, text: str, delay_steps: int | None = None) -> list[int]:
        return list(self._tokenizer.encode(prompt_text(self._style, text, delay_steps)).ids)
