"""Demonstrations as rows of a LeRobotDataset: what LeRobot has names for, and the rest beside it.

The columns ``demo.*`` are what only training here needs, so that the way back loses nothing
(:mod:`vla_ros_lab.train.imports`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.core.action_space import END_EFFECTOR_DELTA
from vla_ros.core.errors import UserError
from vla_ros.core.types import ACTION_DIM
from vla_ros.data.lerobot.dataset import ACTION, STATE, Columns, DatasetColumn, DatasetRow
from vla_ros.data.lerobot.wire import Array
from vla_ros.sim.env import AGENTVIEW, WRIST
from vla_ros_lab.train.demonstrations import (
    ATTRIBUTES,
    BODIES,
    SetInfo,
    Track,
    common_info,
    own_states,
    read_images,
    read_tracks,
)
from vla_ros_lab.train.units import to_physical

#: our cameras' names -> those in the data set, which `camera_map` and `policy: lerobot` know
CAMERAS = {AGENTVIEW: "main", WRIST: "wrist"}
#: The state of demonstrations whose poses were kept is the one that the policy node gives a policy
#: of eight values (:func:`~vla_ros.runtime.control.observation.libero_oft`), m and rad; of others
#: the rotation is missing.
STATE_NAMES = ("x", "y", "z", "rx", "ry", "rz", "finger_left", "finger_right")
UNPOSED_NAMES = tuple(name for name in STATE_NAMES if not name.startswith("r"))
EXECUTED, LABELS, POSES, PIXELS = (
    "demo.executed", "demo.labels", "demo.poses", "demo.pixels.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrackArray:
    """A ``column`` that LeRobot has no name for: an ``attribute`` of a track, of a ``camera`` or
    "", its rows of ``width`` numbers one behind the other; ``names`` of them all."""

    column: str
    attribute: str
    width: int
    names: tuple[str, ...]
    camera: str = ""


def arrays_of(info: SetInfo, posed: bool) -> list[TrackArray]:
    """The arrays of a data set."""
    action, labels = END_EFFECTOR_DELTA.names, len(info.instructions) * ACTION_DIM
    found = [
        TrackArray(EXECUTED, "executed", ACTION_DIM, action),
        TrackArray(LABELS, "labels", ACTION_DIM, _numbered("label", labels)),
    ]
    if posed:
        found.append(TrackArray(POSES, "poses", 7, _numbered("pose", len(BODIES) * 7)))
    names = tuple(f"{name}_{axis}" for name in info.objects for axis in "xy")
    for camera in info.cameras if info.objects else ():
        found.append(TrackArray(PIXELS + CAMERAS[camera], "pixels", 2, names, camera))
    return found


class ShardRows:
    """Rows of shards. ``actions`` are m, rad and an opening of 0..1, as a policy's.

    UserError: the shards do not belong together.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self.info = common_info(paths)
        self._tracks = [read_tracks(path) for path in paths]
        self._flat = [track for tracks in self._tracks for track in tracks]
        if not self._flat:
            raise UserError(f"{paths[0].parent} has no demonstration")
        self._posed = all(track.posed for track in self._flat)
        self._arrays = arrays_of(self.info, self._posed)

    def __len__(self) -> int:
        return sum(map(len, self._flat))

    @property
    def episodes(self) -> int:
        return len(self._flat)

    def columns(self, fps: int = 0) -> Columns:
        """Columns of the data set; ``fps`` instead of the rate of its actions."""
        info = self.info
        numbers = [
            DatasetColumn(ACTION, END_EFFECTOR_DELTA.names),
            DatasetColumn(STATE, STATE_NAMES if self._posed else UNPOSED_NAMES),
        ]
        numbers += [DatasetColumn(one.column, one.names) for one in self._arrays]
        size = (info.image_size, info.image_size)
        cameras = {CAMERAS[camera]: size for camera in info.cameras}
        return Columns(fps or round(info.action_rate_hz), cameras, tuple(numbers))

    def note(self) -> dict[str, Any]:
        """Content of meta/vla_ros.json, for the way back."""
        episodes = [
            {name: getattr(track, name) for name in ATTRIBUTES if name != "instruction"}
            for track in self._flat
        ]
        return {"set": asdict(self.info), "episodes": episodes}

    def rows(self) -> Iterator[DatasetRow]:
        """Every frame, a demonstration after the other."""
        episode = 0
        for path, tracks in zip(self._paths, self._tracks, strict=True):
            films = [read_images(path, camera) for camera in self.info.cameras]
            for track in tracks:
                images = {
                    CAMERAS[camera]: next(film)
                    for camera, film in zip(self.info.cameras, films, strict=True)
                }
                numbers = self._numbers(track)
                for i in range(len(track)):
                    now = {name: frames[i] for name, frames in images.items()}
                    values = {name: array[i] for name, array in numbers.items()}
                    yield DatasetRow(episode, track.instruction, now, values)
                episode += 1

    def _numbers(self, track: Track) -> Mapping[str, Array]:
        """Columns [T, D] of one demonstration, float32."""
        states = own_states(track.poses, track.gripper_states) if self._posed else None
        rotation = np.zeros((len(track), 0)) if states is None else states[:, 3:6]
        found: dict[str, Array] = {
            ACTION: to_physical(track.actions.astype(np.float64), np.array(self.info.scale)),
            STATE: np.concatenate((track.ee_pos, rotation, track.gripper_states), 1),
        }
        for one in self._arrays:
            array = getattr(track, one.attribute)
            rows = array[one.camera] if one.camera else array
            found[one.column] = rows.reshape(len(track), -1)
        return {name: array.astype(np.float32) for name, array in found.items()}


def _numbered(word: str, count: int) -> tuple[str, ...]:
    return tuple(f"{word}_{i}" for i in range(count))
