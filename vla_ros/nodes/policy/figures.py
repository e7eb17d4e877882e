"""What the policy node measures of itself: where the time goes, and which drafts are taken."""

from __future__ import annotations

from collections import deque

from vla_ros.control.queue import Answer
from vla_ros.core import ACTION_DIM, STAGES, Command
from vla_ros.msg import Latency
from vla_ros.nodes.policy.convert import latency_message
from vla_ros.timing import MS, Window

_INFERENCE = ("preprocess", "vision", "prefill", "decode")


class LatencyWindows:
    """Sliding windows of every stage, keyed by the field names of Latency.msg."""

    def __init__(self, seconds: float) -> None:
        names = (*STAGES, "total", "inference", "tick_error")
        self._windows = {name: Window(seconds) for name in names}
        self._seconds = seconds
        self._last: Command | None = None

    def span(self, seconds: float) -> None:
        """Look back this far from now on."""
        self._seconds = seconds
        for window in self._windows.values():
            window.seconds = seconds

    def command(self, command: Command, steady_ns: int) -> None:
        """Account for one new action; its stages may have been measured a chunk ago."""
        first = self._last is None or self._last.stamp_ns != command.stamp_ns
        self._last = command
        if first:
            for stage, duration in command.stages_ms.items():
                self._windows[stage].add(steady_ns, duration)
            spent = sum(command.stages_ms[stage] for stage in _INFERENCE)
            self._windows["inference"].add(steady_ns, spent)
        self._windows["total"].add(steady_ns, command.total_ms)

    def tick(self, error_ns: int, steady_ns: int) -> None:
        self._windows["tick_error"].add(steady_ns, error_ns / MS)

    def message(self, steady_ns: int) -> Latency:
        found = {name: w.distribution(steady_ns) for name, w in self._windows.items()}
        return latency_message(found, self._last, self._seconds)


class DraftShares:
    """Share of the draft tokens that were accepted, per action dimension, last 200 actions."""

    def __init__(self) -> None:
        self._seen: deque[tuple[tuple[int, ...], tuple[int, ...]]] = deque(maxlen=200)

    def add(self, answer: Answer) -> None:
        if answer.inference.drafted:
            self._seen.append((answer.inference.drafted, answer.inference.accepted))

    def shares(self) -> list[float]:
        if not self._seen:
            return []
        dims = range(min(ACTION_DIM, len(self._seen[-1][0])))
        drafted = [sum(d[i] for d, _ in self._seen if i < len(d)) for i in dims]
        accepted = [sum(a[i] for _, a in self._seen if i < len(a)) for i in dims]
        return [a / d if d else 0.0 for a, d in zip(accepted, drafted, strict=True)]
