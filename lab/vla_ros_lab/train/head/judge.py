"""Judge of a draft head: its drafts against a target's recorded tokens.

Speculation that is exact gives the target's tokens whatever is drafted, so the recorded tokens and
taps are those that any drafter would have met. The drafter that serves is asked frame by frame,
and the passes counted: the accepted length online, not the accuracy on a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Executing, Observation, Timeline
from vla_ros.engine.decoding.acceptance import follow
from vla_ros.engine.decoding.base import up_to
from vla_ros.engine.decoding.draft_heads import RecursiveHead
from vla_ros.engine.decoding.draft_tree import Budget
from vla_ros.engine.decoding.drafters import Drafter, TemporalTreeDrafter
from vla_ros.engine.decoding.fast_drafter import FastDrafter
from vla_ros.engine.decoding.head_drafters import Embed, FastHeadDrafter, RecursiveDrafter
from vla_ros.engine.io.fast_tokens import FastTokens
from vla_ros.engine.io.tokens import ActionTokens
from vla_ros.engine.layers.request import Request, StageTimer
from vla_ros_lab.train.head.features import HeadEpisode


@dataclass(frozen=True, slots=True)
class JudgedHead:
    """``passes`` an action, ``accepted`` draft tokens a pass with a draft behind a token.

    Of a head also what the recursion E[s] expects by its chances there, with nothing drafted
    behind the prompt, and of every level how often its likeliest token is right, and one of its
    four likeliest, given that all before it were."""

    passes: float
    accepted: float
    expected: float | None = None
    first: tuple[float, ...] = ()
    four: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Judge:
    """Counts the passes of drafters over the same episodes, on the CPU, with whole trees."""

    actions: ActionTokens | FastTokens
    episodes: Sequence[HeadEpisode]
    embed: Embed
    steps: int = 1  # actions of an answer
    executed: int = 1  # of FAST tokens: actions between two frames

    def head(self, head: RecursiveHead) -> JudgedHead:
        """Passes with a head, which must have its ``chances``."""
        device, budget = torch.device("cpu"), Budget()
        drafter: Drafter
        if isinstance(self.actions, FastTokens):
            drafter = FastHeadDrafter(self.actions, device, budget, head, self.embed)
        else:
            drafter = RecursiveDrafter(
                self.actions, device, _exactly, budget, head, self.embed, None, self.steps
            )
        return self.count(drafter)

    def temporal(self) -> JudgedHead:
        """Passes with the tree of alternatives to the last action, which needs no head."""
        positions = self.episodes[0].tokens.shape[1]
        device = torch.device("cpu")
        if isinstance(self.actions, FastTokens):
            return self.count(FastDrafter(self.actions, device, Budget(), None, wide=True))
        drafter = TemporalTreeDrafter(
            self.actions, positions, device, _exactly, Budget(), None, self.steps
        )
        return self.count(drafter)

    def count(self, drafter: Drafter) -> JudgedHead:
        """Every action of every episode, each episode after a reset."""
        passes = actions = accepted = drafted = 0
        fast, ends = isinstance(self.actions, FastTokens), ends_of(self.actions)
        for episode in self.episodes:
            drafter.forget()
            pairs = zip(episode.tokens.tolist(), episode.taps.float(), strict=True)
            for number, (own, taps) in enumerate(pairs):
                asked = asked_at(number, self.executed if fast else None)
                used, stood, rounds = speculated(drafter, asked, up_to(own, ends), taps)
                passes, accepted, drafted = passes + used, accepted + stood, drafted + rounds
                actions += 1
        return JudgedHead(passes / actions, accepted / drafted if drafted else 0.0)


def ends_of(actions: ActionTokens | FastTokens) -> int | None:
    """The token that ends an answer; None where all are equally long."""
    return actions.end if isinstance(actions, FastTokens) else None


def asked_at(number: int, executed: int | None) -> Request:
    """The request of an episode's frame, of whose last chunk so many actions were executed; None:
    nobody says it. What drafts come of is in the episode."""
    seen = None
    if executed is not None:
        going = Executing(number - 1, executed, 0)
        seen = Observation(number, number, 0, np.zeros((1, 1, 3), np.uint8), executing=going)
    stages = StageTimer(Timeline(0), SystemClock(), torch.device("cpu"))
    return Request(number, torch.zeros(0, 0), stages, observation=seen)


def speculated(
    drafter: Drafter, request: Request, own: list[int], taps: torch.Tensor
) -> tuple[int, int, int]:
    """Speculate one action that is known -> passes, and of drafts behind a token: accepted, and
    how many there were."""
    drafter.begin(request)
    known = passes = accepted = rounds = 0
    while known < len(own):
        limit = len(own) - 1 - known
        draft = drafter.propose(own[:known], limit) if limit else None
        passes += 1
        stood = 0
        if draft is not None and len(draft.tokens):
            parents = draft.parents or ()
            levels = _levels(parents)
            said = [own[known], *(own[known + level] for level in levels)]
            tokens = draft.tokens.tolist()
            verdict = follow(said, tokens, parents, known, _same, True)
            stood = verdict.accepted
            drafter.verified(verdict.draft, stood)
            accepted, rounds = accepted + stood * (known > 0), rounds + (known > 0)
        drafter.observe_taps(taps[known : known + stood + 1], range(stood + 1))
        known += stood + 1
    drafter.observe(own, own)
    return passes, accepted, rounds


def _levels(parents: Sequence[int]) -> list[int]:
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def _same(draft: int, own: int, position: int) -> bool:
    return draft == own


def _exactly(position: int) -> int:
    return 0
