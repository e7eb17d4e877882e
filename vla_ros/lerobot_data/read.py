"""A LeRobotDataset's rows, by LeRobot's own code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_ros.errors import UserError
from vla_ros.lerobot_data.process import LeRobot
from vla_ros.lerobot_data.rows import IMAGES, Row
from vla_ros.lerobot_data.write import OURS

_INFO = Path("meta") / "info.json"


@dataclass(frozen=True, slots=True)
class Feature:
    """A column of somebody's data set. ``names``: of its numbers, or () where it has none."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def image(self) -> bool:
        return self.dtype in ("image", "video")


@dataclass(frozen=True, slots=True)
class Info:
    """What a data set says about itself. ``ours``: meta/vla_ros.json, {} where another wrote it."""

    fps: float
    episodes: int
    frames: int
    features: Mapping[str, Feature]
    ours: Mapping[str, Any]

    @property
    def cameras(self) -> tuple[str, ...]:
        return tuple(name for name, one in self.features.items() if one.image)


def is_dataset(folder: Path) -> bool:
    """Whether a folder is a LeRobotDataset, of whatever version."""
    return (folder / _INFO).is_file()


class Reader:
    """An open data set: ask ``info`` first, then take the ``rows``. A context manager.

    UserError: LeRobot cannot read it, and what it said.
    """

    def __init__(self, python: str, folder: Path) -> None:
        if not is_dataset(folder):
            raise UserError(f"{folder} is no LeRobotDataset: it has no {_INFO}")
        self._lerobot = LeRobot(python)
        self._folder = folder

    def __enter__(self) -> Reader:
        self.info = self._open()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._lerobot.close(0.0)

    def _open(self) -> Info:
        try:
            self._lerobot.ask("read", {"root": str(self._folder.absolute())})
            said = self._lerobot.hear("meta").fields
        except UserError as error:
            self._lerobot.close(0.0)
            raise UserError(f"{self._folder}: {error}") from None
        ours = self._folder / OURS
        return Info(
            fps=float(said["fps"]),
            episodes=int(said["episodes"]),
            frames=int(said["frames"]),
            features={name: _feature(name, one) for name, one in said["features"].items()},
            ours=json.loads(ours.read_text(encoding="utf-8")) if ours.is_file() else {},
        )

    def rows(self, names: tuple[str, ...]) -> Iterator[Row]:
        """Every frame, with these columns, in the order of the data set."""
        self._lerobot.ask("go", {"features": list(names)})
        while (message := self._lerobot.hear("frame", "done")).kind == "frame":
            images = {n: a for n, a in message.arrays.items() if self.info.features[n].image}
            numbers = {n: a for n, a in message.arrays.items() if n not in images}
            episode, task = int(message.fields["episode"]), str(message.fields["task"])
            yield Row(episode, task, images, numbers)


def _feature(name: str, said: Mapping[str, Any]) -> Feature:
    names = said.get("names") or ()
    if isinstance(names, Mapping):  # older sets: {"motors": [...]}
        names = [
            one
            for group in names.values()
            for one in (group if isinstance(group, list) else [group])
        ]
    return Feature(name, str(said["dtype"]), tuple(said["shape"]), tuple(map(str, names)))


def short(camera: str) -> str:
    """A camera without LeRobot's prefix."""
    return camera.removeprefix(IMAGES)
