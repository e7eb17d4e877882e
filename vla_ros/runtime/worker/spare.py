"""A second worker that has loaded its policy and does nothing: it takes over where one is lost.

It is started when a worker is ready and memory holds a second copy, hears nothing of frames until
it takes over, and steps back while it loads. Lost itself it is replaced, at most as often as a
worker. Where it cannot be (no room, refused, too slow to load) that is said once, and tried again
only beside another worker. Pure but for the processes it is handed; time is handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from vla_ros.core.clock import SECOND
from vla_ros.runtime.worker.process import WorkerProcess
from vla_ros.runtime.worker.wire import (
    Event,
    LoadRefused,
    PolicyLoaded,
    SpareLost,
    SpareReady,
    WorkerLimits,
)


class RespawnBudget:
    """At most ``count`` replacements in any ``window_s`` seconds."""

    def __init__(self, count: int, window_s: float) -> None:
        self.count, self.window_s = count, window_s
        self._taken: deque[int] = deque()

    def take(self, steady_ns: int) -> bool:
        """True if one more is allowed now, which is taken."""
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


class SpareWorker:
    """At most one spare worker. Used by the executor's thread alone.

    ``start`` makes one beside the worker that is handed to it, and may raise; ``refusal`` says why
    memory holds none, or "". ``process`` is the one there is, loaded or not.
    """

    def __init__(
        self,
        start: Callable[[PolicyLoaded], WorkerProcess],
        refusal: Callable[[PolicyLoaded], str],
        limits: WorkerLimits,
        tell: Callable[[Event], None],
    ) -> None:
        self._start, self._refusal, self._tell = start, refusal, tell
        self._wanted = limits.spare
        self._load_timeout_s = limits.load_timeout_s
        self._budget = RespawnBudget(limits.max_respawns, limits.respawn_window_s)
        self._barred = False  # none can be beside the worker that serves
        self._beside: PolicyLoaded | None = None
        self._ready: PolicyLoaded | None = None
        self.zombies: list[WorkerProcess] = []  # killed, not yet reaped
        self._since_ns = 0
        self.process: WorkerProcess | None = None

    def turn(self, now_ns: int, serving: PolicyLoaded | None) -> None:
        """Look after it. ``serving``: the report of the worker that serves; None: none is ready."""
        if self.process is not None:
            self._read(self.process, now_ns)
        elif self._wanted and not self._barred and serving is not None and self.gone():
            self._begin(now_ns, serving)

    def stands(self) -> bool:
        """True if one could take over now."""
        return self._ready is not None

    def take(self, after: int) -> tuple[WorkerProcess, PolicyLoaded] | None:
        """Hand over the one that stands by; requests up to ``after`` are void for it.

        None: there is none. One that still loads is ended: the memory is the next worker's.
        What it says of inference times is what the lost one said: its own were measured beside
        that one, and on few CPUs.
        """
        process, ready, beside = self.process, self._ready, self._beside
        self._barred = False
        if process is None or ready is None or beside is None or process.ended():
            self.terminate()
            return None
        self.process = self._ready = None
        process.begin(after)
        times = {n: getattr(beside, n) for n in ("inference_p50_ms", "inference_p99_ms")}
        return process, replace(ready, **times)

    def renew(self) -> None:
        """End it, and forget earlier losses: everything begins anew."""
        self.terminate()
        self._barred = False
        self._budget.clear()

    def terminate(self) -> None:
        """Kill it; no event follows."""
        if self.process is not None:
            self.process.kill()
            self.zombies.append(self.process)
            self.process = self._ready = None

    def gone(self) -> bool:
        """True once every killed one is reaped: the memory of the last one is free again."""
        self.zombies = [process for process in self.zombies if not process.ended()]
        return not self.zombies

    def _begin(self, now_ns: int, serving: PolicyLoaded) -> None:
        if reason := self._refusal(serving):
            self._bar(reason)
            return
        self._since_ns, self._beside = now_ns, serving
        try:
            self.process = self._start(serving)
        except Exception as error:  # a machine out of processes or descriptors
            self._bar(f"it cannot be started: {error}")

    def _read(self, process: WorkerProcess, now_ns: int) -> None:
        try:
            reports = process.read(now_ns)
        except ValueError as error:
            self._lose(f"it sent something unreadable: {error}", now_ns)
            return
        if reports is None:
            self._lose(process.exit_reason(), now_ns)
            return
        waited_s = (now_ns - self._since_ns) / SECOND
        for report in reports:
            if isinstance(report, PolicyLoaded):
                self._ready = report
                self._tell(SpareReady(report.pid, waited_s))
            elif isinstance(report, LoadRefused):
                self._bar(report.reason)
                return
        if self._ready is None and waited_s > self._load_timeout_s:
            self._bar(f"it was not ready in {self._load_timeout_s:g} s")

    def _lose(self, reason: str, now_ns: int) -> None:
        """One that ends while it loads would do so again; one that stood may have been killed."""
        stood = self.stands()
        self.terminate()
        if stood and self._budget.take(now_ns):
            self._tell(SpareLost(reason, final=False))
        else:
            self._bar(reason)

    def _bar(self, reason: str) -> None:
        self.terminate()
        self._barred = True
        self._tell(SpareLost(reason, final=True))
