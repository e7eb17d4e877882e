"""What is to be executed next: the newest chunk, one action at a time."""

from __future__ import annotations

from dataclasses import dataclass

from vla_ros.core import Floats, Inference


@dataclass(frozen=True, slots=True)
class Answer:
    """An inference with the receipt times of the observation it belongs to."""

    inference: Inference
    received_ns: int
    received_steady_ns: int


@dataclass(frozen=True, slots=True)
class ChunkAction:
    """One action that may be published next."""

    answer: Answer
    index: int

    @property
    def action(self) -> Floats:
        """Float64 [7]."""
        action: Floats = self.answer.inference.actions[self.index]
        return action


class ActionQueue:
    """Newest wins: a new chunk replaces the old one once ``keep`` of its actions were taken.

    ``keep`` is the replan interval S; 0 executes whole chunks (open loop, as OpenVLA-OFT).
    """

    def __init__(self, keep: int = 0) -> None:
        self.keep = keep
        self.clear()

    def clear(self) -> None:
        """Forget everything: instruction change, reset, clock jump."""
        self._current: Answer | None = None
        self._index = 0
        self._newer: Answer | None = None

    def put(self, answer: Answer) -> None:
        """Take a new answer; one that was still waiting is replaced by it."""
        self._newer = answer

    def take(self) -> ChunkAction | None:
        """The next action, or None if there is no new one."""
        if self.exhausted and self._newer is not None:
            self._current, self._index, self._newer = self._newer, 0, None
        if self._current is None or self.exhausted:
            return None
        candidate = ChunkAction(self._current, self._index)
        self._index += 1
        return candidate

    @property
    def exhausted(self) -> bool:
        """Whether the next action has to come from a new answer."""
        if self._current is None:
            return True
        length = len(self._current.inference.actions)
        return self._index >= (min(self.keep, length) if self.keep else length)
