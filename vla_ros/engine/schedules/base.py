"""What a schedule is: it builds packs out of requests and turns logits into tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch

from vla_ros.core import Timeline
from vla_ros.engine.model import VLAModel
from vla_ros.engine.stages import StageTimer


@dataclass(slots=True)
class Request:
    """One frame to be answered.

    ``prompt`` is [n, C], vision included; ``pixels`` and ``features`` are there for a draft
    model; ``stages`` carries the request's own timeline through the pipeline.
    """

    stamp_ns: int
    prompt: torch.Tensor
    stages: StageTimer
    pixels: tuple[torch.Tensor, ...] = ()
    features: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a schedule says about one request.

    ``tokens`` are the K action tokens; ``actions`` [C, A] in [-1, 1] only where a head made
    them without tokens. ``finite`` is False when a logit was not. ``accepted`` of ``drafted``
    are counts per position. ``own`` are the target's own choices where acceptance is lossy.
    """

    stamp_ns: int
    timeline: Timeline
    tokens: tuple[int, ...]
    finite: bool = True
    target_passes: int = 0
    draft_passes: int = 0
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    own: tuple[int, ...] = ()
    actions: torch.Tensor | None = None


@dataclass(slots=True)
class Reading:
    """Greedy choices that are still on the device; ``read`` is the one host sync."""

    values: list[torch.Tensor] = field(default_factory=list)
    tokens: list[torch.Tensor] = field(default_factory=list)

    def add(self, logits: torch.Tensor) -> torch.Tensor:
        """Greedy tokens [R] of logits [R, V], kept for the reading."""
        values, tokens = logits.max(dim=-1)
        self.values.append(values)
        self.tokens.append(tokens)
        return tokens

    def read(self) -> tuple[list[int], bool]:
        """The tokens, and whether all logits were finite (max lets NaN and +inf through)."""
        finite = torch.cat(self.values).isfinite().all()
        packed = torch.cat((*self.tokens, finite[None].long())).tolist()
        return packed[:-1], bool(packed[-1])


class Schedule(ABC):
    """One way of filling packs. Called by one thread."""

    #: whether its tokens are those of greedy decoding, whatever the input
    lossless: bool = True

    def __init__(self, model: VLAModel, tokens: int, max_prompt: int) -> None:
        self.model, self.count, self.max_prompt = model, tokens, max_prompt

    @property
    def depth(self) -> int:
        """Calls of step() from a request to its answer."""
        return 1

    @abstractmethod
    def step(self, request: Request) -> Decoded | None:
        """Take one request in; give the answer that is ready, or None while a pipeline fills."""

    def reset(self) -> None:
        """Forget everything about earlier requests."""

    def sanitise(self) -> None:
        """Reset after non-finite values: what they touched must not be read again."""
        self.reset()
