"""Requests of a recorded run to its worker, for a replay.

Chunks of a run in real time depend on when their answers came. With the recorded requests, a policy
that continues its chunks (arXiv 2506.07339) answers the same again, on any machine.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path

from vla_ros.core.files import RECORDED, read_json
from vla_ros.core.types import Executing


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request: the frame's stamp, the chunk that its answer continued, and the delay that the
    policy was conditioned on, in action periods."""

    stamp_ns: int
    executing: Executing | None = None
    delay_steps: int = 0


class RecordedRequests:
    """The requests of a run, in order; each is asked once. Not thread-safe."""

    def __init__(self, requests: Iterable[RecordedRequest]) -> None:
        self._left = deque(requests)

    def next(self, stamp_ns: int) -> RecordedRequest | None:
        """The request about this frame, or None. Older requests are over."""
        while self._left and self._left[0].stamp_ns < stamp_ns:
            self._left.popleft()
        if self._left and self._left[0].stamp_ns == stamp_ns:
            return self._left.popleft()
        return None


def write_requests(path: Path, requests: Iterable[RecordedRequest]) -> None:
    """A file for :func:`read_requests`."""
    rows = [
        [r.stamp_ns, r.delay_steps, *(astuple(r.executing) if r.executing else ())]
        for r in requests
    ]
    path.write_text(json.dumps(rows), encoding="utf-8")


def read_requests(path: Path) -> RecordedRequests:
    """The inverse of :func:`write_requests`. ValueError, in one line: no such file, or something
    else in it."""
    try:
        rows = read_json(path, RECORDED)
        return RecordedRequests(
            RecordedRequest(int(at), Executing(*map(int, before)) if before else None, int(delay))
            for at, delay, *before in rows
        )
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
