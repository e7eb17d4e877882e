"""The directory of an evaluation: one line an episode, safe against any end. One writer.

``run.json``: setup, variants and the commands that played it; ``episodes.jsonl``: the records;
``strips/``: pictures. Two evaluations never mix: a directory takes more episodes and variants of
the same setup and refuses another.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from vla_ros.errors import UserError
from vla_ros.evaluation.records import (
    Record,
    Setup,
    Variant,
    record_from_json,
    setup_from_json,
    to_json,
    variant_from_json,
)

RUN, EPISODES = "run.json", "episodes.jsonl"


class StoreError(UserError, ValueError):
    """A directory that cannot be used: one line that says why."""


class Store:
    """An evaluation on disk. Entering claims the directory; leaving closes it.

    ``records`` are those there are, in the order they were written, ``commands`` the different
    commands that played it, ``command`` being this one.
    """

    def __init__(
        self, directory: Path, setup: Setup, variants: Iterable[Variant], command: str = ""
    ) -> None:
        self._directory = directory
        self.commands: list[str] = [command] if command else []
        self._setup = setup
        self._variants = {variant.label: variant for variant in variants}
        self._file: BinaryIO | None = None
        self.records: list[Record] = []

    def __enter__(self) -> Store:
        """Raises StoreError: another setup, another process writes, or a damaged file."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._file = (self._directory / EPISODES).open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._claim()
            self.records = self._resume(self._file)
        except BlockingIOError:
            self._close()
            raise StoreError(f"{self._directory}: another evaluation is writing there") from None
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    @property
    def done(self) -> set[str]:
        """Keys of the jobs that have a record."""
        return {record.job.key() for record in self.records}

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Those of this run and of the runs before, in the order they came."""
        return tuple(self._variants.values())

    def add(self, record: Record) -> None:
        """Write a record; it is on the disk when this returns."""
        assert self._file is not None, "enter the store first"
        line = json.dumps(to_json(record), allow_nan=False) + "\n"
        self._file.write(line.encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.records.append(record)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _claim(self) -> None:
        """Write the run's file, or check that it is of the same evaluation."""
        path = self._directory / RUN
        if path.exists():
            setup, variants, commands = _read(path)
            if said := _differences(to_json(setup), to_json(self._setup)):
                raise StoreError(f"{self._directory} holds an evaluation with {said}")
            for label, variant in self._variants.items():
                before = variants.get(label, variant)
                if said := _differences(to_json(before), to_json(variant)):
                    raise StoreError(f"{self._directory} holds '{label}' with {said}")
            self._variants = {**variants, **self._variants}
            self.commands = list(dict.fromkeys([*commands, *self.commands]))
        content = {
            "setup": to_json(self._setup),
            "variants": [to_json(variant) for variant in self._variants.values()],
            "commands": self.commands,
        }
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(content, indent=1) + "\n")
        scratch.replace(path)

    def _resume(self, file: BinaryIO) -> list[Record]:
        """The records there are; a last line that was cut off is taken away."""
        file.seek(0)
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
        return _parse(content[:whole], self._directory / EPISODES)


def read_run(directory: Path) -> tuple[Setup, dict[str, Variant]]:
    """Setup and variants of an evaluation; StoreError."""
    setup, variants, _ = _read(directory / RUN)
    return setup, variants


def _read(path: Path) -> tuple[Setup, dict[str, Variant], list[str]]:
    try:
        content = json.loads(path.read_text())
        variants = [variant_from_json(one) for one in content["variants"]]
        setup = setup_from_json(content["setup"])
        return setup, {v.label: v for v in variants}, content["commands"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def read_records(directory: Path) -> list[Record]:
    """The records of an evaluation, also while it is written; StoreError."""
    path = directory / EPISODES
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    return _parse(content[: content.rfind(b"\n") + 1], path)


def _parse(content: bytes, path: Path) -> list[Record]:
    records: dict[str, Record] = {}
    for number, line in enumerate(content.splitlines(), 1):
        try:
            record = record_from_json(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path}, line {number} is damaged: {error}") from error
        records.setdefault(record.job.key(), record)
    return list(records.values())


def _differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What ``there`` has and ``wanted`` has otherwise, in words; "" where they agree."""
    return ", ".join(
        f"{name} {there[name]!r} (now {wanted[name]!r})"
        for name in sorted(there)
        if there[name] != wanted[name]
    )
