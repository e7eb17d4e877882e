"""Batches: a pure function of (frames, seed, step), so training can stop and go on anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from vla_ros.core import ACTION_DIM
from vla_ros.engine.config import ModelConfig
from vla_ros.engine.tokens import ActionTokens
from vla_ros.sim.goals import Family
from vla_ros.train.frames import Frames
from vla_ros.train.loss import patch_labels
from vla_ros.train.wordings import wordings

_LIGHT = 0.1  # largest relative change of brightness and contrast
_GRAIN = 0.01  # standard deviation of pixel noise, of 1


@dataclass(frozen=True, slots=True)
class Batch:
    """``pixels`` [B, images, 3, s, s]; ``ids`` int64 [B, L] prompt and the action tokens but the
    last, right-padded; ``rows`` int64 [B, 7] where they are predicted; ``tokens`` int64 [B, 7];
    ``patches`` int64 [B, patches] labels of the auxiliary loss."""

    pixels: torch.Tensor
    ids: torch.Tensor
    rows: torch.Tensor
    tokens: torch.Tensor
    patches: torch.Tensor


class Batches:
    """Draws batches of ``size`` from ``frames``; ``shift``: largest shift of an image, in pixels.

    Frames are drawn so that a family counts as the square root of its frames: reaching takes
    few steps and would otherwise hardly be seen.
    """

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
        self._size, self._seed, self._shift = size, seed, shift
        self._actions = ActionTokens(config.action_vocab, config.bins)
        tower = config.towers[0]
        self._mean = torch.tensor(tower.mean, device=device).view(3, 1, 1)
        self._std = torch.tensor(tower.std, device=device).view(3, 1, 1)
        self._chances = family_weights(frames)
        said = [[tokenize(text) for text in wordings(goal)] for goal in frames.goals]
        self._choices = torch.tensor([len(prompts) for prompts in said])
        self._first = self._choices.cumsum(0) - self._choices  # row of a goal's first prompt
        prompts = [torch.tensor(prompt) for of_goal in said for prompt in of_goal]
        self._lengths = torch.tensor([len(prompt) for prompt in prompts])
        self._prompts = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True)
        self._tokens = encode(self._actions, frames.values)
        self._goal = frames.goal.cpu()

    def batch(self, step: int) -> Batch:
        """The batch of ``step``; the same one on every call."""
        draw = torch.Generator().manual_seed(self._mixed(step))
        index = torch.multinomial(self._chances, self._size, replacement=True, generator=draw)
        wording = torch.randint(1 << 30, (self._size,), generator=draw)
        span = 2 * self._shift + 1
        shift = torch.randint(span, (self._size, 2), generator=draw) - self._shift
        light = torch.rand(self._size, 2, generator=draw) * 2 - 1
        ids, rows = self._sequences(index, wording)
        there, moved = index.to(self._device), shift.to(self._device)
        pixels = self._pixels(there, moved, light.to(self._device), step)
        tower = self._config.towers[0]
        places = self._frames.pixels[there] - moved[:, None, None, [1, 0]]
        labels = patch_labels(places, tower.image_size // tower.patch, tower.patch)
        return Batch(pixels, ids, rows, self._tokens[index].to(self._device), labels)

    def _mixed(self, step: int) -> int:
        """A seed of a step. torch's CPU generator reads 32 bits of it, so no simple shift does."""
        return int(np.random.SeedSequence([self._seed, step]).generate_state(1)[0])

    def _sequences(
        self, index: torch.Tensor, wording: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        goal = self._goal[index]
        which = self._first[goal] + wording % self._choices[goal]
        lengths = self._lengths[which]
        longest = int(lengths.max())
        behind = torch.arange(ACTION_DIM)
        ids = torch.zeros(len(index), longest + ACTION_DIM - 1, dtype=torch.long)
        ids[:, :longest] = self._prompts[which, :longest]
        ids.scatter_(1, lengths[:, None] + behind[:-1], self._tokens[index, :-1])
        rows = lengths[:, None] + self._config.patches - 1 + behind
        return ids.to(self._device), rows.to(self._device)

    def _pixels(
        self, index: torch.Tensor, shift: torch.Tensor, light: torch.Tensor, step: int
    ) -> torch.Tensor:
        """Shifted (edges repeat), relit, grainy and normalised images."""
        images = self._frames.images
        size = images.shape[2]
        along = torch.arange(size, device=self._device)
        y = (along + shift[:, :1]).clamp(0, size - 1)
        x = (along + shift[:, 1:]).clamp(0, size - 1)
        cameras = torch.arange(images.shape[1], device=self._device)[None, :, None, None]
        shifted = images[index[:, None, None, None], cameras, y[:, None, :, None], x[:, None, None]]
        pixels = shifted.permute(0, 1, 4, 2, 3).float() / 255.0
        if self._shift:  # augmentation is on
            brightness, contrast = (_LIGHT * light).T[..., None, None, None, None]
            pixels = (pixels - 0.5) * (1 + contrast) + 0.5 + brightness
            noise = torch.Generator(self._device).manual_seed(self._mixed(step))
            grain = torch.randn(pixels.shape, generator=noise, device=self._device)
            pixels = (pixels + _GRAIN * grain).clamp(0, 1)
        return (pixels - self._mean) / self._std


def encode(actions: ActionTokens, values: torch.Tensor) -> torch.Tensor:
    """Values [N, 7] in [-1, 1] -> the engine's tokens, int64 [N, 7]."""
    flat = actions.encode(values.cpu().double().flatten().numpy())
    return torch.tensor(flat, dtype=torch.long).view(values.shape)


def family_weights(frames: Frames) -> torch.Tensor:
    """Chance of each frame to be drawn, float64 [N]."""
    families = list(Family)
    of_goal = torch.tensor([families.index(goal.family) for goal in frames.goals])
    family = of_goal[frames.goal.cpu()]
    counts = torch.bincount(family, minlength=len(families)).double()
    return counts.clamp(min=1).rsqrt()[family]
