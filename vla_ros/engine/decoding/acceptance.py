"""Acceptance: which draft tokens stand, given the target's logits behind every draft token.

``exact`` is greedy matching: the same tokens as without a draft. ``sampling`` is rejection
sampling: not the greedy tokens but, whatever the draft, the target's own distribution over the
action tokens (Leviathan et al. 2023, algorithm 1). ``relaxed`` accepts a draft token within r bins
of the target's own choice, never for the gripper (Spec-VLA): it is not lossless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vla_ros.engine.decoding.draft_tree import ROOT, children
from vla_ros.engine.decoding.drafters import Draft
from vla_ros.engine.io.tokens import ActionTokens
from vla_ros.engine.layers.devices import downloaded
from vla_ros.engine.layers.pack import PackLayout
from vla_ros.engine.layers.runner import CHOICES, LOGITS, DecoderRunner
from vla_ros.engine.options import EngineOptions

#: is this draft token accepted, given the target's own choice, at this position?
Matches = Callable[[int, int, int], bool]


@dataclass(frozen=True, slots=True)
class Verification:
    """Outcome of a verification: what it adds to the action.

    ``tokens`` are the accepted draft tokens and then one of the target's; ``own`` the target's
    choices at the same places; ``draft`` the whole draft, of which ``accepted`` are. Of a tree
    ``draft`` is the accepted path and, where it could have gone on, the first child there; ``path``
    names the nodes of the path.
    """

    tokens: tuple[int, ...]
    own: tuple[int, ...]
    draft: tuple[int, ...]
    accepted: int
    finite: bool
    path: tuple[int, ...] = ()


def follow(
    own: Sequence[int],
    drafted: Sequence[int],
    parents: Sequence[int],
    start: int,
    matches: Matches,
    finite: bool,
) -> Verification:
    """The verification of a draft tree whose first level drafts the position ``start``.

    ``own`` [d + 1] are the target's choices behind the root and every node. From the root down,
    of the children that match the target's own choice is followed first, then the nearest.
    """
    below, path, node = children(parents), list[int](), ROOT
    while True:
        wanted, position = own[node + 1], start + len(path)
        offered = below.get(node, [])
        matching = [child for child in offered if matches(drafted[child], wanted, position)]
        if not matching:
            break
        node = min(matching, key=lambda child: abs(drafted[child] - wanted))
        path.append(node)
    accepted = [drafted[step] for step in path]
    return Verification(
        tokens=(*accepted, wanted),
        own=tuple(own[step + 1] for step in (ROOT, *path)),
        draft=(*accepted, *(drafted[child] for child in offered[:1])),
        accepted=len(path),
        finite=finite,
        path=tuple(path),
    )


#: what a rule reads of a pass: tensors with a row for every place that was asked for
Scores = tuple[torch.Tensor, ...]


class Acceptance:
    """A rule of acceptance: runs the pass that verifies a draft, and compares the two.

    As it is here, greedy: a draft token is compared with the target's argmax by ``matches``.
    """

    #: whether the tokens are those of greedy decoding, whatever the draft
    lossless: bool
    #: the only tokens that are ever chosen; None: all of them
    window: range | None = None
    #: what it reads of a pass, see :class:`~vla_ros.engine.layers.runner.PackPass`
    reads: str = CHOICES

    def verify(
        self,
        runner: DecoderRunner,
        layout: PackLayout,
        prompt: torch.Tensor | None,
        tokens: torch.Tensor | None,
    ) -> Scores:
        """Run a pack of the target's, as ``DecoderRunner.run``; the device is not read."""
        return runner.run(layout, prompt, tokens)

    def accept(self, scores: Scores, draft: Draft, start: int) -> Verification:
        """Scores of the positions start ... start + d against a draft of d >= 1 tokens.

        Of a tree: at its root and its d nodes, in order. Reads the device once.
        """
        choices, maxima = scores
        finite = maxima.isfinite().all()[None].long()
        read = downloaded(torch.cat((choices, draft.tokens, finite))).tolist()
        own, drafted = read[: len(choices)], read[len(choices) : -1]
        if draft.parents is not None:
            return follow(own, drafted, draft.parents, start, self.matches, bool(read[-1]))
        accepted = 0
        while accepted < len(drafted) and self.matches(
            drafted[accepted], own[accepted], start + accepted
        ):
            accepted += 1
        tokens = (*drafted[:accepted], own[accepted])
        kept = tuple(own[: accepted + 1])
        return Verification(tokens, kept, tuple(drafted), accepted, bool(read[-1]))

    def plain(self, scores: Scores) -> tuple[torch.Tensor, torch.Tensor]:
        """Without a draft: the token [1] and its logit [1], on the device."""
        choice, maximum = scores
        return choice, maximum

    def newest(self, scores: Scores, result: Verification) -> torch.Tensor | None:
        """The last token int64 [1] as it lies on the device, if it does."""
        row = result.path[-1] + 1 if result.path else result.accepted
        return scores[0][row : row + 1]

    def matches(self, draft: int, own: int, position: int) -> bool:
        """Is this draft token accepted, given the target's own choice?"""
        return draft == own

    def tolerance(self, position: int) -> int:
        """How many bins a draft token may be off and still be accepted."""
        return 0


