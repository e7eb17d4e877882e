"""Batches: a pure function of (frames, seed, step), so training can stop and go on anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vla_ros.core import ACTION_DIM
from vla_ros.engine.config import ModelConfig
from vla_ros.engine.tokens import ActionTokens
from vla_ros.sim.goals import Family
from vla_ros.train.frames import Frames
from vla_ros.train.loss import patch_labels
from vla_ros.train.network import Layout
from vla_ros.train.wordings import wordings

_LIGHT = 0.1  # largest relative change of brightness and contrast
_GRAIN = 0.01  # standard deviation of pixel noise, of 1


@dataclass(frozen=True, slots=True)
class Batch:
    """``pixels`` [B, images, 3, s, s]; ``ids`` int64 [B, L] of ``layout``: a branch is the rest
    of a prompt and the action tokens but the last; ``rows`` int64 [B, K, 7] where they are
    predicted; ``tokens`` int64 [B, K, 7]; ``patches`` int64 [B, patches] labels of the auxiliary
    loss. The first branch is the sentence that was pursued."""

    layout: Layout
    pixels: torch.Tensor
    ids: torch.Tensor
    rows: torch.Tensor
    tokens: torch.Tensor
    patches: torch.Tensor


class Batches:
    """Draws batches of ``size`` from ``frames``; ``shift``: largest shift of an image, in pixels.

    Frames are drawn so that a family counts as the square root of its frames: reaching takes
    few steps and would otherwise hardly be seen. An image comes with ``branches`` sentences: the
    one that was pursued, and others, every family with the same chance.
    """

    def __init__(
        self,
        frames: Frames,
        config: ModelConfig,
        tokenize: Callable[[str], list[int]],
        size: int,
        branches: int,
        seed: int,
        shift: int,
        device: torch.device,
    ) -> None:
        self._frames, self._config, self._device = frames.to(device), config, device
        self._size, self._seed, self._shift = size, seed, shift
        self._branches = branches
        self._actions = ActionTokens(config.action_vocab, config.bins)
        tower = config.towers[0]
        self._mean = torch.tensor(tower.mean, device=device).view(3, 1, 1)
        self._std = torch.tensor(tower.std, device=device).view(3, 1, 1)
        self._chances = family_weights(frames)
        said = [[tokenize(text) for text in wordings(goal)] for goal in frames.goals]
        self._choices = torch.tensor([len(prompts) for prompts in said])
        self._first = self._choices.cumsum(0) - self._choices  # row of a goal's first prompt
        prompts = [prompt for of_goal in said for prompt in of_goal]
        self._common = common_prefix(prompts)
        rests = [torch.tensor(prompt[len(self._common) :]) for prompt in prompts]
        self._lengths = torch.tensor([len(rest) for rest in rests])
        self._rests = torch.nn.utils.rnn.pad_sequence(rests, batch_first=True)
        length = self._rests.shape[1] + ACTION_DIM - 1
        self._layout = Layout(config.patches + len(self._common), branches, length)
        self._tokens = encode(self._actions, frames.values).to(torch.int32)
        self._goal = frames.goal.cpu()
        self._others = goal_weights(frames)

    def batch(self, step: int) -> Batch:
        """The batch of ``step``; the same one on every call."""
        draw = torch.Generator().manual_seed(self._mixed(step))
        index = torch.multinomial(self._chances, self._size, replacement=True, generator=draw)
        goals = self._goals(index, draw)
        wording = torch.randint(1 << 30, goals.shape, generator=draw)
        span = 2 * self._shift + 1
        shift = torch.randint(span, (self._size, 2), generator=draw) - self._shift
        light = torch.rand(self._size, 2, generator=draw) * 2 - 1
        tokens = self._tokens[index[:, None], goals].long()
        ids, rows = self._sequences(goals, wording, tokens)
        there, moved = index.to(self._device), shift.to(self._device)
        pixels = self._pixels(there, moved, light.to(self._device), step)
        tower = self._config.towers[0]
        places = self._frames.pixels[there] - moved[:, None, None, [1, 0]]
        labels = patch_labels(places, tower.image_size // tower.patch, tower.patch)
        return Batch(self._layout, pixels, ids, rows, tokens.to(self._device), labels)

    def _mixed(self, step: int) -> int:
        """A seed of a step. torch's CPU generator reads 32 bits of it, so no simple shift does."""
        return int(np.random.SeedSequence([self._seed, step]).generate_state(1)[0])

    def _goals(self, index: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
        """Goals int64 [B, K]: the one pursued, then others without repetition."""
        own = self._goal[index][:, None]
        if self._branches == 1:
            return own
        chances = self._others.expand(len(index), -1).scatter(1, own, 0.0)
        others = torch.multinomial(chances, self._branches - 1, generator=draw)
        return torch.cat((own, others), 1)

    def _sequences(
        self, goals: torch.Tensor, wording: torch.Tensor, tokens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        which = self._first[goals] + wording % self._choices[goals]
        lengths = self._lengths[which][..., None]
        behind = torch.arange(ACTION_DIM)
        layout = self._layout
        branch = torch.zeros(*goals.shape, layout.length, dtype=torch.long)
        branch[..., : self._rests.shape[1]] = self._rests[which]
        branch.scatter_(2, lengths + behind[:-1], tokens[..., :-1])
        common = torch.tensor(self._common).expand(len(goals), -1)
        ids = torch.cat((common, branch.flatten(1)), 1)
        starts = layout.common + layout.length * torch.arange(layout.branches)[:, None]
        rows = starts + lengths - 1 + behind
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


def common_prefix(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that all prompts begin with; of a single prompt all but the last."""
    count = 0
    while all(len(p) > count + 1 and p[count] == prompts[0][count] for p in prompts):
        count += 1
    return list(prompts[0][:count])


def goal_weights(frames: Frames) -> torch.Tensor:
    """Chance of each goal to be a further sentence, float64 [G]: families count alike."""
    families = torch.tensor([list(Family).index(goal.family) for goal in frames.goals])
    return 1.0 / torch.bincount(families).double()[families]


def encode(actions: ActionTokens, values: torch.Tensor) -> torch.Tensor:
    """Values [...] in [-1, 1] -> the engine's tokens, int64 [...]."""
    flat = actions.encode(values.cpu().double().flatten().numpy())
    return torch.tensor(flat, dtype=torch.long).view(values.shape)


def family_weights(frames: Frames) -> torch.Tensor:
    """Chance of each frame to be drawn, float64 [N]."""
    families = list(Family)
    of_goal = torch.tensor([families.index(goal.family) for goal in frames.goals])
    family = of_goal[frames.goal.cpu()]
    counts = torch.bincount(family, minlength=len(families)).double()
    return counts.clamp(min=1).rsqrt()[family]
