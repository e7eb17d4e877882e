"""Several bags as the rows of one data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from vla_ros.lerobot_data.bag import BagOptions, BagRows
from vla_ros.lerobot_data.pairing import said
from vla_ros.lerobot_data.rows import Columns, Row
from vla_ros.replay.bag import Bag
from vla_ros.replay.errors import BagError


class Bags:
    """Open bags, judged one by one. A context manager. BagError: one of them is no good, or they
    do not have the same columns. ``dropped``: commands that make no row, by the reason."""

    def __init__(self, paths: Sequence[Path], options: BagOptions) -> None:
        self._open = ExitStack()
        self.dropped: Counter[str] = Counter()
        self._notes: list[str] = []
        self._bags: list[BagRows] = []
        try:
            for path in paths:
                bag = self._open.enter_context(Bag(path))
                rows = BagRows(bag, options)
                self._bags.append(rows)
                self.dropped += rows.dropped
                self._notes += bag.notes
            self._columns = self._common(paths)
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> Bags:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.close()

    def __len__(self) -> int:
        return sum(map(len, self._bags))

    @property
    def episodes(self) -> int:
        return sum(bag.episodes for bag in self._bags)

    def columns(self) -> Columns:
        """Those that all of them have."""
        return self._columns

    def notes(self) -> list[str]:
        """What the user should know, one line each."""
        return [*self._notes, *said(self.dropped)]

    def rows(self) -> Iterator[Row]:
        """A bag after the other, their episodes counted through."""
        before = 0
        for bag in self._bags:
            for row in bag.rows():
                yield replace(row, episode=row.episode + before)
            before += bag.episodes

    def _common(self, paths: Sequence[Path]) -> Columns:
        found = [bag.columns() for bag in self._bags]
        for path, columns in zip(paths, found, strict=True):
            if columns != found[0]:
                raise BagError(
                    f"{path} does not fit {paths[0]}: {_words(columns)}, there {_words(found[0])};"
                    " --fps makes their rates one"
                )
        return found[0]


def _words(columns: Columns) -> str:
    cameras = [f"{name} {w}x{h}" for name, (h, w) in columns.cameras.items()]
    numbers = [f"{one.name} [{len(one.names)}]" for one in columns.numbers]
    return ", ".join([f"{columns.fps} fps", *cameras, *numbers])
