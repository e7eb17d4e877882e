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
    """Who corrects actions. Called with the loop's lock held; must not block."""

    def ask(self, action: ChunkAction, newest: Observation, instruction: Instruction) -> None:
        """This action is next, and this frame the newest."""

    def correct(self, action: ChunkAction, newest: Observation) -> ChunkAction:
        """The action as it is to be published."""


@dataclass(frozen=True, slots=True)
class _Asked:
    stamp_ns: int  # of the frame
    answer: PolicyAnswer  # the chunk
    index: int  # of the first action in it


@dataclass(frozen=True, slots=True)
class _Said:
    asked: _Asked
    actions: Floats  # [n, D]


class Corrections:
    """The newest answer of one who is asked by ``submit``, about ``most`` actions at once. Not
    thread-safe: the loop's lock."""

    def __init__(self, submit: Callable[[Observation, Instruction], None], most: int) -> None:
        self._submit, self._most = submit, most
        self._asked: deque[_Asked] = deque(maxlen=_REMEMBERED)
        self._said: _Said | None = None

    def ask(self, action: ChunkAction, newest: Observation, instruction: Instruction) -> None:
        """Once about each frame and chunk, and not about the frame that a chunk was made of."""
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
        """An answer: of which frame, and about which chunk, it says itself."""
        chunk = inference.continues
        for asked in self._asked:
            same_frame = asked.stamp_ns == inference.stamp_ns
            if chunk and same_frame and asked.answer.inference.stamp_ns == chunk.stamp_ns:
                self._said = _Said(asked, inference.actions)
                return

    def correct(self, action: ChunkAction, newest: Observation) -> ChunkAction:
        """With what was said last of this chunk, where it covers this action."""
        said = self._said
        if said is None or said.asked.answer is not action.answer:
            return action
        begin = action.index - said.asked.index
        if not 0 <= begin < len(said.actions):
            return action
        left = said.actions[begin:]
        rows = np.concatenate((left, action.rows[len(left) :]))
        return replace(action, rows=rows, corrected_ns=said.asked.stamp_ns)