class Exact(Acceptance):
    """A draft token is accepted when it is the target's own choice."""

    lossless = True


class Relaxed(Acceptance):
    """A draft token is accepted within ``bins`` bins of the target's own choice.

    The gripper, the last of every ``action_dim`` positions, must match: on a trained model the
    previous gripper is 255 bins off exactly when it matters.
    """

    lossless = False

    def __init__(self, actions: ActionTokens, bins: int, action_dim: int) -> None:
        self._actions, self._bins, self._dim = actions, bins, action_dim

    def matches(self, draft: int, own: int, position: int) -> bool:
        if draft == own:
            return True
        both = self._actions.is_action(draft) and self._actions.is_action(own)
        return both and abs(draft - own) <= self.tolerance(position)

    def tolerance(self, position: int) -> int:
        return 0 if position % self._dim == self._dim - 1 else self._bins


class Sampling(Acceptance):
    """Rejection sampling at a temperature: the target's distribution, whatever the draft.

    Of a tree one token is drawn behind the root and every node, and the path is followed that
    these draws name: a child is taken with just its chance in the target.
    It is the distribution over the action tokens, given that it is one of them: no other token is
    ever drawn. Draws go on from one episode to the next.
    """

    lossless = False
    reads = LOGITS

    def __init__(
        self, actions: ActionTokens, temperature: float, seed: int, device: torch.device
    ) -> None:
        self.window, self._temperature = actions.window, temperature
        self._first = actions.first
        self._generator = torch.Generator(device).manual_seed(seed)

    def verify(
        self,
        runner: DecoderRunner,
        layout: PackLayout,
        prompt: torch.Tensor | None,
        tokens: torch.Tensor | None,
    ) -> Scores:
        return (runner.logits(layout, prompt, tokens),)

    def accept(self, scores: Scores, draft: Draft, start: int) -> Verification:
        target, finite = self._distribution(scores)
        count = len(draft.tokens)
        if draft.parents is not None:
            drawn = torch.cat((self._draw(target), draft.tokens, finite[None].long()))
            read = downloaded(drawn).tolist()
            own, drafted = read[: count + 1], read[count + 1 : -1]
            return follow(own, drafted, draft.parents, start, self.matches, bool(read[-1]))
        stands, rest = self._reject(target[:count], draft)
        fresh = self._draw(torch.cat((rest, target[count:])))
        flags = torch.cat((stands.long(), finite[None].long()))
        read = downloaded(torch.cat((fresh, draft.tokens, flags))).tolist()
        new, drafted = read[: count + 1], read[count + 1 : 2 * count + 1]
        standing = [bool(x) for x in read[2 * count + 1 : -1]]
        accepted = standing.index(False) if False in standing else count
        tokens = (*drafted[:accepted], new[accepted])
        return Verification(tokens, tokens, tuple(drafted), accepted, bool(read[-1]))

    def plain(self, scores: Scores) -> tuple[torch.Tensor, torch.Tensor]:
        target, _ = self._distribution(scores)
        return self._draw(target), scores[0].amax(-1)

    def newest(self, scores: Scores, result: Verification) -> torch.Tensor | None:
        return None

    def _distribution(self, scores: Scores) -> tuple[torch.Tensor, torch.Tensor]:
        """[R, bins] over the action tokens, and whether all logits were finite."""
        (logits,) = scores
        finite = logits.amax(-1).isfinite().all()
        scaled = logits.float() / self._temperature
        # A broken row would make multinomial raise before the caller can be told.
        return torch.where(finite, scaled, torch.zeros_like(scaled)).softmax(-1), finite

    def _draw(self, chances: torch.Tensor) -> torch.Tensor:
        return self._first + torch.multinomial(chances, 1, generator=self._generator)[:, 0]

    def _reject(self, target: torch.Tensor, draft: Draft) -> tuple[torch.Tensor, torch.Tensor]:
        """Accept with min(1, p/q); what is drawn instead follows max(0, p - q), normalized."""
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
        return Relaxed(actions, options.relaxed_distance, action_dim)
    if options.acceptance == "sampling":
        return Sampling(actions, options.temperature, options.seed, device)
    return Exact()
