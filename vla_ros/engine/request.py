"""What goes into a schedule and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from vla_ros.core import Observation, Timeline
from vla_ros.engine.stages import StageTimer


@dataclass(slots=True)
class Request:
    """One frame to be answered.

    ``prompt`` is [n, C], vision included; ``pixels``, ``features`` and ``observation`` are
    there for a draft model and for heads; ``stages`` carries the request's own timeline
    through the pipeline.
    """

    stamp_ns: int
    prompt: torch.Tensor
    stages: StageTimer
    pixels: tuple[torch.Tensor, ...] = ()
    features: torch.Tensor | None = None
    observation: Observation | None = None


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
