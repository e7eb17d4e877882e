"""What goes into a data set: its columns, its rows, and where its episodes end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vla_ros.core import Image
from vla_ros.lerobot_data.wire import Array

IMAGES = "observation.images."
STATE = "observation.state"
ACTION = "action"
#: Neither begins with "observation" or "action": LeRobot's policies take those for inputs.
OBSERVATION_AGE = "timing.observation_age_s"
EVIDENCE_AGE = "timing.evidence_age_s"


@dataclass(frozen=True, slots=True)
class Column:
    """Numbers of one kind: float32 [D], a name each."""

    name: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Columns:
    """``cameras``: name -> (height, width). ``fps``: rows a second, which LeRobot wants whole."""

    fps: int
    cameras: Mapping[str, tuple[int, int]]
    numbers: tuple[Column, ...]

    def features(self, videos: bool) -> dict[str, Any]:
        """As LeRobotDataset.create takes them."""
        kind, axes = ("video" if videos else "image"), ["height", "width", "channels"]
        found: dict[str, Any] = {
            IMAGES + name: {"dtype": kind, "shape": [*size, 3], "names": axes}
            for name, size in self.cameras.items()
        }
        for one in self.numbers:
            found[one.name] = {
                "dtype": "float32",
                "shape": [len(one.names)],
                "names": list(one.names),
            }
        return found


@dataclass(frozen=True, slots=True)
class Row:
    """One frame. ``episode`` counts up; a row with another number begins another episode."""

    episode: int
    task: str
    images: Mapping[str, Image] = field(default_factory=dict)
    numbers: Mapping[str, Array] = field(default_factory=dict)

    def arrays(self) -> dict[str, Array]:
        """By the names of the columns."""
        return {**{IMAGES + name: image for name, image in self.images.items()}, **self.numbers}
