"""Runners that do what the name of their task says, for tests of what drives runners."""

from __future__ import annotations

import os
import signal
import time
from types import TracebackType

import numpy as np

from vla_ros.data.episodes.play import RunnerFailed
from vla_ros.data.episodes.records import Job, Record, Setup, Variant
from vla_ros.data.episodes.store import FrameStrip


class NamedRunner:
    """Tasks: solve, die (its process is killed), refuse (RunnerFailed), sleep (10 s)."""

    def __init__(self, setup: Setup, variants: tuple[Variant, ...]) -> None:
        self.played = 0

    def __enter__(self) -> NamedRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _note("closed")

    def play(self, job: Job, variant: Variant, strip: FrameStrip | None = None) -> Record:
        match job.task:
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "refuse":
                raise RunnerFailed("no such robot")
            case "sleep":
                _note("asleep")
                time.sleep(10)
        self.played += 1
        if strip is not None:
            strip.add(np.full((16, 16, 3), 200, np.uint8), 0)
        return Record(job, True, "success", steps=self.played, passes=os.getpid())


def _note(what: str) -> None:
    """Write the process's number into a file of the folder that a test has named."""
    if folder := os.environ.get("VLA_ROS_TEST_NOTES"):
        with open(os.path.join(folder, what), "a") as file:
            file.write(f"{os.getpid()}\n")


def named_runner(setup: Setup, variants: tuple[Variant, ...]) -> NamedRunner:
    return NamedRunner(setup, variants)
