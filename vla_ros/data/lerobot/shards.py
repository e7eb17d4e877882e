"""A LeRobotDataset as our shards, for training: our own set again, or somebody else's.

Of somebody else's set it is known what was done for its own sentence, and nothing else: where
objects are and what other sentences would have asked for is not (``SetInfo.own_sentence``).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.core import ACTION_DIM, GRIPPER, Image
from vla_ros.engine.vision.images import fit
from vla_ros.errors import UserError
from vla_ros.lerobot_data.features import action_of, cameras_of
from vla_ros.lerobot_data.read import Info, Reader
from vla_ros.lerobot_data.rows import ACTION, IMAGES, STATE, Row
from vla_ros.lerobot_data.shards_out import CAMERAS, EXECUTED, LABELS, PIXELS, POSES, STATE_NAMES
from vla_ros.lerobot_data.wire import Array
from vla_ros.train.data.shards import (
    BODIES,
    EXPERT,
    SUFFIX,
    Demonstration,
    SetInfo,
    Track,
    write_shard,
)
from vla_ros.train.data.units import to_environment

_PER_SHARD = 20
ROLES = ("image", "wrist_image", "action")


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """``features``: role (see ROLES) -> feature. ``gripper``: values of closed and open.
    ``scale`` [6]: m and rad of an action of 1, where actions are in a controller's units; None:
    they are m and rad already. ``image_size``: pixels a side of what is kept."""

    features: Mapping[str, str] = field(default_factory=dict)
    gripper: tuple[float, float] = (0.0, 1.0)
    scale: tuple[float, ...] | None = None
    image_size: int = 128


@dataclass(frozen=True, slots=True)
class Imported:
    """``notes``: what the user should know about it, one line each."""

    demonstrations: int
    frames: int
    notes: tuple[str, ...]


def import_shards(
    python: str,
    dataset: Path,
    out: Path,
    options: ImportOptions,
    shown: Callable[[int, int], None],
) -> Imported:
    """Write the shards of ``dataset`` into ``out``; ``shown`` (frames, of how many) is told.

    UserError: no camera, an action that is not seven numbers, values out of range: what is there.
    """
    with Reader(python, dataset) as reader:
        info = reader.info
        own = "set" in info.ours
        source: _Ours | _Theirs = _Ours(info) if own else _Theirs(info, options, dataset)
        frames = 0

        def counted() -> Iterator[Row]:
            nonlocal frames
            for row in reader.rows(source.names):
                frames += 1
                shown(frames, info.frames)
                yield row

        demonstrations = [source.demonstration(rows) for rows in _episodes(counted())]
    finished, described = source.finish(demonstrations)
    scratch = out.with_name(f".{out.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    for number, first in enumerate(range(0, len(finished), _PER_SHARD)):
        path = scratch / f"shard-{number:04d}{SUFFIX}"
        write_shard(path, described, finished[first : first + _PER_SHARD])
    scratch.rename(out)  # whole, or not at all
    return Imported(len(finished), frames, source.notes)


def _episodes(rows: Iterator[Row]) -> Iterator[list[Row]]:
    gathered: list[Row] = []
    for row in rows:
        if gathered and row.episode != gathered[0].episode:
            yield gathered
            gathered = []
        gathered.append(row)
    if gathered:
        yield gathered


def _column(rows: Sequence[Row], name: str) -> Array:
    return np.stack([row.numbers[name] for row in rows]).astype(np.float32)


class _Ours:
    """A set that `vla-ros export` made of demonstrations: everything is there."""

    notes: tuple[str, ...] = ()

    def __init__(self, info: Info) -> None:
        raw = info.ours["set"]
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
        self._set = SetInfo(**values)
        self._episodes: list[dict[str, Any]] = info.ours["episodes"]
        self._done = 0
        self._posed = POSES in info.features
        images = [IMAGES + CAMERAS[camera] for camera in self._set.cameras]
        self._pixels = [c for c in self._set.cameras if PIXELS + CAMERAS[c] in info.features]
        numbers = [ACTION, STATE, EXECUTED, LABELS, *([POSES] if self._posed else [])]
        self.names = (*images, *numbers, *(PIXELS + CAMERAS[c] for c in self._pixels))
        if missing := [name for name in self.names if name not in info.features]:
            raise UserError(f"the data set lacks {missing[0]}, which `vla-ros export` wrote")

    def demonstration(self, rows: Sequence[Row]) -> Demonstration:
        """Of one episode."""
        said, count = self._episodes[self._done], len(rows)
        self._done += 1
        state = _column(rows, STATE)
        scale = np.array(self._set.scale)
        track = Track(
            instruction=rows[0].task,
            actions=to_environment(_column(rows, ACTION).astype(np.float64), scale).astype(
                np.float32
            ),
            labels=_column(rows, LABELS).reshape(count, -1, ACTION_DIM),
            executed=_column(rows, EXECUTED),
            ee_pos=state[:, :3],
            gripper_states=state[:, 3 : len(STATE_NAMES)],
            poses=_column(rows, POSES).reshape(count, -1, 7)
            if self._posed
            else np.empty((0, len(BODIES), 7), np.float32),
            pixels={
                c: _column(rows, PIXELS + CAMERAS[c]).reshape(count, -1, 2) for c in self._pixels
            },
            **said,
        )
        images = {c: np.stack([row.images[IMAGES + CAMERAS[c]] for row in rows])
                  for c in self._set.cameras}  # fmt: skip
        return Demonstration(track, images)

    def finish(self, found: list[Demonstration]) -> tuple[list[Demonstration], SetInfo]:
        """Nothing is left to be done."""
        return found, self._set


class _Theirs:
    """Somebody else's set: images, an action of seven numbers and a sentence."""

    def __init__(self, info: Info, options: ImportOptions, dataset: Path) -> None:
        self._options, self._rate, self._folder = options, info.fps, dataset
        self._cameras = cameras_of(info, options.features, dataset)
        self._action = action_of(info, options.features, dataset)
        self.names = (*self._cameras.values(), self._action)
        notes = [f"{role} is {name}" for role, name in self._cameras.items()]
        unused = [n for n in info.features if n not in self.names]
        if unused:
            notes.append(
                f"not used, since no policy of `vla-ros train` takes it: {', '.join(unused)}"
            )
        self.notes: tuple[str, ...] = tuple(notes)

    def demonstration(self, rows: Sequence[Row]) -> Demonstration:
        """Of one episode; actions are m, rad, 0..1 until all are known."""
        count = len(rows)
        sentence = rows[0].task.strip()
        if not sentence:
            raise UserError(f"{self._folder}: episode {rows[0].episode} has no task sentence")
        track = Track(
            task=sentence,
            instruction=sentence,
            seed=0,
            initial_state=0,
            success=True,
            source=EXPERT,
            actions=self._physical(_column(rows, self._action)),
            labels=np.empty((0, 0, ACTION_DIM), np.float32),
            executed=np.empty((0, ACTION_DIM), np.float32),
            ee_pos=np.zeros((count, 3), np.float32),
            gripper_states=np.zeros((count, 2), np.float32),
            poses=np.empty((0, len(BODIES), 7), np.float32),
            pixels={c: np.zeros((count, 0, 2), np.float32) for c in self._cameras},
        )
        size = self._options.image_size
        images: dict[str, Image] = {
            camera: np.stack([_square(row.images[name], size) for row in rows])
            for camera, name in self._cameras.items()
        }
        return Demonstration(track, images)

    def _physical(self, actions: Array) -> Array:
        closed, opened = self._options.gripper
        out = actions.astype(np.float64)
        out[:, GRIPPER] = (out[:, GRIPPER] - closed) / (opened - closed)
        if self._options.scale is not None:
            out[:, :GRIPPER] *= self._options.scale
        bad = (out[:, GRIPPER] < -0.05) | (out[:, GRIPPER] > 1.05)
        if not np.isfinite(out).all() or bad.any():
            low, high = actions[:, GRIPPER].min(), actions[:, GRIPPER].max()
            raise UserError(
                f"{self._folder}: the action's last number, the gripper, is {low:g} to {high:g}:"
                " say what closed and open are, such as --gripper=1..-1"
            )
        out[:, GRIPPER] = out[:, GRIPPER].clip(0.0, 1.0)
        return out

    def finish(self, found: list[Demonstration]) -> tuple[list[Demonstration], SetInfo]:
        """All in [-1, 1] of one scale, with the labels of their own sentences."""
        scale = self._scale([one.track.actions for one in found])
        if self._options.scale is None:
            self.notes += (
                f"actions taken for m and rad a period: up to {scale[0]:.3g} m, {scale[3]:.3g} rad;"
                " in a controller's units? say --action-scale",
            )
        closed, opened = self._options.gripper
        self.notes += (f"gripper: {closed:g} is closed, {opened:g} open (--gripper)",)
        sentences = tuple(sorted({one.track.instruction for one in found}))
        described = SetInfo(
            environment="lerobot",
            image_size=self._options.image_size,
            cameras=tuple(self._cameras),
            objects=(),
            scale=tuple(scale.tolist()),
            control_rate_hz=self._rate,
            instructions=sentences,
            own_sentence=True,
        )
        return [_labelled(one, scale, sentences) for one in found], described

    def _scale(self, actions: Sequence[Array]) -> Array:
        """Physical size of an action of 1: given, or the largest that occurs along any axis."""
        if self._options.scale is not None:
            return np.array(self._options.scale)
        largest = np.abs(np.concatenate(actions)[:, :GRIPPER]).max(0)
        place, turn = float(largest[:3].max()), float(largest[3:].max())
        return np.array([place or 1.0] * 3 + [turn or 1.0] * 3)


def _labelled(one: Demonstration, scale: Array, sentences: Sequence[str]) -> Demonstration:
    track = one.track
    actions = to_environment(track.actions.astype(np.float64), scale).astype(np.float32)
    labels = np.zeros((len(actions), len(sentences), ACTION_DIM), np.float32)
    labels[:, sentences.index(track.instruction)] = actions
    return replace(one, track=replace(track, actions=actions, labels=labels, executed=actions))


def _square(image: Image, size: int) -> Image:
    """As the policies here see a camera: stretched."""
    return fit(image, size, "resize-naive", (0, 0, 0))
