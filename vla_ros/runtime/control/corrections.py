"""Corrections of a chunk's actions by newer frames (arXiv 2509.23224), which take time themselves.

A corrector, in the node a second worker, is asked about each frame. Its answer holds for the
actions that it was asked about until there is a newer one. An action without an answer goes out as
its chunk has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from vla_ros.core.types import Floats, Inference, Instruction, Observation, Uncorrected
from vla_ros.runtime.control.queue import ChunkAction, PolicyAnswer

_REMEMBERED = 64  # questions; newest wins, so that few are ever answered


class Corrector(Protocol):
    """The corrector of a loop. Called with the loop's lock held; must not block."""

    def ask(self, action: ChunkAction, newest: Observation, instruction: Instruction) -> None:
        """Ask about the action that is next, by the newest frame."""

    def correct(self, action: ChunkAction, newest: Observation) -> ChunkAction:
        """The action for publication, corrected where an answer covers it."""


@dataclass(frozen=True, slots=True)
class _Asked:
    stamp_ns: int  # of the frame
    answer: PolicyAnswer  # the chunk
    index: int  # of the first action in it


@dataclass(frozen=True, slots=True)
class _Correction:
    asked: _Asked
    actions: Floats  # [n, D]


class Corrections:
    """The newest answer of a corrector that is asked by ``submit``, about ``most`` actions at once.
    Not thread-safe: the loop's lock."""

    def __init__(self, submit: Callable[[Observation, Instruction], None], most: int) -> None:
        self._submit, self._most = submit, most
        self._asked: deque[_Asked] = deque(maxlen=_REMEMBERED)
        self._newest: _Correction | None = None

    def ask(self, action: ChunkAction, newest: Observation, instruction: Instruction) -> None:
        """Ask once about each frame and chunk, but not about the frame that a chunk was made of."""
        asked = _Asked(newest.stamp_ns, action.answer, action.index)
        last = self._asked[-1] if self._asked else None
        same = last is not None and last.stamp_ns == asked.stamp_ns and last.answer is asked.answer
        if same or newest.stamp_ns <= action.answer.inference.stamp_ns:
            return
        self._asked.append(asked)
        stamp_ns = action.answer.inference.stamp_ns
        uncorrected = Uncorrected(stamp_ns, action.index, action.rows[: self._most])
        self._submit(replace(newest, executing=None, uncorrected=uncorrected), instruction)

    def answered(self, inference: Inference) -> None:
        """Take in an answer, which names its frame and its chunk."""
        chunk = inference.continues
        for asked in self._asked:
            same_frame = asked.stamp_ns == inference.stamp_ns
            if chunk and same_frame and asked.answer.inference.stamp_ns == chunk.stamp_ns:
                self._newest = _Correction(asked, inference.actions)
                return

    def correct(self, action: ChunkAction, newest: Observation) -> ChunkAction:
        """The action as the last answer about this chunk has it, where it covers this action."""
        found = self._newest
        if found is None or found.asked.answer is not action.answer:
            return action
        begin = action.index - found.asked.index
        if not 0 <= begin < len(found.actions):
            return action
        left = found.actions[begin:]
        rows = np.concatenate((left, action.rows[len(left) :]))
        return replace(action, rows=rows, corrected_ns=found.asked.stamp_ns)
