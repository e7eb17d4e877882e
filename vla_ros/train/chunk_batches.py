"""Batches for OpenVLA-OFT's architecture: an image, a sentence, the next actions of the expert.

Only what the expert itself did is used: what follows a frame of an on-policy round was the
policy's doing. The same draws at every call, as in :mod:`vla_ros.train.batches`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from vla_ros.engine.config import ModelConfig
from vla_ros.engine.schedules.parallel import STOP_TOKEN
from vla_ros.train import TrainError
from vla_ros.train.batches import family_weights
from vla_ros.train.frames import Frames
from vla_ros.train.pictures import Pictures, mixed
from vla_ros.train.wordings import wordings


@dataclass(frozen=True, slots=True)
class ChunkBatch:
    """``ids`` int64 [B, L]: a prompt, a blank for every value of the chunk, the stop token,
    padding. ``blank`` bool [B, L]; ``seen`` bool [B, L]: no padding. ``rows`` int64 [B, C 7] in
    the sequence with the patches; ``values`` [B, C, 7] in [-1, 1]; ``patches`` as in Batch."""

    pixels: torch.Tensor
    ids: torch.Tensor
    blank: torch.Tensor
    seen: torch.Tensor
    rows: torch.Tensor
    values: torch.Tensor
    patches: torch.Tensor


class ChunkBatches:
    """Draws batches of ``size`` from the expert's own frames. TrainError: there are none."""

    def __init__(
        self,
        frames: Frames,
        config: ModelConfig,
        tokenize: Callable[[str], list[int]],
        size: int,
        seed: int,
        shift: int,
        device: torch.device,
    ) -> None:
        self._frames, self._config, self._device = frames.to(device), config, device
        self._size, self._seed = size, seed
        self._pictures = Pictures(self._frames, config, seed, shift, device)
        self._chances = family_weights(frames) * frames.expert.cpu()
        if not self._chances.any():
            raise TrainError("chunks are learned from demonstrations, and there are none")
        self._prompts = [[tokenize(text) for text in wordings(goal)] for goal in frames.goals]
        self._goal = frames.goal.cpu()

    def batch(self, step: int) -> ChunkBatch:
        """The batch of ``step``."""
        draw = torch.Generator().manual_seed(mixed(self._seed, step))
        index = torch.multinomial(self._chances, self._size, replacement=True, generator=draw)
        wording = torch.randint(1 << 30, (self._size,), generator=draw)
        drawn = self._pictures(index, draw, step)
        said = [self._prompts[g] for g in self._goal[index].tolist()]
        prompts = [of[n % len(of)] for of, n in zip(said, wording.tolist(), strict=True)]
        lengths = torch.tensor([len(prompt) for prompt in prompts])[:, None]
        count = self._config.chunk * self._config.action_dim
        place = torch.arange(int(lengths.max()) + count + 1)
        ids = torch.full((self._size, len(place)), STOP_TOKEN)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = torch.tensor(prompt)
        blank = (place >= lengths) & (place < lengths + count)
        rows = lengths + self._config.patches - 1 + torch.arange(count)
        values = self._frames.chunks[index.to(self._device)].float()
        seen = place <= lengths + count
        ids, blank, seen, rows = (part.to(self._device) for part in (ids, blank, seen, rows))
        return ChunkBatch(drawn.pixels, ids, blank, seen, rows, values, drawn.patches)
