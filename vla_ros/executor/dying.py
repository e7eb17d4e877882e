"""Workers that were lost and are not gone yet; and how they ended, where that comes late."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from vla_ros.executor.messages import Event, WorkerDied
from vla_ros.executor.process import WorkerProcess


class Dying:
    """Killed, not yet reaped. Used by the supervisor's thread alone."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._workers: list[WorkerProcess] = []
        self._unexplained: set[WorkerProcess] = set()  # nobody has said how they ended

    def __iter__(self) -> Iterator[WorkerProcess]:
        return iter(self._workers)

    def __bool__(self) -> bool:
        return bool(self._workers)

    def add(self, worker: WorkerProcess, explained: bool) -> None:
        """It is killed. ``explained``: how it ended has been said, or is nobody's question."""
        self._workers.append(worker)
        if not explained:
            self._unexplained.add(worker)

    def reap(self) -> None:
        """Forget those that are gone; tell how the unexplained ones ended, if not by us."""
        gone = [worker for worker in self._workers if worker.ended()]
        self._workers = [worker for worker in self._workers if worker not in gone]
        for worker in self._unexplained.intersection(gone):
            self._unexplained.remove(worker)
            if worker.ended_unasked():
                self._tell(WorkerDied(worker.pid, worker.how()))
