"""What plays an episode: through the ROS graph, or straight on the policy. Same records."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from vla_ros.evaluation.records import Job, Record, Variant
from vla_ros.evaluation.strips import Strip


class Runner(Protocol):
    """A context manager made with ``(setup, variants)``. Used, entered and left by one thread.

    Jobs come ordered by variant; what a variant needs is kept until the next one comes.
    """

    def __enter__(self) -> Runner: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def play(self, job: Job, variant: Variant, strip: Strip | None = None) -> Record:
        """Play one episode; every frame of the main camera is shown to ``strip``.

        What goes wrong in an episode is its record's ``reason`` and ``error``. Raises
        RunnerFailed for what no further episode can do better.
        """
        ...


class RunnerFailed(RuntimeError):
    """No episode of this variant can be played: one line that says why and what to do."""
