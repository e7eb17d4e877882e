"""A LeRobotDataset or a bag as our shards, for training: our own set again, or somebody else's.

Somebody else's set has the actions for its own instructions, and nothing else: neither where
objects are nor the actions for other instructions (``SetInfo.own_sentence``).
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.core.console import Progress
from vla_ros.core.errors import UserError
from vla_ros.core.types import ACTION_DIM, GRIPPER, Image
from vla_ros.data.lerobot.dataset import (
    ACTION,
    IMAGES,
    INTERVENTION,
    STATE,
    DatasetRow,
    Feature,
    Info,
    Reader,
    is_dataset,
    python_of,
)
from vla_ros.data.lerobot.wire import Array
from vla_ros.engine.io.images.preprocessor import fit
from vla_ros.sim.env import AGENTVIEW, WRIST
from vla_ros_lab.train.demonstrations import (
    Demonstration,
    SetInfo,
    Track,
    read_info,
    shard_path,
    shards,
    write_shard,
)
from vla_ros_lab.train.lerobot_rows import CAMERAS, POSES, arrays_of
from vla_ros_lab.train.units import to_environment

_HAND = ("wrist", "hand", "gripper")  # in the name of a camera that is there


def cameras_of(info: Info, given: Mapping[str, str], dataset: Path) -> dict[str, str]:
    """Our camera -> feature: those given; else the wrist's by its name and the first other.

    UserError: no image, or a feature that is none.
    """
    there = info.cameras
    if not there:
        raise UserError(f"{dataset} has no images: its features are {', '.join(info.features)}")
    wrists = [name for name in there if any(word in name.lower() for word in _HAND)]
    others = [name for name in there if name not in wrists]
    usual = {"image": (others or wrists)[0]}
    if others and wrists:
        usual["wrist_image"] = wrists[0]
    chosen = usual | {role: name for role, name in given.items() if role != "action"}
    for role, name in chosen.items():
        if name not in there:
            raise UserError(f"-r {role}={name}: {dataset} has the images {', '.join(there)}")
    roles = {"image": AGENTVIEW, "wrist_image": WRIST}
    return {camera: chosen[role] for role, camera in roles.items() if role in chosen}


def action_of(info: Info, given: Mapping[str, str], dataset: Path) -> str:
    """The action's feature. UserError: it is not there, or not seven numbers."""
    name = given.get("action", ACTION)
    if name not in info.features:
        raise UserError(
            f"{dataset} has no {name}: choose one with -r action=FEATURE; it has"
            f" {', '.join(info.features)}"
        )
    found = info.features[name]
    if found.shape != (ACTION_DIM,):
        names = f" ({' '.join(found.names)})" if found.names else ""
        raise UserError(
            f"{dataset}: {name} is {'x'.join(map(str, found.shape))} numbers{names};"
            " `vla-ros train` learns seven (an end effector's x y z rx ry rz and a gripper);"
            f" `vla-ros train --lerobot act --data {dataset}` learns any"
        )
    return name


