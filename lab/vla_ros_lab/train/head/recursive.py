"""Training a recursive draft head: unrolled steps on whole answers of the target.

EAGLE-3's "training-time test" (Li et al. 2025, section 3.2; its ``traineagle3``): from behind every
token the head drafts some tokens on, fed with its own states in place of the target's from the
second on, and attending to the target's up to where it began. Step i weighs ``fall`` ** i. The loss
is the cross entropy with the target's softmax over the bins, and for a share with the token that
was said, since only that one stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from vla_ros.engine.decoding.base import up_to
from vla_ros.engine.decoding.draft_heads import (
    LEVELS,
    RANKED,
    RecursiveConfig,
    RecursiveHead,
    heads_for,
    reachable,
    recursive_width,
)
from vla_ros.engine.decoding.draft_tree import Budget, plan_states
from vla_ros.engine.decoding.fast_drafter import FastDrafter
from vla_ros.engine.decoding.head_drafters import (
    Embed,
    expected_bins,
    expected_spelling,
    states_of,
)
from vla_ros.engine.decoding.temporal_prediction import TemporalPredictor
from vla_ros.engine.io.fast_tokens import FastTokens
from vla_ros.engine.io.tokens import ActionTokens
from vla_ros_lab.train.head.features import HeadEpisode
from vla_ros_lab.train.head.judge import Judge, JudgedHead, asked_at, ends_of
from vla_ros_lab.train.head.options import HeadOptions
from vla_ros_lab.train.head.target import Target, rounded
from vla_ros_lab.train.head.unrolled import unroll

PRIOR = 8.0  # frames that the chances of all steps' same dimension count for
BATCH = 16  # answers at once, where nothing is learned
CHECKED = 160  # frames that a head is chosen by


@dataclass(frozen=True, slots=True)
class HeadAnswers:
    """Answers of F frames, J = K - 2 positions each: ``tokens`` int64 [F, K], ``taps`` [F, J,
    layers * C], ``targets`` [F, J, bins] of the places 1 ... K - 2, and what was expected there,
    ``last`` and ``before`` int16 [F, J, LEVELS]: at [f, j, i] of place j + 1 + i by the tokens up
    to j. ``open`` bool [F, J]: the answer goes on behind position j."""

    tokens: torch.Tensor
    taps: torch.Tensor
    targets: torch.Tensor
    last: torch.Tensor
    before: torch.Tensor
    open: torch.Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, frames: torch.Tensor) -> HeadAnswers:
        """Some of them."""
        return HeadAnswers(*(getattr(self, name)[frames] for name in self.__slots__))


def answers_of(
    episodes: Sequence[HeadEpisode],
    actions: ActionTokens | FastTokens,
    steps: int,
    executed: int = 1,
) -> HeadAnswers:
    """Episodes as they would be drafted: each begins with nothing known."""
    count = episodes[0].tokens.shape[1]
    if isinstance(actions, FastTokens):
        told = [_spelled(episode, actions, executed) for episode in episodes]
    else:
        told = [_expected(episode, actions, steps) for episode in episodes]
    tokens = torch.cat([e.tokens for e in episodes])
    ends = ends_of(actions)
    return HeadAnswers(
        tokens,
        torch.cat([e.taps[:, : count - 2] for e in episodes]),
        torch.cat([e.targets[:, 1:-1] for e in episodes]),
        torch.cat([last for last, _ in told]),
        torch.cat([before for _, before in told]),
        (tokens[:, : count - 2] != (-1 if ends is None else ends)).cummin(1).values,
    )


def _spelled(
    episode: HeadEpisode, actions: FastTokens, executed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    count, rows = episode.tokens.shape[1], []
    expecting = FastDrafter(actions, torch.device("cpu"), Budget(), None, wide=True)
    for number, padded in enumerate(episode.tokens.tolist()):
        expecting.begin(asked_at(number, executed))
        own = up_to(padded, actions.end)
        known = range(1, count - 1)
        rows.append([
            expected_spelling(expecting, actions, own[:k] if k < len(own) else (), LEVELS)
            for k in known
        ])  # fmt: skip
        expecting.observe(own, own)
    last, before = torch.tensor(rows, dtype=torch.int16).unbind(2)
    return last, before


def _expected(
    episode: HeadEpisode, actions: ActionTokens, steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    count = episode.tokens.shape[1]
    expecting, rows = TemporalPredictor(count // steps, steps, actions.window), []
    for number, own in enumerate(episode.tokens.tolist()):
        expecting.begin(number)
        known = range(1, count - 1)
        rows.append([expected_bins(expecting, own[:k], LEVELS, actions) for k in known])
        expecting.observe(own)
    last, before = torch.tensor(rows, dtype=torch.int16).unbind(2)
    return last, before


class RecursivePupil:
    """A head while it learns: its batches, its loss, and how it would serve."""

    head: RecursiveHead

    def __init__(
        self,
        options: HeadOptions,
        target: Target,
        learn: Sequence[HeadEpisode],
        device: torch.device,
    ) -> None:
        actions, count = target.actions, learn[0].tokens.shape[1]
        width = options.width or recursive_width(target.hidden)
        dim = 1 if isinstance(actions, FastTokens) else count // target.steps
        config = RecursiveConfig(
            target.layers, target.hidden, count, dim, actions.bins, width,
            heads_for(width), actions.ordered,
        )  # fmt: skip
        self._options, self._target, self._device = options, target, device
        self._head = RecursiveHead(config)
        if target.rows is not None:
            with torch.no_grad():
                self._head.bins.weight.copy_(target.rows)
        self.head = self._head.to(device)
        self._learn = answers_of(learn, actions, target.steps, target.executed)
        self._checked: HeadAnswers | None = None  # of the episodes that choose, which stay the same

    def loss(self, draw: torch.Generator) -> torch.Tensor:
        options = self._options
        batch = self._learn.take(torch.randint(len(self._learn), (options.batch,), generator=draw))
        hidden = torch.rand(options.batch, generator=draw) < options.forgetful
        mask = hidden[:, None, None]
        batch = replace(
            batch, last=batch.last.masked_fill(mask, -1), before=batch.before.masked_fill(mask, -1)
        )
        return loss_of(self._head, batch, self._target, options, self._device)

    def served(self, episodes: Sequence[HeadEpisode]) -> tuple[RecursiveHead, JudgedHead]:
        """Chosen by the passes that the recursion expects: drafting all of them takes longer."""
        head, target = rounded(self._head), self._target
        if self._checked is None:
            found = answers_of(episodes, target.actions, target.steps, target.executed)
            spread = torch.linspace(0, len(found) - 1, min(CHECKED, len(found))).long()
            self._checked = found.take(spread)
        head.chances = count_chances(head, self._checked, target.embed, target.actions.first)
        return head, told_of(head.chances, self._checked)

    def judged(self, head: RecursiveHead, episodes: Sequence[HeadEpisode]) -> JudgedHead:
        target = self._target
        way = target.steps, target.executed
        counted = Judge(target.actions, episodes, target.embed, *way).head(head)
        others = answers_of(episodes, target.actions, *way)
        told = told_of(count_chances(head, others, target.embed, target.actions.first), others)
        if isinstance(target.actions, FastTokens):  # no answer is as long as it expects
            told = replace(told, expected=None)
        return replace(told, passes=counted.passes, accepted=counted.accepted)


def loss_of(
    head: RecursiveHead,
    batch: HeadAnswers,
    target: Target,
    options: HeadOptions,
    device: torch.device,
) -> torch.Tensor:
    """The mean over what is drafted, by its weights."""
    places = batch.taps.shape[1]
    bins = batch.tokens[:, 1:-1].to(device) - target.actions.first
    there = (bins >= 0) & (bins < target.actions.bins)
    thought = batch.targets.to(device).float()
    total = weights = torch.zeros((), device=device)
    for step, logits in enumerate(unrolled(head, batch, target.embed, options.unroll, device)):
        chances = logits.float().log_softmax(-1)
        said = F.nll_loss(chances.transpose(1, 2), bins.clamp(0, logits.shape[-1] - 1),
                          reduction="none")  # fmt: skip
        loss = options.certain * said - (1.0 - options.certain) * (thought * chances).sum(-1)
        weight = options.fall**step * there * (torch.arange(places, device=device) >= step)
        total = total + (loss * weight).sum()
        weights = weights + weight.sum()
    return total / weights


def unrolled(
    head: RecursiveHead,
    batch: HeadAnswers,
    embed: Embed,
    steps: int,
    device: torch.device,
    follow: int | None = None,
) -> list[torch.Tensor]:
    """Logits as :func:`unroll` gives them."""
    places = batch.taps.shape[1]
    tokens = batch.tokens[:, :places].to(device)
    last, before = batch.last.to(device).long(), batch.before.to(device).long()
    return unroll(head, batch.taps.to(device).float(), tokens, last, before, steps,
                         lambda t: embed(t).float(), follow)  # fmt: skip


def ranks_of(head: RecursiveHead, answers: HeadAnswers, embed: Embed, first: int) -> torch.Tensor:
    """Ranks of the target's tokens among the head's alternatives: int64 [F, places, LEVELS], at
    [f, s, l] with s + 1 tokens known on level l + 1, RANKED where it is none of them or there is no
    such level."""
    count, device = head.config.places, torch.device("cpu")
    found = torch.full((len(answers), count, LEVELS), RANKED)
    with torch.no_grad():
        for part in torch.arange(len(answers)).split(BATCH):
            batch = answers.take(part)
            own = batch.tokens[:, 1:-1] - first
            bins = own.clamp(0, head.config.bins - 1)
            steps = min(LEVELS, count)
            for level, logits in enumerate(unrolled(head, batch, embed, steps, device)):
                said = logits.gather(-1, bins[..., None])
                rank = (logits > said).sum(-1).clamp_max(RANKED).where(own == bins, RANKED)
                found[part, : count - level, level] = rank[:, level:]
    return found


def count_chances(
    head: RecursiveHead, answers: HeadAnswers, embed: Embed, first: int
) -> torch.Tensor:
    """How often the alternative of each rank was right: [places, LEVELS, RANKED], falling in the
    rank. States of the same dimension lend each other a little."""
    ranks = ranks_of(head, answers, embed, first)
    hits = F.one_hot(ranks, RANKED + 1)[..., :RANKED]
    hits = (hits * answers.open[:, :, None, None]).sum(0).float()
    counted = answers.open.sum(0)[:, None, None]  # answers that go on there
    places, dim = head.config.places, head.config.dim
    there = reachable(places)[:, :, None]
    pooled = torch.zeros_like(hits)
    for one in range(dim):
        same = slice(one, None, dim)
        rows = (there[same] * counted[same]).sum(0).clamp_min(1.0)
        pooled[same] = hits[same].sum(0) / rows
    chances = (hits + PRIOR * pooled) / (counted + PRIOR)
    return chances.cummin(-1).values * there


def told_of(chances: torch.Tensor, answers: HeadAnswers) -> JudgedHead:
    """Judgement by chances [places, LEVELS, RANKED] that were counted on answers: passes of
    the longest by the recursion, the prefill drafting nothing; and how often every level is right.
    """
    there = reachable(len(chances)) * answers.open.float().mean(0)[:, None]
    each = there.sum(0).clamp_min(1e-9)
    likely = chances * there[:, :, None]
    first = (likely[..., 0].sum(0) / each).tolist()
    four = (likely[..., :4].sum((0, 2)) / each).tolist()
    expected = plan_states([[], *states_of(chances.tolist())], Budget()).passes
    levels = int((there.sum(0) > 0).sum())
    return JudgedHead(expected, 0.0, expected, tuple(first[:levels]), tuple(four[:levels]))
