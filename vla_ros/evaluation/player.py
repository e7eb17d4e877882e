"""Plays jobs one by one wherever it is: in this process, in another, on another machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from vla_ros.evaluation.records import Job, Record, Setup, Variant
from vla_ros.evaluation.runner import Runner
from vla_ros.evaluation.spoken import write_spoken
from vla_ros.evaluation.strips import Strip

#: makes a runner; a function of a module, so that it can be sent to another process
MakeRunner = Callable[[Setup, tuple[Variant, ...]], Runner]


@dataclass(frozen=True, slots=True)
class Order:
    """A job, and where its strip of frames belongs in the evaluation's directory, or ""."""

    job: Job
    strip: str = ""


@dataclass(frozen=True, slots=True)
class Played:
    """A record, and its strip as the bytes of a file, to be written by whoever has the disk."""

    record: Record
    strip: bytes = b""


def keep(played: Played, directory: Path, tokens: bool = False) -> Record:
    """Write the strip, and with ``tokens`` what the policy said, into the evaluation's directory.

    Returns the record, which no longer carries what was said.
    """
    if played.strip:
        path = directory / played.record.strip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(played.strip)
    if tokens:
        write_spoken(played.record, directory)
    return replace(played.record, said=())


class Player:
    """A runner that is there when the first job comes. Used and closed by one thread."""

    def __init__(self, make: MakeRunner, setup: Setup, variants: tuple[Variant, ...]) -> None:
        self._make = make
        self._setup = setup
        self._variants = {variant.label: variant for variant in variants}
        self._runner: Runner | None = None

    def play(self, order: Order) -> Played:
        """Play one job. Raises RunnerFailed."""
        if self._runner is None:
            runner = self._make(self._setup, tuple(self._variants.values()))
            self._runner = runner.__enter__()
        strip = Strip() if order.strip else None
        record = self._runner.play(order.job, self._variants[order.job.variant], strip)
        picture = _bytes(strip, Path(order.strip).suffix) if strip is not None else b""
        return Played(replace(record, strip=order.strip if picture else ""), picture)

    def close(self) -> None:
        """End what the runner had open."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.__exit__(None, None, None)


def _bytes(strip: Strip, suffix: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="vla_ros-") as folder:
        path = Path(folder) / f"strip{suffix}"
        return path.read_bytes() if strip.save(path) else b""
