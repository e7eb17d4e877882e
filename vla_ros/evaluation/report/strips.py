"""The strips of frames of a report, embedded."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vla_ros.evaluation.plan import group_of
from vla_ros.evaluation.records import Record
from vla_ros.evaluation.report.failures import kind_of
from vla_ros.evaluation.rows import difficulty, plain

CLIPS = 24  # at most in one page
_TYPES = {".webp": "image/webp", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png"}
_LARGEST = 1_000_000  # bytes of a picture


@dataclass(frozen=True, slots=True)
class Picture:
    """One strip or clip, as a data URL, and the words below it. ``name``: the episode's, whole.
    ``heading``: of a group that it begins."""

    name: str
    source: str
    task: str
    instruction: str
    said: str
    heading: str = ""


def strips(directory: Path, records: Sequence[Record], other: str) -> list[Picture]:
    """One picture a task, by difficulty.

    Pictures are read from inside ``directory`` only. One that is missing is left out.
    """
    with_strip = [record for record in records if record.strip]
    with_strip.sort(key=lambda r: (difficulty(r.job.task), r.job.number))
    several = len({group_of(r.job.task, other) for r in with_strip}) > 1
    found: list[Picture] = []
    seen: set[str] = set()
    group = ""
    for record in with_strip:
        source = _embedded(directory, record.strip)
        if not source or record.job.task in seen:
            continue
        seen.add(record.job.task)
        own = group_of(record.job.task, other) if several else ""
        found.append(_picture(record, source, plain(own) if own != group else ""))
        group = own
    return found


def clips(directory: Path, records: Sequence[Record]) -> list[Picture]:
    """Failed episodes: the first of every variant and task before the second of any."""
    failed = sorted((r for r in records if r.clip and not r.success), key=lambda r: r.job.number)
    turns: Counter[tuple[str, str]] = Counter()
    ordered: list[tuple[int, Record]] = []
    for record in failed:
        kind = (record.job.variant, record.job.task)
        ordered.append((turns[kind], record))
        turns[kind] += 1
    ordered.sort(key=lambda pair: pair[0])
    found: list[Picture] = []
    for _, record in ordered:
        if len(found) < CLIPS and (source := _embedded(directory, record.clip)):
            picture = _picture(record, source, "")
            found.append(replace(picture, said=f"{plain(record.job.variant)}, {picture.said}"))
    return found


def _picture(record: Record, source: str, heading: str) -> Picture:
    end = "solved" if record.success else f"not solved: {plain(kind_of(record.reason))}"
    said = f"initial state {record.job.initial_state}: {end}, {record.steps} steps"
    job = record.job
    told = record.sentence or job.instruction
    return Picture(job.key(), source, plain(job.task), plain(told), said, heading)


def _embedded(directory: Path, name: str) -> str:
    """The picture as a data URL; "" when it is missing, too large, outside, or no picture."""
    path = (directory / name).resolve()
    kind = _TYPES.get(path.suffix.lower())
    if kind is None or not path.is_relative_to(directory.resolve()):
        return ""
    try:
        if path.stat().st_size > _LARGEST:
            return ""
        content = path.read_bytes()
    except OSError:
        return ""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
