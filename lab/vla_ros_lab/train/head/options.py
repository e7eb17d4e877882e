"""The recipe of a draft head: what changes what comes out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vla_ros.core.errors import UserError
from vla_ros.engine.decoding.draft_heads import LEVELS


@dataclass(frozen=True, slots=True)
class HeadOptions:
    """``fall``: a guess one token further on weighs so much less (EAGLE-3's .8). ``certain``: the
    share of the loss on the token that the target chose, the rest being on all that it thought
    possible. ``forgetful``: how often the last action is hidden, as in an episode's first frame.
    ``check_every`` steps the head drafts for the episodes held out; ``patience`` checks without a
    better one end the training. ``width`` None: what suits the target's. A batch is whole answers;
    ``unroll``: steps of its own that the head is trained over."""

    steps: int = 600
    batch: int = 16
    learning_rate: float = 1e-3
    warmup: int = 50
    weight_decay: float = 0.05
    clip: float = 0.5
    fall: float = 0.8
    certain: float = 0.5
    forgetful: float = 0.05
    width: int | None = None
    check_every: int = 100
    patience: int = 4
    seed: int = 0
    unroll: int = 5

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.check_every, self.patience) < 1:
            raise UserError("steps, batch, check_every and patience must be at least 1")
        if not 1 <= self.unroll <= LEVELS:
            raise UserError(f"unroll is {self.unroll}: give 1 to {LEVELS}")

    def rate(self, step: int) -> float:
        """Learning rate of a step: linear warm-up, then along a cosine to nothing."""
        fall = 0.5 + 0.5 * math.cos(math.pi * step / self.steps)
        return self.learning_rate * min(1.0, (step + 1) / self.warmup) * fall
