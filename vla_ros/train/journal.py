"""The loss curve of a run: one line of JSON a step, in step with the saved state."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

JOURNAL_FILE = "log.jsonl"


@dataclass(frozen=True, slots=True)
class Entry:
    """Losses of the batch of one step; ``step`` counts from 0.

    ``error``: mean distance of the likeliest action token from the label, in [-1, 1] units,
    the tokens before it given.
    """

    step: int
    loss: float
    patch_loss: float
    place_loss: float
    error: float
    rate: float


class Journal:
    """Appends entries. Opened at a step, it forgets whatever came after the saved state."""

    def __init__(self, directory: Path, step: int) -> None:
        path = directory / JOURNAL_FILE
        kept = [entry for entry in read_journal(directory) if entry.step < step]
        scratch = path.with_suffix(".tmp")
        scratch.write_text("".join(_line(entry) for entry in kept))
        scratch.replace(path)
        self._stream = path.open("a", buffering=1)

    def add(self, entry: Entry) -> None:
        self._stream.write(_line(entry))

    def close(self) -> None:
        self._stream.close()


def read_journal(directory: Path) -> list[Entry]:
    """Every whole line of a run's journal."""
    path = directory / JOURNAL_FILE
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]  # without its end a line is not whole
    return [Entry(**json.loads(line)) for line in lines]


def _line(entry: Entry) -> str:
    return json.dumps(asdict(entry)) + "\n"
