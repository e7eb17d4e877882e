"""Flow matching with a time for each action, so that a chunk can be given its first actions.

Sources: openpi ``pi0.py`` (the path x = t noise + (1 - t) actions, its velocity noise - actions)
and arXiv 2512.05964 (rows that are given are at time 0 and are not learned).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vla_ros.engine.checkpoints.small_tokenizer import build_tokenizer
from vla_ros.engine.flow.text import prompt_text
from vla_ros.train.data.frames import Frames
from vla_ros.train.flow.batches import FlowBatch, FlowBatches
from vla_ros.train.flow.network import FlowNetwork
from vla_ros.train.loss import Losses, patch_loss, place_loss
from vla_ros.train.options import TrainOptions

_SPOT = 0.05  # m: the hand's longest step


class FlowObjective:
    """Knows the data and the network. UserError: unfit data."""

    def __init__(
        self,
        frames: Frames,
        network: FlowNetwork,
        options: TrainOptions,
        device: torch.device,
        compiled: bool = False,
    ) -> None:
        tokenizer, kind = build_tokenizer(), network.config.kind

        def tokenize(text: str) -> list[int]:
            return list(tokenizer.encode(prompt_text(kind, text)).ids)

        self._network = network
        self._batches = FlowBatches(
            frames, network.config, tokenize, network.scaling, options.batch, options.branches,
            options.samples, options.seed, options.shift, device,
        )  # fmt: skip
        self._forward: Callable[..., Any] = (
            torch.compile(network, dynamic=False) if compiled else network
        )
        self._autocast = torch.autocast(
            device.type, torch.bfloat16, enabled=options.dtype == "bfloat16"
        )

    def losses(self, step: int) -> Losses:
        """See :class:`vla_ros.train.objectives.Objective`."""
        return self.losses_of(self._batches.batch(step))

    def losses_of(self, batch: FlowBatch) -> Losses:
        """Of a batch. The error is of the first action that is not given, as one step from the
        present noise would leave it, in units of the model space."""
        actions = batch.actions[:, :, None].expand_as(batch.noise)
        time = batch.time[..., None, None].masked_fill(batch.given[..., None], 0.0)
        x = time * batch.noise + (1 - time) * actions
        with self._autocast:
            speed, features, words = self._forward(
                batch.pixels, batch.ids, batch.lengths, batch.state, x, batch.time, batch.given
            )
            patches = self._network.patch_head(features)
            named = _named(words, batch)
            places = self._network.place_head(named)
            spots = self._network.spot_head(named)
        wrong = (speed - (batch.noise - actions)).square().mean(-1)
        open_rows = ~batch.given
        with torch.no_grad():
            left = ((x - time * speed) - actions).abs().mean(-1)
            first = batch.given.sum(-1, keepdim=True)
        return Losses(
            wrong[open_rows].mean(),
            patch_loss(patches, batch.patches),
            place_loss(places, batch.places) + spot_loss(spots, batch.spots),
            left.gather(-1, first).mean(),
        )


def spot_loss(said: torch.Tensor, spots: torch.Tensor) -> torch.Tensor:
    """Said [B, K, 3, 6] and spots [B, K, 2, 3] in m, NaN for none -> the mean error, in _SPOT.

    A patch is coarse, most of all away from the camera; a grasp wants millimetres. As in
    place_loss: at the end of the sentence both, at the word for a thing that thing.
    """
    end, first, second = said.float().unflatten(-1, (2, 3)).unbind(2)
    error = torch.stack((end, torch.stack((first[:, :, 0], second[:, :, 1]), 2)), 2)
    wanted = (spots / _SPOT)[:, :, None].expand_as(error)
    known = wanted.isfinite()
    return (error - wanted)[known].abs().mean()


def _named(words: torch.Tensor, batch: FlowBatch) -> torch.Tensor:
    """Hidden states [B, K, 3, C] where the sentence ends and at the two words for things."""
    rows = torch.cat((batch.lengths[..., None] - 1, batch.words), -1)
    return words.gather(2, rows[..., None].expand(-1, -1, -1, words.shape[-1]))
