"""What a drafter is: it guesses the next tokens of an action before the target says them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vla_ros.engine.request import Request
from vla_ros.engine.trees.marginals import Offer


@dataclass(frozen=True, slots=True)
class Draft:
    """``tokens`` int64 [d] of the target's vocabulary, on the device, d may be 0.

    ``parents`` makes a tree of them: of every token the one that it follows, which stands before
    it, or -1 for the last token that is known; None: each follows the one before it.
    ``probabilities`` [d, bins] is the distribution over the action tokens, in the order of their
    ids, that each token was drawn from; None when the drafter has none (it is then taken to be
    certain; so it is of every tree). Where the target samples, all tokens are action tokens.
    """

    tokens: torch.Tensor
    probabilities: torch.Tensor | None = None
    parents: tuple[int, ...] | None = None


class Drafter(ABC):
    """Called in this order for every action: begin, (propose, judged, saw)*, observe."""

    passes = 0  # passes of a draft model since ``begin``
    layers: tuple[int, ...] = ()  # of the target whose outputs ``saw`` is to show

    def instruct(self, text: str) -> None:
        """A new instruction."""

    def prepare(self, request: Request, every: bool = False) -> None:
        """Run every shape of a draft model's passes once; as ``Schedule.prepare``."""

    def begin(self, request: Request) -> None:
        """A new frame."""

    @abstractmethod
    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        """At most ``limit`` tokens to follow ``prefix``, the action's tokens so far."""

    def judged(self, draft: Sequence[int], accepted: int) -> None:
        """What became of the last proposal."""

    def saw(self, taps: torch.Tensor, rows: Sequence[int]) -> None:
        """What the target thought: the outputs of ``layers`` [R, layers * C] in its last pass.

        ``rows`` of them are the tokens that stood, in order; the newest token was chosen in the
        last one. On the device; only where ``layers`` are wanted.
        """

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        """The finished action: what was said, and what the target itself chose."""

    def forget(self, damaged: bool = False) -> None:
        """Forget earlier actions: a new episode or instruction; see ``Schedule.forget``."""


class Offering(Drafter):
    """A drafter that names alternatives with their chances: what trees can be made of."""

    @abstractmethod
    def offer(self, prefix: Sequence[int]) -> Offer | None:
        """Of the open places behind ``prefix``; None where it has nothing to go by."""
