"""Examples for a draft head out of episodes: what it is shown, and what it should have said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vla_ros_lab.train.head.features import HeadEpisode


@dataclass(frozen=True, slots=True)
class Batch:
    """``taps`` [B, layers * C], ``newest`` int64 [B] tokens, ``past`` int64 [B, 1 + 2 K] as the
    head takes it; ``bins`` int64 [B, K - 2] that were said at its places (-1: no bin), ``targets``
    [B, K - 2, bins], and ``weights`` [B, K - 2], 0 at places that are known already."""

    taps: torch.Tensor
    newest: torch.Tensor
    past: torch.Tensor
    bins: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor


class Examples:
    """All frames of episodes, each with any number of its tokens known. ``first`` is the token of
    bin 0 in the order of their ids."""

    def __init__(self, episodes: Sequence[HeadEpisode], first: int, bins: int) -> None:
        self._first, self._bins = first, bins
        self._tokens = torch.cat([episode.tokens for episode in episodes])
        self._taps = torch.cat([episode.taps for episode in episodes])
        self._targets = torch.cat([episode.targets for episode in episodes])
        self._past = torch.cat([past_of(episode, first, bins) for episode in episodes])

    def __len__(self) -> int:
        return len(self._tokens)

    def batch(self, size: int, fall: float, forgetful: float, draw: torch.Generator) -> Batch:
        """Drawn frames and numbers of known tokens; ``fall`` and ``forgetful`` as the options."""
        count = self._tokens.shape[1]
        frame = torch.randint(len(self), (size,), generator=draw)
        known = torch.randint(1, count - 1, (size,), generator=draw)
        past = self._past[frame]
        hidden = torch.rand(size, generator=draw) < forgetful
        past = past.masked_fill(hidden[:, None], -1)
        place = torch.arange(1, count - 1)
        ahead = place - known[:, None]
        bins = self._tokens[frame, 1:-1] - self._first
        bins = torch.where((bins >= 0) & (bins < self._bins), bins, -1)
        return Batch(
            taps=self._taps[frame, known - 1],
            newest=self._tokens[frame, known - 1],
            past=torch.cat((known[:, None], past), 1),
            bins=bins,
            targets=self._targets[frame, 1:-1],
            weights=torch.where(ahead >= 0, fall ** ahead.float(), 0.0) * (bins >= 0),
        )


def past_of(episode: HeadEpisode, first: int, bins: int) -> torch.Tensor:
    """The bins of the last action and of the one before it, int64 [F, 2 K]; -1 where none was."""
    own = episode.tokens - first
    own = torch.where((own >= 0) & (own < bins), own, -1)
    none = torch.full((2, own.shape[1]), -1)
    padded = torch.cat((none, own))
    return torch.cat((padded[1:-1], padded[:-2]), 1)


def places(count: int) -> torch.Tensor:
    """[known - 1, place]: 1 where the place is not known yet."""
    return torch.ones(count, count).triu()
