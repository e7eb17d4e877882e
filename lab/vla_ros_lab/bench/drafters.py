"""Drafters to compare with, what no drafter can beat, and the time that a drafter takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import ParamSpec, TypeVar

import torch

from vla_ros.engine.decoding.acceptance import Exact, Scores, Verification
from vla_ros.engine.decoding.base import Decoding
from vla_ros.engine.decoding.draft_tree import Budget
from vla_ros.engine.decoding.drafters import (
    Draft,
    Drafter,
    TemporalDrafter,
    TemporalTreeDrafter,
    costs_on,
)
from vla_ros.engine.decoding.speculative import Speculative
from vla_ros.engine.layers.request import Request
from vla_ros.engine.models.openvla import VLAModel
from vla_ros_lab.heterospec import Episode, hindsight, least_acceptance, shown

P = ParamSpec("P")
R = TypeVar("R")

Answers = Mapping[int, tuple[int, ...]]  # the model's own tokens, by stamp
BOUND = 0.45  # AdaEDL's lower bound on acceptance where a draft ends


class HitDrafter(Drafter):
    """Oracle that is always right: one pass an action."""

    def __init__(self, answers: Answers, device: torch.device) -> None:
        self._answers, self._device = answers, device
        self._now: tuple[int, ...] = ()

    def begin(self, request: Request) -> None:
        self._now = self._answers[request.stamp_ns]

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        guess = self._now[len(prefix) : len(prefix) + limit]
        return Draft(torch.tensor(guess, dtype=torch.long, device=self._device))


class MissDrafter(TemporalDrafter):
    """Oracle that is always wrong, otherwise the temporal drafter, statistics and all.

    Adaptive it shows what a bad draft costs in service; not adaptive, the true worst case.
    """

    def __init__(self, model: VLAModel, tokens: int, answers: Answers, *, adaptive: bool) -> None:
        close = Exact().matches
        super().__init__(
            model.actions, tokens, model.device, close, adaptive=adaptive, dtype=model.dtype,
            steps=model.config.chunk,
        )  # fmt: skip
        self._answers = answers
        self._wrong: tuple[int, ...] = ()

    def begin(self, request: Request) -> None:
        actions = self._actions
        truth = self._answers[request.stamp_ns]
        self._wrong = tuple(t + 1 if t + 1 < actions.vocab else t - 1 for t in truth)

    def _guess(self, prefix: Sequence[int], start: int, end: int) -> Sequence[int]:
        return self._wrong[start:end]


class EntropyChainDrafter(Drafter):
    """AdaEDL's chain (Agrawal et al.): the likeliest token of every position, while
    1 - sqrt(slope * H), H the entropy of the alternatives, is at least ``bound``."""

    def __init__(self, model: VLAModel, tokens: int, bound: float = BOUND) -> None:
        self._device, self._bound = model.device, bound
        costs = costs_on(model.device, model.dtype)  # given, what was learned outlives episodes
        self._source = TemporalTreeDrafter(
            model.actions, tokens, model.device, lambda position: 0, Budget(0, 0), costs,
            model.config.chunk,
        )  # fmt: skip

    def begin(self, request: Request) -> None:
        self._source.begin(request)

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        offer, chosen = self._source.candidates(prefix), list[int]()
        if offer is not None:
            for tokens, chances in zip(offer.tokens[:limit], offer.chances, strict=False):
                if least_acceptance(chances) < self._bound:
                    break
                chosen.append(tokens[0])
        return Draft(torch.tensor(chosen, dtype=torch.long, device=self._device))

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        self._source.observe(tokens, own)

    def forget(self, damaged: bool = False) -> None:
        self._source.forget(damaged)


@dataclass(frozen=True, slots=True)
class Hindsight:
    """Bound on drafts of the last action's alternatives, which hold only what is accepted: passes
    and verified tokens an action, and tokens accepted in a pass with a draft. Not run."""

    passes: float
    verified: float
    accepted: float


def best_in_hindsight(
    answers: Episode, window: range, warm_up: int = 0, steps: int = 1
) -> Hindsight | None:
    """The bound on answers in the order of their frames, ``steps`` actions each; the first
    ``warm_up`` are only learned from, as the rows do. None for fewer than two."""
    offered = shown([answers], window, steps=steps)[warm_up:]
    frames = [frame for frame in offered if frame.offer is not None]
    if not frames:
        return None
    played = list(hindsight(frames))
    drafted = sum(len(one.tree) > 0 for one in played)
    verified = sum(len(one.tree) for one in played)
    return Hindsight(len(played) / len(frames), verified / len(frames), verified / max(drafted, 1))


@dataclass(slots=True)
class ActionParts:
    """Parts of one action: seconds, and draft tokens of the passes that had any.

    On a GPU the time of a pass shows where its result is read: within ``verify_s`` where there
    was a draft, else in neither.
    """

    draft_s: float = 0.0
    verify_s: float = 0.0
    verified: int = 0
    accepted: int = 0
    judged: int = 0


@dataclass(slots=True)
class SplitClock:
    """Clock of a speculative decoding's drafter and acceptance, from its making on."""

    cpu_clock: bool
    taken: list[ActionParts] = field(default_factory=list)
    _parts: ActionParts = field(default_factory=ActionParts)
    _running: bool = False

    def watch(self, decoding: Speculative) -> None:
        """Time the parts of a decoding that this row alone runs."""
        drafter, rule = decoding.drafter, decoding.acceptance
        for name in ("begin", "propose", "verified", "observe_taps", "observe"):
            setattr(drafter, name, self._timed("draft_s", getattr(drafter, name)))
        accept = self._timed("verify_s", rule.accept)

        def counted(scores: Scores, draft: Draft, start: int) -> Verification:
            found = accept(scores, draft, start)
            self._parts.verified += len(draft.tokens)
            self._parts.accepted += found.accepted
            self._parts.judged += 1
            return found

        rule.verify = self._timed("verify_s", rule.verify)  # type: ignore[method-assign]
        rule.accept = counted  # type: ignore[method-assign]

    def take(self) -> None:
        """End an action: its parts are kept."""
        self.taken.append(self._parts)
        self._parts = ActionParts()

    def _timed(self, part: str, call: Callable[P, R]) -> Callable[P, R]:
        """The call, timed; a timed one within another is the other's."""
        now = time.process_time if self.cpu_clock else time.perf_counter

        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            if self._running:
                return call(*args, **kwargs)
            self._running, began = True, now()
            try:
                return call(*args, **kwargs)
            finally:
                setattr(self._parts, part, getattr(self._parts, part) + now() - began)
                self._running = False

        return run


def split_clock(decoding: Decoding, cpu_clock: bool) -> SplitClock | None:
    """A clock where there is something to split."""
    if not isinstance(decoding, Speculative):
        return None
    clock = SplitClock(cpu_clock)
    clock.watch(decoding)
    return clock


def split_of(parts: Sequence[ActionParts], spent: Sequence[float]) -> dict[str, float]:
    """Means of actions that took ``spent`` seconds: ms an action, draft tokens verified an action,
    and accepted in a pass with any."""
    draft, verify = (1e3 * fmean(getattr(p, s) for p in parts) for s in ("draft_s", "verify_s"))
    judged = sum(p.judged for p in parts)
    return {
        "draft_ms": draft,
        "verify_ms": verify,
        "other_ms": 1e3 * fmean(spent) - draft - verify,
        "verified": fmean(p.verified for p in parts),
        "accepted": sum(p.accepted for p in parts) / judged if judged else 0.0,
    }
