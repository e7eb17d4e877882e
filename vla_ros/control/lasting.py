"""What outlives a control loop: the numbers of its commands, and a stop."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_WORDS = 8  # upstream nodes that repeat themselves, and more


class StopLatch:
    """What was stopped does not start again by being said again, nor does what a goal overruled.
    Not thread-safe.

    ``task`` is what :meth:`release` gives back, "" where nothing was stopped.
    """

    def __init__(self) -> None:
        self.task = ""
        self._words: deque[str] = deque(maxlen=_WORDS)  # that task, and what a goal overruled
        self._same = False  # those are withheld
        self._all = False  # every task is

    @property
    def holds(self) -> bool:
        """Whether there is something to resume."""
        return bool(self.task) or self._all

    def catch(self, task: str) -> None:
        """Stop this task; "" where none was running, so that what was stopped before stays so."""
        self.task = task or self.task
        self.overrule(self.task)

    def overrule(self, text: str) -> None:
        """A goal goes first. Once it is over, the same said again is no news."""
        if text and text not in self._words:
            self._words.append(text)
        self._same = True

    def give_way(self) -> None:
        """A goal begins: an explicit will. What was said before it stays withheld."""
        self.task, self._all = "", False

    def close(self) -> None:
        """Stop whatever will be said: nobody knows yet what that is."""
        self._all = True

    def new_episode(self) -> None:
        """The task may be given again. It does not start by itself."""
        self._same = False

    def withholds(self, task: str) -> bool:
        """Whether this task must not start; the newest one withheld is the one to resume."""
        withheld = self._all or (self._same and task in self._words)
        if withheld:
            self.task = task
        return withheld

    def release(self) -> str:
        """Forget the stop; returns the task that it held."""
        task, self.task, self._same, self._all = self.task, "", False, False
        self._words.clear()
        return task


@dataclass(slots=True)
class Lasting:
    """Kept by the owner of the loops that follow each other, from its start to its end."""

    latch: StopLatch = field(default_factory=StopLatch)
    sequence: int = 0  # of the next command
    epoch: int = 0  # the newest
