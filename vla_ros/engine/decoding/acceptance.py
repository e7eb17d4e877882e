"""Which draft tokens stand: given the target's logits behind every draft token.

``exact`` is greedy matching (the same tokens as without a draft); ``sampling`` is rejection
sampling (not the greedy tokens but, whatever the draft, the target's own distribution over the
action tokens; Leviathan et al. 2023, algorithm 1); ``relaxed`` keeps a draft within r bins of the
target's own choice (Spec-VLA), never for the gripper: it loses exactness and says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from vla_ros.engine.drafters.base import Draft
from vla_ros.engine.drafters.verdict import Verdict, follow
from vla_ros.engine.options import EngineOptions
from vla_ros.engine.packed.lane import Lane
from vla_ros.engine.packed.pack import PackLayout
from vla_ros.engine.tokens import ActionTokens

#: what a pass shows a rule: tensors of a row each for every place that was asked for
Seen = tuple[torch.Tensor, ...]


class Acceptance(ABC):
    """A rule: it runs a pass for what it must see of it, and says what that makes of a draft."""

    #: whether the tokens are those of greedy decoding, whatever the draft
    lossless: bool
    #: the tokens that are ever said; None: all of them
    window: range | None = None

    @abstractmethod
    def verify(
        self,
        lane: Lane,
        layout: PackLayout,
        prompt: torch.Tensor | None,
        tokens: torch.Tensor | None,
    ) -> Seen:
        """Run a pack of the target's, see ``Lane.run``; nothing is read from the device."""

    @abstractmethod
    def judge(self, seen: Seen, draft: Draft, start: int) -> Verdict:
        """What was seen at the places start ... start + d, against a draft of d >= 1 tokens.

        Of a tree: at its root and its d nodes, in order. Reads the device once.
        """

    @abstractmethod
    def plain(self, seen: Seen) -> tuple[torch.Tensor, torch.Tensor]:
        """Without a draft: the token [1] and its logit [1], on the device."""

    def newest(self, seen: Seen, verdict: Verdict) -> torch.Tensor | None:
        """The verdict's last token int64 [1] as it lies on the device, if it does."""
        return None

    def close(self, draft: int, own: int, position: int) -> bool:
        """Would this draft token stand, given the target's own choice?"""
        return draft == own

    def reach(self, position: int) -> int:
        """How many bins a draft token may be off and still stand."""
        return 0


class Greedy(Acceptance):
    """Judges against the target's argmax; what is close enough is ``close``'s business."""

    def verify(
        self,
        lane: Lane,
        layout: PackLayout,
        prompt: torch.Tensor | None,
        tokens: torch.Tensor | None,
    ) -> Seen:
        return lane.run(layout, prompt, tokens)

    def judge(self, seen: Seen, draft: Draft, start: int) -> Verdict:
        choices, maxima = seen
        finite = maxima.isfinite().all()[None].long()
        read = torch.cat((choices, draft.tokens, finite)).tolist()
        own, drafted = read[: len(choices)], read[len(choices) : -1]
        if draft.parents is not None:
            return follow(own, drafted, draft.parents, start, self.close, bool(read[-1]))
        accepted = 0
        while accepted < len(drafted) and self.close(
            drafted[accepted], own[accepted], start + accepted
        ):
            accepted += 1
        tokens = (*drafted[:accepted], own[accepted])
        kept = tuple(own[: accepted + 1])
        return Verdict(tokens, kept, tuple(drafted), accepted, bool(read[-1]))

    def newest(self, seen: Seen, verdict: Verdict) -> torch.Tensor | None:
        row = verdict.path[-1] + 1 if verdict.path else verdict.accepted
        return seen[0][row : row + 1]

    def plain(self, seen: Seen) -> tuple[torch.Tensor, torch.Tensor]:
        choice, maximum = seen
        return choice, maximum


class Exact(Greedy):
    """A draft token stands when it is the target's own choice."""

    lossless = True


class Relaxed(Greedy):
    """A draft token stands within ``bins`` bins of the target's own choice.

    The gripper, the last of every ``action_dim`` positions, must match: on a trained model the
    previous gripper is 255 bins off exactly when it matters.
    """

    lossless = False

    def __init__(self, actions: ActionTokens, bins: int, action_dim: int) -> None:
        self._actions, self._bins, self._dim = actions, bins, action_dim

    def close(self, draft: int, own: int, position: int) -> bool:
        if draft == own:
            return True
        both = self._actions.is_action(draft) and self._actions.is_action(own)
        return both and abs(draft - own) <= self.reach(position)

    def reach(self, position: int) -> int:
        return 0 if position % self._dim == self._dim - 1 else self._bins


