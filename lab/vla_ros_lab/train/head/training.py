"""Training a draft head on a frozen target's rollouts; the recursive one's part: :mod:`.recursive`.

The loss is EAGLE-3's (Li et al. 2025): the cross entropy with the target's own distribution over
the action bins, weighed less the further ahead a token lies; a share of it with the token that was
said, since only that one stands. It stops on the passes that the head saves on episodes held out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from vla_ros.core.errors import UserError
from vla_ros.engine.decoding.draft_head_folder import DraftHead
from vla_ros.engine.decoding.draft_heads import HeadConfig, OneShotHead, one_shot_width
from vla_ros.engine.decoding.head_drafters import Embed
from vla_ros_lab.train.head.examples import Batch, Examples
from vla_ros_lab.train.head.features import HeadEpisode
from vla_ros_lab.train.head.judge import Judge, JudgedHead, count_chances
from vla_ros_lab.train.head.options import HeadOptions
from vla_ros_lab.train.head.recursive import RecursivePupil
from vla_ros_lab.train.head.target import Target, rounded


@dataclass(frozen=True, slots=True)
class Step:
    """Progress: the loss after ``number`` steps, and the judgement where one was just made."""

    number: int
    loss: float
    judged: JudgedHead | None = None


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """The best head, the step it is of, and passes an action on episodes that neither trained nor
    chose it: its own, and those of the tree of alternatives to the last action."""

    head: DraftHead
    step: int
    judged: JudgedHead
    temporal: JudgedHead


class HeadInTraining(Protocol):
    """A head while it learns."""

    head: DraftHead

    def loss(self, draw: torch.Generator) -> torch.Tensor:
        """Of a batch that is drawn."""
        ...

    def served(self, episodes: Sequence[HeadEpisode]) -> tuple[DraftHead, JudgedHead]:
        """As it would serve, its chances counted on episodes; and how it does on them."""
        ...

    def judged(self, head: DraftHead, episodes: Sequence[HeadEpisode]) -> JudgedHead:
        """How a head does on episodes that its chances were not counted on."""
        ...


def train_head(
    options: HeadOptions,
    target: Target,
    learn: Sequence[HeadEpisode],
    held_out: Sequence[HeadEpisode],
    device: torch.device,
    report: Callable[[Step], None],
    stop: Callable[[], bool] = lambda: False,
) -> TrainedHead:
    """Train until it gets no better, the steps are over or ``stop``. Every other episode held out
    chooses the head and counts its chances, the rest judges it. UserError: too few of them."""
    if not learn or len(held_out) < 2:
        raise UserError("a draft head needs rollouts to learn from and two at least to judge by")
    torch.manual_seed(options.seed)
    draw = torch.Generator().manual_seed(options.seed)
    if learn[0].tokens.shape[1] < 3:
        raise UserError(
            f"actions of {learn[0].tokens.shape[1]} tokens leave a draft head nothing to guess"
        )
    make = RecursivePupil if options.recursive else OneShotPupil
    pupil: HeadInTraining = make(options, target, learn, device)
    optimizer = torch.optim.AdamW(
        pupil.head.parameters(), betas=(0.9, 0.95), weight_decay=options.weight_decay
    )
    best: tuple[float, int, DraftHead] | None = None
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = options.rate(step)
        loss = pupil.loss(draw)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(pupil.head.parameters(), options.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        due = (step + 1) % options.check_every == 0 or step + 1 == options.steps
        if not (due or stop()):
            report(Step(step + 1, loss.item()))
            continue
        served, judged = pupil.served(held_out[::2])
        report(Step(step + 1, loss.item(), judged))
        if best is None or judged.passes < best[0]:
            best = judged.passes, step + 1, served
        if stop() or step + 1 - best[1] >= options.patience * options.check_every:
            break
    assert best is not None
    others = held_out[1::2]
    last = Judge(target.actions, others, target.embed, target.steps, target.executed)
    return TrainedHead(best[2], best[1], pupil.judged(best[2], others), last.temporal())


class OneShotPupil:
    """Of frames with any number of tokens known."""

    head: DraftHead

    def __init__(
        self,
        options: HeadOptions,
        target: Target,
        learn: Sequence[HeadEpisode],
        device: torch.device,
    ) -> None:
        actions, count = target.actions, learn[0].tokens.shape[1]
        config = HeadConfig(
            target.layers, target.hidden, count, actions.bins,
            options.width or one_shot_width(target.hidden), options.blocks, actions.ordered,
        )  # fmt: skip
        self._options, self._target, self._device = options, target, device
        self._head = OneShotHead(config).to(device)
        self.head = self._head
        self._examples = Examples(learn, actions.first, actions.bins)

    def loss(self, draw: torch.Generator) -> torch.Tensor:
        options = self._options
        batch = self._examples.batch(options.batch, options.fall, options.forgetful, draw)
        return loss_of(self._head, batch, self._target.embed, options.certain, self._device)

    def served(self, episodes: Sequence[HeadEpisode]) -> tuple[DraftHead, JudgedHead]:
        head, target = rounded(self._head), self._target
        head.chances = count_chances(head, episodes, target.embed, target.actions.first)
        return head, self.judged(head, episodes)

    def judged(self, head: DraftHead, episodes: Sequence[HeadEpisode]) -> JudgedHead:
        return Judge(self._target.actions, episodes, self._target.embed).head(head)


def loss_of(
    head: OneShotHead, batch: Batch, embed: Embed, certain: float, device: torch.device
) -> torch.Tensor:
    """The mean over the tokens ahead, by their weights."""
    newest = embed(batch.newest.to(device)).float()
    logits = head(batch.taps.to(device).float(), newest, batch.past.to(device))
    chances = logits.log_softmax(-1)
    said = F.nll_loss(
        chances.flatten(0, 1), batch.bins.to(device).flatten().clamp_min(0), reduction="none"
    )
    thought = -(batch.targets.to(device).float() * chances).sum(-1)
    loss = certain * said.view_as(thought) + (1.0 - certain) * thought
    weights = batch.weights.to(device)
    return (loss * weights).sum() / weights.sum()