_PER_SHARD = 20
ROLES = ("image", "wrist_image", "action")


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Reading of a set. ``features``: role (see ROLES) -> feature. ``gripper``: values of closed
    and open. ``scale`` [6]: m and rad of an action of 1, where actions are in a controller's units;
    None: they are m and rad already. ``image_size``: pixels a side of what is kept. ``known``: name
    and bounds [6] of the actions of the policy that is trained further on it; None: the set's
    own."""

    features: Mapping[str, str] = field(default_factory=dict)
    gripper: tuple[float, float] = (0.0, 1.0)
    scale: tuple[float, ...] | None = None
    image_size: int = 128
    known: tuple[str, tuple[float, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """Result of an import. ``notes``: what the user should know about it, one line each."""

    demonstrations: int
    frames: int
    notes: tuple[str, ...]


def import_shards(
    python: str,
    dataset: Path,
    out: Path,
    options: ImportOptions,
    progressed: Callable[[int, int], None],
) -> Imported:
    """Write the shards of ``dataset`` into ``out``; ``progressed`` gets frames, of how many.

    UserError: no camera, an action that is not seven numbers, values out of range: what is there.
    """
    with Reader(python, dataset) as reader:
        info = reader.info
        source: _OwnSet | _ForeignSet
        source = _OwnSet(info) if "set" in info.ours else _ForeignSet(info, options, dataset)
        return _written(source, reader.rows(source.names), info.frames, out, progressed)


def import_bag(
    path: Path, out: Path, options: ImportOptions, progressed: Callable[[int, int], None]
) -> Imported:
    """Write the shards of a bag, which needs no LeRobot.

    BagError, UserError: it makes no rows, or its actions are not seven numbers.
    """
    from vla_ros.data.bags import Bag
    from vla_ros.data.lerobot.from_bags import BagOptions, BagRows
    from vla_ros.data.lerobot.pairing import dropped_lines

    with Bag(path) as bag:
        rows = BagRows(bag, BagOptions())
        columns = rows.columns()
        features = {
            name: Feature(name, one["dtype"], tuple(one["shape"]), tuple(one["names"] or ()))
            for name, one in columns.features(videos=False).items()
        }
        source = _ForeignSet(
            Info(columns.fps, rows.episodes, len(rows), features, {}), options, path
        )
        found = (replace(row, images=row.arrays()) for row in rows.rows())
        done = _written(source, found, len(rows), out, progressed)
    return replace(done, notes=(*done.notes, *bag.notes, *dropped_lines(rows.dropped)))


def _written(
    source: _OwnSet | _ForeignSet,
    rows: Iterator[DatasetRow],
    total: int,
    out: Path,
    progressed: Callable[[int, int], None],
) -> Imported:
    def counted() -> Iterator[DatasetRow]:
        for number, row in enumerate(rows, 1):
            progressed(number, total)
            yield row

    episodes = groupby(counted(), lambda row: row.episode)
    demonstrations = [source.demonstration(list(of_one)) for _, of_one in episodes]
    finished, described = source.finish(demonstrations)
    scratch = out.with_name(f".{out.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    for number, first in enumerate(range(0, len(finished), _PER_SHARD)):
        write_shard(shard_path(scratch, number), described, finished[first : first + _PER_SHARD])
    scratch.rename(out)  # whole, or not at all
    return Imported(len(finished), sum(len(one.track) for one in finished), source.notes)


def _column(rows: Sequence[DatasetRow], name: str) -> Array:
    return np.stack([row.numbers[name] for row in rows]).astype(np.float32)


def _images(
    rows: Sequence[DatasetRow], features: Mapping[str, str], size: int = 0
) -> dict[str, Image]:
    """Images [T, size, size, 3] by camera, stretched, as the policies here see them; 0: as they
    are."""
    found = {}
    for camera, name in features.items():
        images = [row.images[name] for row in rows]
        if size:
            images = [fit(image, size, "resize-naive", (0, 0, 0)) for image in images]
        found[camera] = np.stack(images)
    return found


class _OwnSet:
    """A set that `vla-ros demonstrations` made: everything is there."""

    notes: tuple[str, ...] = ()

    def __init__(self, info: Info) -> None:
        self._set = SetInfo.from_json(info.ours["set"])
        self._episodes: Iterator[dict[str, Any]] = iter(info.ours["episodes"])
        self._images = {camera: IMAGES + CAMERAS[camera] for camera in self._set.cameras}
        self._arrays = arrays_of(self._set, POSES in info.features)
        columns = [one.column for one in self._arrays]
        self.names = (*self._images.values(), ACTION, STATE, *columns)
        if missing := [name for name in self.names if name not in info.features]:
            raise UserError(
                f"the data set lacks {missing[0]}, which `vla-ros demonstrations` writes"
            )

    def demonstration(self, rows: Sequence[DatasetRow]) -> Demonstration:
        """The demonstration of one episode."""
        state = _column(rows, STATE)
        physical = _column(rows, ACTION).astype(np.float64)
        found: dict[str, Any] = {"pixels": {}}
        for one in self._arrays:
            array = _column(rows, one.column)
            if one.attribute != "executed":
                array = array.reshape(len(rows), -1, one.width)
            if one.camera:
                found["pixels"][one.camera] = array
            else:
                found[one.attribute] = array
        track = Track(
            instruction=rows[0].task,
            actions=to_environment(physical, np.array(self._set.scale)).astype(np.float32),
            ee_pos=state[:, :3],
            gripper_states=state[:, -2:],
            **found,
            **next(self._episodes),
        )
        return Demonstration(track, _images(rows, self._images))

    def finish(self, found: list[Demonstration]) -> tuple[list[Demonstration], SetInfo]:
        """The demonstrations, which are whole, and the facts of the set."""
        return found, self._set


class _ForeignSet:
    """Somebody else's set: images, an action of seven numbers and an instruction."""

    def __init__(self, info: Info, options: ImportOptions, dataset: Path) -> None:
        self._options, self._rate, self._folder = options, info.fps, dataset
        self._cameras = cameras_of(info, options.features, dataset)
        self._action = action_of(info, options.features, dataset)
        # Who acted, by the name that LeRobot's DAgger rollout and our bags give it.
        self._marked = INTERVENTION in info.features
        # Measured fingers show that a gripper still moves, and so why a policy stands there.
        state = info.features[STATE].names if STATE in info.features else ()
        self._fingers = [i for i, n in enumerate(state) if "finger" in n or "gripper" in n][:2]
        marks = [INTERVENTION] * self._marked + [STATE] * bool(self._fingers)
        self.names = (*self._cameras.values(), self._action, *marks)
        self.notes = tuple(f"{role} is {name}" for role, name in self._cameras.items())
        if unused := ", ".join(name for name in info.features if name not in self.names):
            self.notes += (f"not used, since no policy of `vla-ros train` takes it: {unused}",)

    def demonstration(self, rows: Sequence[DatasetRow]) -> Demonstration:
        """The demonstration of one episode; actions are m, rad, 0..1 until all are known."""
        count = len(rows)
        instruction = rows[0].task.strip()
        if not instruction:
            raise UserError(f"{self._folder}: episode {rows[0].episode} has no task instruction")
        track = Track(
            task=instruction,
            instruction=instruction,
            actions=self._physical(_column(rows, self._action)),
            ee_pos=np.zeros((count, 3), np.float32),
            gripper_states=self._gripper(rows),
            pixels={c: np.zeros((count, 0, 2), np.float32) for c in self._cameras},
            intervention=np.array(
                [bool(row.numbers[INTERVENTION]) for row in rows if self._marked], np.bool_
            ),
        )
        return Demonstration(track, _images(rows, self._cameras, self._options.image_size))

    def _gripper(self, rows: Sequence[DatasetRow]) -> Array:
        """Measured gripper [T, 2], in the set's own unit; zeros where there is none."""
        if not self._fingers:
            return np.zeros((len(rows), 2), np.float32)
        found = _column(rows, STATE)[:, self._fingers]
        return np.broadcast_to(found, (len(rows), 2)) if found.shape[1] == 1 else found

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
        """The demonstrations in [-1, 1] of one scale, with the labels of their own instructions."""
        scale = self._scale([one.track.actions for one in found])
        if self._options.scale is None and self._options.known is None:
            self.notes += (
                f"actions taken for m and rad a period: up to {scale[0]:.3g} m, {scale[3]:.3g} rad;"
                " in a controller's units? say --action-scale",
            )
        closed, opened = self._options.gripper
        self.notes += (f"gripper: {closed:g} is closed, {opened:g} open (--gripper)",)
        instructions = tuple(sorted({one.track.instruction for one in found}))
        described = SetInfo(
            environment=self._options.known[0] if self._options.known else "lerobot",
            image_size=self._options.image_size,
            cameras=tuple(self._cameras),
            objects=(),
            scale=tuple(scale.tolist()),
            action_rate_hz=self._rate,
            instructions=instructions,
            own_sentence=True,
        )
        return [_labelled(one, scale, instructions) for one in found], described

    def _scale(self, actions: Sequence[Array]) -> Array:
        """Physical size of an action of 1: as the policy knows it, given, or the largest that
        occurs along any axis."""
        if self._options.known is not None:
            return np.array(self._options.known[1])
        if self._options.scale is not None:
            return np.array(self._options.scale)
        largest = np.abs(np.concatenate(actions)[:, :GRIPPER]).max(0)
        step, turn = float(largest[:3].max()), float(largest[3:].max())
        return np.array([step or 1.0] * 3 + [turn or 1.0] * 3)