class Sampling(Acceptance):
    """Rejection sampling at a temperature: the target's distribution, whatever the draft.

    Of a tree one token is drawn behind the root and every node, and the path is followed that
    these draws name: a child is taken with just the chance that the target says it.
    It is the distribution over the action tokens, given that one of them is said: no other token
    is ever drawn. Draws go on from one episode to the next.
    """

    lossless = False

    def __init__(
        self, actions: ActionTokens, temperature: float, seed: int, device: torch.device
    ) -> None:
        self.window, self._temperature = actions.window, temperature
        self._first = actions.first
        self._generator = torch.Generator(device).manual_seed(seed)

    def verify(
        self,
        lane: Lane,
        layout: PackLayout,
        prompt: torch.Tensor | None,
        tokens: torch.Tensor | None,
    ) -> Seen:
        return (lane.logits(layout, prompt, tokens),)

    def judge(self, seen: Seen, draft: Draft, start: int) -> Verdict:
        target, finite = self._distribution(seen)
        count = len(draft.tokens)
        if draft.parents is not None:
            read = torch.cat((self._draw(target), draft.tokens, finite[None].long())).tolist()
            own, drafted = read[: count + 1], read[count + 1 : -1]
            return follow(own, drafted, draft.parents, start, self.close, bool(read[-1]))
        stands, rest = self._reject(target[:count], draft)
        fresh = self._draw(torch.cat((rest, target[count:])))
        flags = torch.cat((stands.long(), finite[None].long()))
        read = torch.cat((fresh, draft.tokens, flags)).tolist()
        new, drafted = read[: count + 1], read[count + 1 : 2 * count + 1]
        standing = [bool(x) for x in read[2 * count + 1 : -1]]
        accepted = standing.index(False) if False in standing else count
        tokens = (*drafted[:accepted], new[accepted])
        return Verdict(tokens, tokens, tuple(drafted), accepted, bool(read[-1]))

    def plain(self, seen: Seen) -> tuple[torch.Tensor, torch.Tensor]:
        target, _ = self._distribution(seen)
        return self._draw(target), seen[0].amax(-1)

    def _distribution(self, seen: Seen) -> tuple[torch.Tensor, torch.Tensor]:
        """[R, bins] over the action tokens, and whether all logits were finite."""
        (logits,) = seen
        finite = logits.amax(-1).isfinite().all()
        scaled = logits.float() / self._temperature
        # A broken row would make multinomial raise before the caller can be told.
        return torch.where(finite, scaled, torch.zeros_like(scaled)).softmax(-1), finite

    def _draw(self, chances: torch.Tensor) -> torch.Tensor:
        return self._first + torch.multinomial(chances, 1, generator=self._generator)[:, 0]

    def _reject(self, target: torch.Tensor, draft: Draft) -> tuple[torch.Tensor, torch.Tensor]:
        """Accept with min(1, p/q); what is drawn instead follows max(0, p - q), normalised."""
        drawn = (draft.tokens - self._first)[:, None]
        p = target.gather(1, drawn)[:, 0]
        if draft.probabilities is None:  # a draft without a distribution is certain of itself
            q = torch.ones_like(p)
            rest = target.scatter(1, drawn, 0.0)
        else:
            q = draft.probabilities.gather(1, drawn)[:, 0]
            rest = (target - draft.probabilities).clamp_min(0.0)
        draw = torch.rand(p.shape, generator=self._generator, device=p.device)
        empty = rest.sum(-1, keepdim=True) <= 0  # p == q: never used, but multinomial looks
        return draw * q < p, torch.where(empty, target, rest)


def make_acceptance(
    options: EngineOptions, actions: ActionTokens, action_dim: int, device: torch.device
) -> Acceptance:
    """The rule that the options name."""
    if options.acceptance == "relaxed":
        return Relaxed(actions, options.relax_bins, action_dim)
    if options.acceptance == "sampling":
        return Sampling(actions, options.temperature, options.seed, device)
    return Exact()
