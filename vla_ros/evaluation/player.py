"""Plays jobs one by one wherever it is: in this process, in another, on another machine."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from vla_ros.evaluation.clips import LIMIT, clip_path, save_clip
from vla_ros.evaluation.records import Job, Record, Setup, Variant
from vla_ros.evaluation.runner import Runner
from vla_ros.evaluation.spoken import write_spoken
from vla_ros.evaluation.strips import Strip

#: makes a runner; a function of a module, so that it can be sent to another process
MakeRunner = Callable[[Setup, tuple[Variant, ...]], Runner]


@dataclass(frozen=True, slots=True)
class Order:
    """A job, where its strip of frames belongs in the evaluation's directory, or "", the sentence
    that the policy is told, and whether a failure is to be kept as a clip."""

    job: Job
    strip: str = ""
    sentence: str = ""
    clip: bool = False


@dataclass(frozen=True, slots=True)
class Played:
    """A record, and its strip and clip as the bytes of files, to be written by whoever has the
    disk."""

    record: Record
    strip: bytes = b""
    clip: bytes = b""


def keep(played: Played, directory: Path, tokens: bool = False) -> Record:
    """Write the pictures, and with ``tokens`` what was said, into the evaluation's directory.

    Returns the record, which no longer carries what was said. Of clips the first ones are kept.
    """
    clips = directory / clip_path(played.record.job)
    if played.clip and clips.parent.is_dir() and len(list(clips.parent.iterdir())) >= LIMIT:
        played = replace(played, record=replace(played.record, clip=""), clip=b"")
    for name, content in (
        (played.record.strip, played.strip),
        (played.record.clip, played.clip),
    ):
        if content:
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    if tokens:
        write_spoken(played.record, directory)
    return replace(played.record, said=(), ages=())


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
        strip = Strip() if order.strip or order.clip else None
        record = self._runner.play(order.job, self._variants[order.job.variant], strip)
        picture = clip = b""
        if strip is not None and order.strip:
            picture = _bytes(strip.save, Path(order.strip).suffix)
        if strip is not None and order.clip and not record.success:
            make = functools.partial(save_clip, strip.frames, record.ages, order.sentence)
            clip = _bytes(make, ".webp")
        record = replace(
            record,
            sentence=order.sentence,
            strip=order.strip if picture else "",
            clip=clip_path(order.job) if clip else "",
        )
        return Played(record, picture, clip)

    def close(self) -> None:
        """End what the runner had open."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.__exit__(None, None, None)


def _bytes(save: Callable[[Path], bool], suffix: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="vla_ros-") as folder:
        path = Path(folder) / f"picture{suffix}"
        return path.read_bytes() if save(path) else b""
