"""Training of a draft head on a frozen target's rollouts, by the loss of :mod:`.recursive`.

It stops on the passes that the head saves on episodes held out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vla_ros.core.errors import UserError
from vla_ros.engine.decoding.draft_heads import RecursiveHead
from vla_ros_lab.train.head.features import HeadEpisode
from vla_ros_lab.train.head.judge import Judge, JudgedHead
from vla_ros_lab.train.head.options import HeadOptions
from vla_ros_lab.train.head.recursive import RecursivePupil
from vla_ros_lab.train.head.target import Target
from vla_ros_lab.train.loop import Entry, Loop, Losses
from vla_ros_lab.train.optimizer import adamw


@dataclass(frozen=True, slots=True)
class Step:
    """Progress: the loss after ``number`` steps, and the judgement where one was just made."""

    number: int
    loss: float
    judged: JudgedHead | None = None


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """The best head, its step, and passes an action on episodes that neither trained nor chose it:
    its own, and those of the tree of alternatives to the last action."""

    head: RecursiveHead
    step: int
    judged: JudgedHead
    temporal: JudgedHead


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
    pupil = RecursivePupil(options, target, learn, device)
    best: tuple[float, int, RecursiveHead] | None = None
    ended = False  # never before the first step: there is a head in any case

    def stepped(entry: Entry) -> None:
        nonlocal best, ended
        number = entry.step + 1
        if not (number % options.check_every == 0 or number == options.steps or stop()):
            report(Step(number, entry.loss))
            return
        served, judged = pupil.served(held_out[::2])
        report(Step(number, entry.loss, judged))
        if best is None or judged.passes < best[0]:
            best = judged.passes, number, served
        ended = stop() or number - best[1] >= options.patience * options.check_every

    optimizer = adamw(pupil.head, (0.9, 0.95), options.weight_decay)
    loop = Loop(pupil.head, optimizer, options, lambda _: Losses(pupil.loss(draw)))
    loop.run(options.steps, stepped, lambda: ended)
    assert best is not None
    others = held_out[1::2]
    last = Judge(target.actions, others, target.embed, target.steps, target.executed)
    return TrainedHead(best[2], best[1], pupil.judged(best[2], others), last.temporal())
