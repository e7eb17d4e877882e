"""When a worker counts as hung, and how often it may be replaced. Pure; time is handed in."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from vla_ros.timing import SECOND


@dataclass(frozen=True, slots=True)
class _Asked:
    sequence: int = 0
    since_ns: int = 0  # when the oldest request not yet answered then was submitted


@dataclass(frozen=True, slots=True)
class _Answered:
    sequence: int = 0
    at_ns: int = 0


class Watchdog:
    """Tells for how long requests have gone unanswered.

    Newest wins, so an answer to request n also settles all before n; the clock of those
    after n starts at that answer. ``submitted`` is called by one thread at a time,
    everything else by the supervisor; each writes fields of its own, so no lock is needed.
    """

    def __init__(self) -> None:
        self._asked = _Asked()
        self._answered = _Answered()

    def submitted(self, sequence: int, steady_ns: int) -> None:
        """Request ``sequence`` is in the mailbox."""
        idle = self._answered.sequence >= self._asked.sequence
        self._asked = _Asked(sequence, steady_ns if idle else self._asked.since_ns)

    def answered(self, sequence: int, steady_ns: int) -> None:
        """The worker answered ``sequence``."""
        self._answered = _Answered(max(sequence, self._answered.sequence), steady_ns)

    def excuse(self, steady_ns: int) -> None:
        """Count from ``steady_ns`` at the earliest: the worker was not there, or we were not."""
        self._answered = _Answered(self._answered.sequence, steady_ns)

    def waiting_ns(self, steady_ns: int) -> int:
        """For how long something has been unanswered; 0 when nothing is."""
        asked, answered = self._asked, self._answered
        if asked.sequence <= answered.sequence:
            return 0
        return steady_ns - max(asked.since_ns, answered.at_ns)


class RespawnBudget:
    """At most ``count`` replacements in any ``window_s`` seconds."""

    def __init__(self, count: int, window_s: float) -> None:
        self.count, self.window_s = count, window_s
        self._taken: deque[int] = deque()

    def take(self, steady_ns: int) -> bool:
        """Whether one more is allowed now; takes it if so."""
        oldest = steady_ns - round(self.window_s * SECOND)
        while self._taken and self._taken[0] <= oldest:
            self._taken.popleft()
        if len(self._taken) >= self.count:
            return False
        self._taken.append(steady_ns)
        return True

    def clear(self) -> None:
        """Forget what was taken."""
        self._taken.clear()
