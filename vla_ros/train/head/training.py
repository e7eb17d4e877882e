"""Training a one-shot draft head on a frozen target's rollouts.

The loss is EAGLE-3's (Li et al. 2025): the cross entropy with the target's own distribution over
the action bins, weighed less the further ahead a token lies; a share of it with the token that was
said, since only that one stands. It stops on the passes that the head saves on episodes held out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vla_ros.engine.draft_heads import HeadConfig, OneShotHead
from vla_ros.engine.drafters.head import Embed
from vla_ros.engine.tokens import ActionTokens
from vla_ros.errors import UserError
from vla_ros.train.head.examples import Batch, Examples
from vla_ros.train.head.features import Episode
from vla_ros.train.head.judge import Judge, Judged, count_chances
from vla_ros.train.head.options import HeadOptions


@dataclass(frozen=True, slots=True)
class Step:
    """Progress: the loss after ``number`` steps, and the judgement where one was just made."""

    number: int
    loss: float
    judged: Judged | None = None


@dataclass(frozen=True, slots=True)
class Trained:
    """The best head, the step it is of, and passes an action on episodes that neither trained nor
    chose it: its own, and those of the tree of alternatives to the last action."""

    head: OneShotHead
    step: int
    judged: Judged
    temporal: Judged


@dataclass(frozen=True, slots=True)
class Target:
    """The frozen target as a head sees it."""

    actions: ActionTokens
    embed: Embed
    layers: tuple[int, ...]
    hidden: int
    width: int


def train_head(
    options: HeadOptions,
    target: Target,
    learn: Sequence[Episode],
    held_out: Sequence[Episode],
    device: torch.device,
    report: Callable[[Step], None],
    stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train until it gets no better, the steps are over or ``stop``. Every other episode held out
    chooses the head and counts its chances, the rest judges it. UserError: too few of them."""
    if not learn or len(held_out) < 2:
        raise UserError("a draft head needs rollouts to learn from and two at least to judge by")
    torch.manual_seed(options.seed)
    draw = torch.Generator().manual_seed(options.seed)
    actions, count = target.actions, learn[0].tokens.shape[1]
    if count < 3:
        raise UserError(f"actions of {count} tokens leave a draft head nothing to guess")
    width = options.width or target.width
    config = HeadConfig(
        target.layers, target.hidden, count, actions.bins, width, options.blocks, actions.ordered
    )
    head = OneShotHead(config).to(device)
    optimiser = torch.optim.AdamW(
        head.parameters(), betas=(0.9, 0.95), weight_decay=options.weight_decay
    )
    examples = Examples(learn, actions.first, actions.bins)
    choose = Judge(actions, held_out[::2], target.embed)
    best: tuple[float, int, OneShotHead] | None = None
    for step in range(options.steps):
        for group in optimiser.param_groups:
            group["lr"] = options.rate(step)
        batch = examples.batch(options.batch, options.fall, options.forgetful, draw)
        loss = loss_of(head, batch, target.embed, options.certain, device)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), options.clip)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        due = (step + 1) % options.check_every == 0 or step + 1 == options.steps
        if not (due or stop()):
            report(Step(step + 1, loss.item()))
            continue
        judged = _judge(head, choose)
        report(Step(step + 1, loss.item(), judged[0]))
        if best is None or judged[0].passes < best[0]:
            best = judged[0].passes, step + 1, judged[1]
        if stop() or step + 1 - best[1] >= options.patience * options.check_every:
            break
    assert best is not None
    last = Judge(actions, held_out[1::2], target.embed)
    return Trained(best[2], best[1], last.head(best[2]), last.temporal())


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


def _judge(head: OneShotHead, judge: Judge) -> tuple[Judged, OneShotHead]:
    """A head as it would serve: rounded as it is stored, its chances counted; on the CPU."""
    served = copy.deepcopy(head).cpu().requires_grad_(False).eval()
    for parameter in served.parameters():
        parameter.copy_(parameter.bfloat16())
    served.chances = count_chances(served, judge.episodes, judge.embed, judge.actions.first)
    return judge.head(served), served
