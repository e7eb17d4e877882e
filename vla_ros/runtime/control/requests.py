"""What a recorded run asked for, told again: which frames, and what was executed meanwhile.

Chunks of a run in real time depend on when their answers came. Told the recorded delays, a policy
that continues its chunks (arXiv 2506.07339) says the same again, on any machine.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path

from vla_ros.core import Executing


@dataclass(frozen=True, slots=True)
class Question:
    """A frame that was asked for, by its stamp, the chunk that its answer continued, and the delay
    that the policy was told."""

    stamp_ns: int
    executing: Executing | None = None
    told_delay: int = 0


class Retold:
    """The questions of a run, in order; each is asked once. Not thread-safe."""

    def __init__(self, questions: Iterable[Question]) -> None:
        self._left = deque(questions)

    def next(self, stamp_ns: int) -> Question | None:
        """What was asked of this frame, or None: nothing was. Older questions are over."""
        while self._left and self._left[0].stamp_ns < stamp_ns:
            self._left.popleft()
        if self._left and self._left[0].stamp_ns == stamp_ns:
            return self._left.popleft()
        return None


def write_questions(path: Path, questions: Iterable[Question]) -> None:
    """A file for :func:`read_questions`."""
    rows = [
        [q.stamp_ns, q.told_delay, *(astuple(q.executing) if q.executing else ())]
        for q in questions
    ]
    path.write_text(json.dumps(rows), encoding="utf-8")


def read_questions(path: Path) -> Retold:
    """The inverse of :func:`write_questions`. ValueError, in one line: no such file, or something
    else in it."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return Retold(
            Question(int(at), Executing(*map(int, before)) if before else None, int(told))
            for at, told, *before in rows
        )
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
