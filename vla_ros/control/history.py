"""What a stream said of late, by stamp: so that messages that come late still find each other."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sample(Generic[T]):
    """A value and the stamp it is of, in nanoseconds."""

    stamp_ns: int
    value: T


class History(Generic[T]):
    """The newest ``limit`` samples of one stream in the order of their stamps.

    A sample of a stamp that is there already replaces it. A stamp that lies more than ``back_ns``
    before the newest one is a clock that was set back: what was there is void. Not thread-safe.
    """

    def __init__(self, limit: int, back_ns: int = 10_000_000_000) -> None:
        self._limit = limit
        self._back_ns = back_ns
        self._stamps: list[int] = []
        self._values: list[T] = []

    def __len__(self) -> int:
        return len(self._stamps)

    def add(self, stamp_ns: int, value: T) -> None:
        """Take in a sample; samples may come in any order."""
        if self._stamps and stamp_ns < self._stamps[-1] - self._back_ns:
            self._stamps.clear()
            self._values.clear()
        at = bisect_left(self._stamps, stamp_ns)
        if at < len(self._stamps) and self._stamps[at] == stamp_ns:
            self._values[at] = value
            return
        self._stamps.insert(at, stamp_ns)
        self._values.insert(at, value)
        self._cut(len(self._stamps) - self._limit)

    def around(self, stamp_ns: int) -> tuple[Sample[T] | None, Sample[T] | None]:
        """The last sample up to this stamp and the first one from it on: twice the same where
        there is one of exactly this stamp."""
        at = bisect_left(self._stamps, stamp_ns)
        after = self._sample(at) if at < len(self._stamps) else None
        if after is not None and after.stamp_ns == stamp_ns:
            return after, after
        return (self._sample(at - 1) if at else None), after

    def nearest(self, stamp_ns: int) -> Sample[T] | None:
        """The sample closest to this stamp, the later one of two; None before the first."""
        before, after = self.around(stamp_ns)
        if before is None or after is None:
            return before or after
        return after if after.stamp_ns - stamp_ns <= stamp_ns - before.stamp_ns else before

    def forget(self, before_ns: int) -> None:
        """Let go of what is older, except for the newest of it: it may be a neighbour yet."""
        self._cut(bisect_left(self._stamps, before_ns) - 1)

    def _sample(self, at: int) -> Sample[T]:
        return Sample(self._stamps[at], self._values[at])

    def _cut(self, count: int) -> None:
        if count > 0:
            del self._stamps[:count]
            del self._values[:count]
