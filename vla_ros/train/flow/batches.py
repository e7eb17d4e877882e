"""Batches for a flow policy: an image, sentences, and the expert's next H actions for each.

The chunks are :mod:`vla_ros.train.data.ahead`'s, so every frame has a whole one for every
sentence, whoever acted in it. The same draws at every call, as in
:mod:`vla_ros.train.data.batches`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from vla_ros.engine.flow.config import FlowConfig
from vla_ros.train.data.answers import chunks_ahead, refuse_unposed
from vla_ros.train.data.batches import family_weights, goal_weights, things_of, word_places
from vla_ros.train.data.frames import Frames
from vla_ros.train.data.pictures import Pictures, mixed
from vla_ros.train.data.places import NOWHERE, places_of
from vla_ros.train.data.shards import BODIES
from vla_ros.train.data.wordings import wordings
from vla_ros.train.flow.scaling import Scaling, states_of

LONGEST_GIVEN = 8  # actions that a chunk may take as given (arXiv 2512.05964: 0 to 10)
_GIVEN = 0.5  # share of samples that take some


@dataclass(frozen=True, slots=True)
class FlowBatch:
    """B images, K sentences each, n samples a sentence; values in model space.

    ``pixels`` [B, cameras, 3, s, s]; ``ids`` int64 [B, K, L] and ``lengths`` [B, K]; ``state``
    [B, S]; ``actions`` [B, K, H, D]; ``noise`` [B, K, n, H, D]; ``time`` [B, K, n], 1 is noise;
    ``given`` bool [B, K, n, H]: rows without noise. Auxiliary: ``patches``, ``places``, ``words``
    as in :class:`vla_ros.train.data.batches.Batch`, the words' places among ``ids``; ``spots``
    [B, K, 2, 3] in m, where those things are, NaN for none.
    """

    pixels: torch.Tensor
    ids: torch.Tensor
    lengths: torch.Tensor
    state: torch.Tensor
    actions: torch.Tensor
    noise: torch.Tensor
    time: torch.Tensor
    given: torch.Tensor
    patches: torch.Tensor
    places: torch.Tensor
    words: torch.Tensor
    spots: torch.Tensor


class FlowBatches:
    """Draws batches of ``size`` images with ``sentences`` and ``samples`` each.

    UserError: the data were collected without poses.
    """

    def __init__(
        self,
        frames: Frames,
        config: FlowConfig,
        tokenize: Callable[[str], list[int]],
        scaling: Scaling,
        size: int,
        sentences: int,
        samples: int,
        seed: int,
        shift: int,
        device: torch.device,
    ) -> None:
        refuse_unposed(frames)
        self._frames, self._config, self._device = frames.to(device), config, device
        self._size, self._sentences, self._samples, self._seed = size, sentences, samples, seed
        self._pictures = Pictures(self._frames, config.shapes.vision, seed, shift, device)
        self._chances, self._others = family_weights(frames), goal_weights(frames)
        said = [[tokenize(text) for text in wordings(goal)] for goal in frames.goals]
        self._choices = torch.tensor([len(prompts) for prompts in said])
        self._first = self._choices.cumsum(0) - self._choices
        prompts = [torch.tensor(prompt) for of_goal in said for prompt in of_goal]
        self._lengths = torch.tensor([len(prompt) for prompt in prompts])
        self._prompts = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True)
        words = [one for goal in frames.goals for one in word_places(goal, tokenize)]
        self._words = torch.tensor(words)
        things = [things_of(goal, frames.info.objects) for goal in frames.goals]
        self._things, self._goal = torch.tensor(things), frames.goal.cpu()
        self._shows = frames.shows[:, 0].cpu()
        self._scaling, self._states = scaling, scaling.state.normalise(states_of(frames))

    def batch(self, step: int) -> FlowBatch:
        """The batch of ``step``; the same one on every call."""
        draw = torch.Generator().manual_seed(mixed(self._seed, step))
        index = torch.multinomial(self._chances, self._size, replacement=True, generator=draw)
        goals = self._goals(index, draw)
        wording = torch.randint(1 << 30, goals.shape, generator=draw)
        drawn = self._pictures(self._shows[index], draw, step)
        which = self._first[goals] + wording % self._choices[goals]
        horizon, width = self._config.horizon, self._config.action_width
        shape = (*goals.shape, self._samples)
        noise = torch.randn(*shape, horizon, width, generator=draw)
        # Source: openpi, Beta(1.5, 1): more often near noise, where most is decided.
        time = torch.rand(shape, generator=draw) ** (1 / 1.5) * 0.999 + 0.001
        count = torch.randint(1, LONGEST_GIVEN + 1, shape, generator=draw)
        count = count.clamp(max=horizon - 1) * (torch.rand(shape, generator=draw) < _GIVEN)
        given = torch.arange(horizon) < count[..., None]
        side, patch = self._pictures.side, self._pictures.patch
        things = self._things[goals].to(self._device)
        places = places_of(drawn.centres[:, 0], things, side, patch)
        there = self._device
        return FlowBatch(
            pixels=drawn.pixels,
            ids=self._prompts[which].to(there),
            lengths=self._lengths[which].to(there),
            state=self._states[index].to(there),
            actions=self._ahead(index, goals, draw).to(there),
            noise=noise.to(there),
            time=time.to(there),
            given=given.to(there),
            patches=drawn.patches,
            places=places,
            words=self._words[which].to(there),
            spots=self._spots(index, goals).to(there),
        )

    def _goals(self, index: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
        """Goals int64 [B, K]: the one pursued, then others without repetition."""
        own = self._goal[index][:, None]
        if self._sentences == 1:
            return own
        chances = self._others.expand(len(index), -1).scatter(1, own, 0.0)
        others = torch.multinomial(chances, self._sentences - 1, generator=draw)
        return torch.cat((own, others), 1)

    def _spots(self, index: torch.Tensor, goals: torch.Tensor) -> torch.Tensor:
        """Where the things of each sentence are [B, K, 2, 3], m."""
        things = self._things[goals]
        number = torch.tensor([BODIES.index(name) for name in self._frames.info.objects])
        spots = self._frames.poses[index[:, None, None], number[things.clamp(min=0)], :3]
        return spots.masked_fill((things == NOWHERE)[..., None], float("nan"))

    def _ahead(
        self, index: torch.Tensor, goals: torch.Tensor, draw: torch.Generator
    ) -> torch.Tensor:
        """Chunks [B, K, H, D] in model space."""
        values = chunks_ahead(self._frames, index, goals, self._config.horizon, draw)
        return self._scaling.of_values(values, self._frames.info.scale)
