"""The strips of frames of a report, embedded."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from vla_ros.evaluation.plan import group_of
from vla_ros.evaluation.records import Record
from vla_ros.evaluation.report.rows import difficulty
from vla_ros.evaluation.report.tables import kind_of, words

_TYPES = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png"}
_LARGEST = 1_000_000  # bytes of a picture


def strips(directory: Path, records: Sequence[Record], other: str) -> str:
    """One picture a task, by difficulty; "" when there is none.

    Pictures are read from inside ``directory`` only. One that is missing is left out.
    """
    with_strip = [record for record in records if record.strip]
    with_strip.sort(key=lambda r: (difficulty(r.job.task), r.job.number))
    several = len({group_of(r.job.task, other) for r in with_strip}) > 1
    parts: list[str] = []
    seen: set[str] = set()
    group = ""
    for record in with_strip:
        source = _embedded(directory, record.strip)
        if not source or record.job.task in seen:
            continue
        seen.add(record.job.task)
        if several and group != (group := group_of(record.job.task, other)):
            parts.append(f"<h3>{words(group)}</h3>")
        parts.append(_figure(record, source))
    return f'<div class="strips">{"".join(parts)}</div>\n' if parts else ""


def _figure(record: Record, source: str) -> str:
    end = "solved" if record.success else f"not solved: {words(kind_of(record.reason))}"
    said = f" “{words(record.job.instruction)}”" if record.job.instruction else ""
    name = words(record.job.task)
    return (
        f'<figure><img src="{source}" alt="frames of {name}"><figcaption><b>{name}</b>{said},'
        f" initial state {record.job.initial_state}: {end}, {record.steps} steps"
        "</figcaption></figure>\n"
    )


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
