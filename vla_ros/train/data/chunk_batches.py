"""Batches for OpenVLA-OFT's architecture: an image, a sentence, the next actions of the expert.

A whole chunk is known only where the expert itself acted and for the sentence that it pursued.
For every other sentence, and where a policy acted, what the expert would do now is known and what
it would do next is not: of those only the first action is learned, which is how the sentence is
read and how mistakes are mended. The same draws at every call, as in :mod:`.batches`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from vla_ros.engine.checkpoints.config import ModelConfig
from vla_ros.errors import UserError
from vla_ros.train.data.batches import family_weights, goal_weights
from vla_ros.train.data.frames import Frames
from vla_ros.train.data.pictures import Pictures, mixed
from vla_ros.train.data.wordings import wordings


@dataclass(frozen=True, slots=True)
class ChunkBatch:
    """``ids`` int64 [B, L]: a prompt, a blank for every value of the chunk, the stop token,
    padding. ``blank`` bool [B, L]; ``seen`` bool [B, L]: no padding. ``rows`` int64 [B, C 7] in
    the sequence with the patches; ``values`` [B, C, 7] in [-1, 1], of which those ``known``, bool
    [B, C], are to be learned; ``patches`` as in Batch."""

    pixels: torch.Tensor
    ids: torch.Tensor
    blank: torch.Tensor
    seen: torch.Tensor
    rows: torch.Tensor
    values: torch.Tensor
    known: torch.Tensor
    patches: torch.Tensor


_OTHERS = 0.5  # share of images that come with another sentence than the one that was pursued


class ChunkBatches:
    """Draws batches of ``size``. UserError: there is no frame where the expert acted."""

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
        self._pictures = Pictures(self._frames, config.towers[0], seed, shift, device)
        self._chances, self._others = family_weights(frames), goal_weights(frames)
        if not frames.expert.any():
            raise UserError("chunks are learned from demonstrations, and there are none")
        self._prompts = [[tokenize(text) for text in wordings(goal)] for goal in frames.goals]
        self._others_share = 0.0 if frames.info.own_sentence else _OTHERS
        self._goal, self._shows = frames.goal.cpu(), frames.shows[:, 0].cpu()

    def batch(self, step: int) -> ChunkBatch:
        """The batch of ``step``."""
        draw = torch.Generator().manual_seed(mixed(self._seed, step))
        index = torch.multinomial(self._chances, self._size, replacement=True, generator=draw)
        wording = torch.randint(1 << 30, (self._size,), generator=draw)
        others = torch.multinomial(self._others, self._size, replacement=True, generator=draw)
        own = torch.rand(self._size, generator=draw) >= self._others_share
        goal = torch.where(own, self._goal[index], others)
        drawn = self._pictures(self._shows[index], draw, step)
        said = [self._prompts[g] for g in goal.tolist()]
        prompts = [of[n % len(of)] for of, n in zip(said, wording.tolist(), strict=True)]
        lengths = torch.tensor([len(prompt) for prompt in prompts])[:, None]
        count = self._config.chunk * self._config.action_dim
        place = torch.arange(int(lengths.max()) + count + 1)
        ids = torch.full((self._size, len(place)), self._config.stop_token)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = torch.tensor(prompt)
        blank = (place >= lengths) & (place < lengths + count)
        rows = lengths + self._config.patches - 1 + torch.arange(count)
        seen = place <= lengths + count
        ids, blank, seen, rows, index, goal = (
            part.to(self._device) for part in (ids, blank, seen, rows, index, goal)
        )
        values = self._frames.chunks[index].float()
        values[:, 0] = self._frames.values[index, goal].float()
        known = (self._frames.expert[index] & (goal == self._frames.goal[index]))[:, None]
        known = known.repeat(1, self._config.chunk)
        known[:, 0] = True
        return ChunkBatch(drawn.pixels, ids, blank, seen, rows, values, known, drawn.patches)
