"""LeRobotDatasets as a run's data: made into shards once, in the run's folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from vla_ros.errors import UserError
from vla_ros.lerobot_data.process import python_of
from vla_ros.lerobot_data.read import is_dataset
from vla_ros.lerobot_data.shards_in import ImportOptions, import_shards
from vla_ros.train.data.shards import read_info, shards


class Shown(Protocol):
    """Where progress is shown."""

    def say(self, text: str) -> None: ...

    def update(self, kind: str, text: str, done: int = 0, total: int = 0) -> None: ...


def import_data(folders: Sequence[Path], out: Path, shown: Shown) -> tuple[list[Path], bool]:
    """The folders of ``--data``, shards made of the LeRobotDatasets among them; and whether there
    is a set from elsewhere, of which its own sentences are all that is known. UserError."""
    found = [imported(one, out, shown) if is_dataset(one) else one for one in folders]
    return found, any(map(_from_elsewhere, found))


def _from_elsewhere(folder: Path) -> bool:
    try:
        return read_info(shards(folder)[0]).own_sentence
    except UserError:
        return False  # the training says what is wrong with it, once its options are right


def imported(dataset: Path, out: Path, shown: Shown) -> Path:
    """The shards of ``dataset`` in the run's folder ``out``, made where they are not there yet.

    UserError: it cannot be read, or something must be said first, with `vla-ros export --shards`.
    """
    # Named by what the data set says it is, so that a run that goes on finds what it made.
    told = str(dataset.absolute()).encode() + (dataset / "meta" / "info.json").read_bytes()
    made = out / f"imported-{hashlib.sha256(told).hexdigest()[:8]}"
    if made.is_dir():
        return made
    try:
        done = import_shards(
            python_of(),
            dataset,
            made,
            ImportOptions(),
            lambda frames, total: shown.update("import", str(dataset), frames, total),
        )
    except UserError as error:
        raise UserError(f"{error} (`vla-ros export --shards` takes options)") from None
    for note in done.notes:
        shown.say(note)
    return made
