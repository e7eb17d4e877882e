"""``encode(observation) -> prefix`` and ``integrate(prefix, ...) -> chunk``: two functions.

Every family of policies with an action head implements :class:`PrefixHead`, whether the head
takes N solver steps (pi0, pi0.5, SmolVLA) or a single pass (OpenVLA-OFT's L1 head). Chunks are
in *model space*: normalised, padded to the head's width; units come after.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

import torch

from vla_ros.core import Observation
from vla_ros.engine.stages import StageTimer


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a head reads of one observation.

    ``keys`` and ``values`` hold one [Hkv, P, d] per layer of the language model, ``mask`` bool
    [P] is False where a row is padding, ``state`` [S] is the robot's state in model space.
    They are views of the model's own buffers: the next ``encode`` writes over them, and
    ``integrate`` refuses a prefix whose ``serial`` is not the newest.
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    mask: torch.Tensor
    state: torch.Tensor
    serial: int


class Continuing(str, Enum):
    """How a chunk is made to continue the one before it."""

    IDENTITY = "identity"  # guided, with the Jacobian taken as the identity
    TRUE = "true"  # guided, by a vector-Jacobian product of the network
    TRAINED = "trained"  # the network takes the rows with weight 1 as given, without noise


@dataclass(frozen=True, slots=True)
class Guidance:
    """What of an earlier chunk the new one should continue (real-time chunking).

    ``previous`` [H, D] is the earlier chunk in model space, moved so that its first row is due
    at the same moment as the new chunk's first; ``weights`` [H] from 0 to 1 say how much each
    row counts; ``delay`` is the number of rows that will have been executed when the new chunk
    arrives; ``limit`` is the largest gain of the correction. Source: arXiv 2506.07339.
    """

    previous: torch.Tensor
    weights: torch.Tensor
    delay: int = 0
    limit: float = 5.0
    how: Continuing = Continuing.IDENTITY


P = TypeVar("P")


class PrefixHead(ABC, Generic[P]):
    """A family: ``instruct`` once a task, then ``encode`` and ``integrate`` once a chunk.

    ``horizon`` is H, the actions of a chunk, and ``width`` D, the values of one. One thread.
    """

    horizon: int
    width: int

    @abstractmethod
    def instruct(self, text: str) -> None:
        """Take on an instruction; ValueError where the model cannot (empty, too long)."""

    @abstractmethod
    def encode(self, observation: Observation, stages: StageTimer) -> P:
        """Everything that depends on the observation alone; marks preprocess, vision, prefill."""

    @abstractmethod
    def integrate(
        self,
        prefix: P,
        state: torch.Tensor | None = None,
        noise: torch.Tensor | None = None,
        guidance: Guidance | None = None,
    ) -> torch.Tensor:
        """A chunk [H, D] in model space.

        ``state`` [S] replaces the prefix's where the head itself reads the state (a state that
        was rolled ahead); families that put the state into the prefix raise ValueError for one.
        ``noise`` [H, D] is where the solver starts; single-pass heads take none.
        """