def _labelled(one: Demonstration, scale: Array, instructions: Sequence[str]) -> Demonstration:
    track = one.track
    actions = to_environment(track.actions.astype(np.float64), scale).astype(np.float32)
    labels = np.zeros((len(actions), len(instructions), ACTION_DIM), np.float32)
    labels[:, instructions.index(track.instruction)] = actions
    return replace(one, track=replace(track, actions=actions, labels=labels, executed=actions))


def import_data(
    folders: Sequence[Path],
    out: Path,
    progress: Progress,
    known: tuple[str, tuple[float, ...]] | None = None,
) -> tuple[list[Path], list[bool]]:
    """The folders of ``--data``, shards made of the LeRobotDatasets and bags among them; and
    which of them are from elsewhere, where their own instructions are all that is known.
    ``known`` as in ImportOptions. UserError."""
    options = ImportOptions(known=known)
    found = [
        imported(one, out, options, progress) if is_dataset(one) or is_bag(one) else one
        for one in folders
    ]
    return found, [_from_elsewhere(folder) for folder in found]


def is_bag(path: Path) -> bool:
    """True of a rosbag2 folder, or one file of one."""
    return (path / "metadata.yaml").is_file() or path.suffix in (".mcap", ".db3")


def _from_elsewhere(folder: Path) -> bool:
    try:
        return read_info(shards(folder)[0]).own_sentence
    except UserError:
        return False  # the training refuses it, once its options are right


def imported(source: Path, out: Path, options: ImportOptions, progress: Progress) -> Path:
    """The shards of a data set or a bag in the run's folder ``out``, made where they are not there.

    UserError: it cannot be read, or an option of `vla-ros demonstrations` is needed first.
    """
    # Named by the source and its metadata, so that a run that goes on finds what it made.
    bag = not is_dataset(source)
    if not source.exists():
        raise UserError(f"{source} is not there")
    identity = str(source.absolute()) + repr(options.known or "")
    for name in ("meta/info.json", "metadata.yaml"):
        identity += (source / name).read_text() if (source / name).is_file() else ""
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    made = out / f"imported-{source.absolute().stem}-{digest}"
    if made.is_dir():
        return made

    def progressed(frames: int, total: int) -> None:
        progress.update("import", str(source), frames, total)

    try:
        if bag:
            done = import_bag(source, made, options, progressed)
        else:
            done = import_shards(python_of(), source, made, options, progressed)
    except UserError as error:
        first = "`vla-ros export --lerobot`, then " if bag else ""
        verb = "`vla-ros demonstrations --from-lerobot`"
        raise UserError(f"{error} (options: {first}{verb})") from None
    for note in done.notes:
        progress.say(note)
    return made
