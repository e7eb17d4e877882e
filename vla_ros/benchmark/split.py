"""Where the time of speculation goes: drafting, verifying, and the rest; and what was verified."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean

import torch

from vla_ros.engine.drafters.acceptance import Acceptance, Seen
from vla_ros.engine.drafters.base import Draft, Drafter
from vla_ros.engine.drafters.verdict import Verdict
from vla_ros.engine.packed.lane import Lane
from vla_ros.engine.packed.pack import PackLayout
from vla_ros.engine.request import Request
from vla_ros.engine.schedules.base import Schedule
from vla_ros.engine.schedules.speculative import Speculative


@dataclass(slots=True)
class Parts:
    """Of one action: seconds, and draft tokens of the passes that had any.

    On a GPU the time of a pass shows where its result is read: within ``verify_s`` where there
    was a draft, else in neither.
    """

    draft_s: float = 0.0
    verify_s: float = 0.0
    verified: int = 0
    accepted: int = 0
    judged: int = 0


class SplitClock:
    """Takes the time of a speculative schedule's drafter and acceptance from now on."""

    def __init__(self, schedule: Speculative, cpu_clock: bool) -> None:
        self._now: Callable[[], float] = time.process_time if cpu_clock else time.perf_counter
        self.parts = Parts()
        schedule.drafter = _TimedDrafter(schedule.drafter, self)
        schedule.acceptance = _TimedAcceptance(schedule.acceptance, self)

    def take(self) -> Parts:
        """What there was since the last time."""
        parts, self.parts = self.parts, Parts()
        return parts

    @contextmanager
    def drafting(self) -> Iterator[None]:
        began = self._now()
        yield
        self.parts.draft_s += self._now() - began

    @contextmanager
    def verifying(self) -> Iterator[None]:
        began = self._now()
        yield
        self.parts.verify_s += self._now() - began


def split_clock(schedule: Schedule, cpu_clock: bool) -> SplitClock | None:
    """A clock where there is something to split."""
    return SplitClock(schedule, cpu_clock) if isinstance(schedule, Speculative) else None


@dataclass(frozen=True, slots=True)
class Split:
    """Means: ms an action, draft tokens verified an action, and accepted in a pass with any."""

    draft_ms: float
    verify_ms: float
    other_ms: float
    verified: float
    accepted: float


def split_of(parts: Sequence[Parts], spent: Sequence[float]) -> Split | None:
    """Of the actions of a row, which took ``spent`` seconds in all."""
    if not parts:
        return None
    draft, verify = (1e3 * fmean(getattr(p, s) for p in parts) for s in ("draft_s", "verify_s"))
    judged = sum(p.judged for p in parts)
    return Split(
        draft_ms=draft,
        verify_ms=verify,
        other_ms=1e3 * fmean(spent) - draft - verify,
        verified=fmean(p.verified for p in parts),
        accepted=sum(p.accepted for p in parts) / judged if judged else 0.0,
    )


class _TimedDrafter(Drafter):
    def __init__(self, inner: Drafter, clock: SplitClock) -> None:
        self._inner, self._clock = inner, clock

    @property
    def passes(self) -> int:  # type: ignore[override]
        return self._inner.passes

    def instruct(self, text: str) -> None:
        self._inner.instruct(text)

    def prepare(self, request: Request, every: bool = False) -> None:
        self._inner.prepare(request, every)

    def begin(self, request: Request) -> None:
        with self._clock.drafting():
            self._inner.begin(request)

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        with self._clock.drafting():
            return self._inner.propose(prefix, limit)

    def judged(self, draft: Sequence[int], accepted: int) -> None:
        with self._clock.drafting():
            self._inner.judged(draft, accepted)

    def saw(self, taps: torch.Tensor, rows: Sequence[int]) -> None:
        with self._clock.drafting():
            self._inner.saw(taps, rows)

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        with self._clock.drafting():
            self._inner.observe(tokens, own)

    def forget(self, damaged: bool = False) -> None:
        self._inner.forget(damaged)


class _TimedAcceptance(Acceptance):
    def __init__(self, inner: Acceptance, clock: SplitClock) -> None:
        self._inner, self._clock = inner, clock
        self.lossless, self.window = inner.lossless, inner.window

    def verify(
        self,
        lane: Lane,
        layout: PackLayout,
        prompt: torch.Tensor | None,
        tokens: torch.Tensor | None,
    ) -> Seen:
        with self._clock.verifying():
            return self._inner.verify(lane, layout, prompt, tokens)

    def judge(self, seen: Seen, draft: Draft, start: int) -> Verdict:
        with self._clock.verifying():
            verdict = self._inner.judge(seen, draft, start)
        parts = self._clock.parts
        parts.verified += len(draft.tokens)
        parts.accepted += verdict.accepted
        parts.judged += 1
        return verdict

    def plain(self, seen: Seen) -> tuple[torch.Tensor, torch.Tensor]:
        return self._inner.plain(seen)
