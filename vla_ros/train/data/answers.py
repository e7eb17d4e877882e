"""What a sentence is answered with: the tokens of an action, or of all actions of a chunk.

Of an action they are in the data. A chunk is worked out when it is drawn
(:mod:`vla_ros.train.data.ahead`), so it is known for every sentence, whoever acted in the frame.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from vla_ros.core import ACTION_DIM
from vla_ros.engine.tokens import ActionTokens
from vla_ros.errors import UserError
from vla_ros.train.data.ahead import futures
from vla_ros.train.data.frames import Frames


class Answers(ABC):
    """``count``: tokens of an answer."""

    count: int

    @abstractmethod
    def __call__(
        self, index: torch.Tensor, goals: torch.Tensor, draw: torch.Generator
    ) -> torch.Tensor:
        """Tokens int64 [B, K, count] for frames [B] and K goals of each [B, K]; on the CPU."""


class Actions(Answers):
    """What the expert would do now."""

    count = ACTION_DIM

    def __init__(self, frames: Frames, actions: ActionTokens) -> None:
        self._tokens = encode(actions, frames.values).to(torch.int32)

    def __call__(
        self, index: torch.Tensor, goals: torch.Tensor, draw: torch.Generator
    ) -> torch.Tensor:
        return self._tokens[index[:, None], goals].long()


class Chunks(Answers):
    """What it would do now and in the steps that follow: all of a step before the next step, as
    the engine decodes and OpenVLA-OFT orders a chunk. UserError: there are no poses."""

    def __init__(self, frames: Frames, actions: ActionTokens, chunk: int) -> None:
        refuse_unposed(frames)
        self._frames, self._actions, self._chunk = frames, actions, chunk
        self.count = chunk * ACTION_DIM

    def __call__(
        self, index: torch.Tensor, goals: torch.Tensor, draw: torch.Generator
    ) -> torch.Tensor:
        values = chunks_ahead(self._frames, index, goals, self._chunk, draw)
        return encode(self._actions, values).flatten(2)


def answers_of(frames: Frames, actions: ActionTokens, chunk: int) -> Answers:
    """Those that a policy of ``chunk`` actions learns."""
    return Actions(frames, actions) if chunk == 1 else Chunks(frames, actions, chunk)


def refuse_unposed(frames: Frames) -> None:
    """UserError where nobody can say what lies ahead of a frame."""
    if frames.info.own_sentence:
        raise UserError(
            "these chunks are worked out from where everything is, and a set from elsewhere does"
            " not say it: take --arch small or small-oft"
        )
    if not frames.posed:
        raise UserError(
            "chunks are trained on what lies ahead of a frame, and this data set has no poses:"
            " collect it anew with vla-ros collect"
        )


def chunks_ahead(
    frames: Frames, index: torch.Tensor, goals: torch.Tensor, horizon: int, draw: torch.Generator
) -> torch.Tensor:
    """Values (see units) float32 [B, K, horizon, 7] of the expert, for K goals of each frame.

    ``draw``: where the expert has two ways and nothing tells which, chance does.
    """
    flat = index[:, None].expand_as(goals).flatten()
    swing = None
    if frames.info.two_ways:
        swing = torch.randint(2, flat.shape, generator=draw).double().numpy() * 2 - 1
    values = futures(
        frames.poses[flat].numpy(),
        frames.before[flat].numpy(),
        [frames.goals[number] for number in goals.flatten().tolist()],
        np.array(frames.info.scale),
        horizon,
        swing,
    )
    return torch.from_numpy(values).view(*goals.shape, horizon, ACTION_DIM)


def encode(actions: ActionTokens, values: torch.Tensor) -> torch.Tensor:
    """Values [...] in [-1, 1] -> the engine's tokens, int64 [...]."""
    flat = actions.encode(values.cpu().double().flatten().numpy())
    return torch.tensor(flat, dtype=torch.long).view(values.shape)
