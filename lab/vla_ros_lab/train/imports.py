"""A LeRobotDataset or a bag as our shards, for training: our own set again, or somebody else's.

Of somebody else's set it is known what was done for its own instruction, and nothing else: where
objects are and what other instructions would have asked for is not (``SetInfo.own_sentence``).
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    BODIES,
    EXPERT,
    SUFFIX,
    Demonstration,
    SetInfo,
    Track,
    read_info,
    shards,
    write_shard,
)
from vla_ros_lab.train.lerobot_rows import (
    CAMERAS,
    EXECUTED,
    LABELS,
    PIXELS,
    POSES,
    STATE_NAMES,
)
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
    cameras = {AGENTVIEW: chosen["image"]}
    if "wrist_image" in chosen:
        cameras[WRIST] = chosen["wrist_image"]
    return cameras


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
        said = f" ({' '.join(found.names)})" if found.names else ""
        raise UserError(
            f"{dataset}: {name} is {'x'.join(map(str, found.shape))} numbers{said}; `vla-ros train`"
            " learns seven: an end effector's x y z rx ry rz and a gripper"
        )
    return name


_PER_SHARD = 20
ROLES = ("image", "wrist_image", "action")


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """``features``: role (see ROLES) -> feature. ``gripper``: values of closed and open.
    ``scale`` [6]: m and rad of an action of 1, where actions are in a controller's units; None:
    they are m and rad already. ``image_size``: pixels a side of what is kept. ``known``: name and
    bounds [6] of the actions of the policy that is trained further on it; None: the set's own."""

    features: Mapping[str, str] = field(default_factory=dict)
    gripper: tuple[float, float] = (0.0, 1.0)
    scale: tuple[float, ...] | None = None
    image_size: int = 128
    known: tuple[str, tuple[float, ...]] | None = None


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
        return _written(source, reader.rows(source.names), info.frames, out, shown)


def import_bag(
    path: Path, out: Path, options: ImportOptions, shown: Callable[[int, int], None]
) -> Imported:
    """Write the shards of a bag, as :func:`import_shards` those of a data set: no LeRobot needed.

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
        source = _Theirs(Info(columns.fps, rows.episodes, len(rows), features, {}), options, path)
        found = (replace(row, images=row.arrays()) for row in rows.rows())
        done = _written(source, found, len(rows), out, shown)
    return replace(done, notes=(*done.notes, *bag.notes, *dropped_lines(rows.dropped)))


def _written(
    source: _Ours | _Theirs,
    rows: Iterator[DatasetRow],
    total: int,
    out: Path,
    shown: Callable[[int, int], None],
) -> Imported:
    frames = 0

    def counted() -> Iterator[DatasetRow]:
        nonlocal frames
        for row in rows:
            frames += 1
            shown(frames, total)
            yield row

    demonstrations = [source.demonstration(gathered) for gathered in _episodes(counted())]
    finished, described = source.finish(demonstrations)
    scratch = out.with_name(f".{out.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    for number, first in enumerate(range(0, len(finished), _PER_SHARD)):
        path = scratch / f"shard-{number:04d}{SUFFIX}"
        write_shard(path, described, finished[first : first + _PER_SHARD])
    scratch.rename(out)  # whole, or not at all
    return Imported(len(finished), frames, source.notes)


def _episodes(rows: Iterator[DatasetRow]) -> Iterator[list[DatasetRow]]:
    gathered: list[DatasetRow] = []
    for row in rows:
        if gathered and row.episode != gathered[0].episode:
            yield gathered
            gathered = []
        gathered.append(row)
    if gathered:
        yield gathered


def _column(rows: Sequence[DatasetRow], name: str) -> Array:
    return np.stack([row.numbers[name] for row in rows]).astype(np.float32)


class _Ours:
    """A set that `vla-ros demonstrations` made: everything is there."""

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
            raise UserError(
                f"the data set lacks {missing[0]}, which `vla-ros demonstrations` writes"
            )

    def demonstration(self, rows: Sequence[DatasetRow]) -> Demonstration:
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
    """Somebody else's set: images, an action of seven numbers and an instruction."""

    def __init__(self, info: Info, options: ImportOptions, dataset: Path) -> None:
        self._options, self._rate, self._folder = options, info.fps, dataset
        self._cameras = cameras_of(info, options.features, dataset)
        self._action = action_of(info, options.features, dataset)
        # Who acted, as LeRobot's DAgger rollout and our bags say it.
        self._marked = INTERVENTION in info.features
        # Measured fingers say when a gripper still moves, and so why a policy stands there.
        state = info.features[STATE].names if STATE in info.features else ()
        self._fingers = [i for i, n in enumerate(state) if "finger" in n or "gripper" in n][:2]
        marks = [INTERVENTION] * self._marked + [STATE] * bool(self._fingers)
        self.names = (*self._cameras.values(), self._action, *marks)
        notes = [f"{role} is {name}" for role, name in self._cameras.items()]
        unused = [n for n in info.features if n not in self.names]
        if unused:
            notes.append(
                f"not used, since no policy of `vla-ros train` takes it: {', '.join(unused)}"
            )
        self.notes: tuple[str, ...] = tuple(notes)

    def demonstration(self, rows: Sequence[DatasetRow]) -> Demonstration:
        """Of one episode; actions are m, rad, 0..1 until all are known."""
        count = len(rows)
        sentence = rows[0].task.strip()
        if not sentence:
            raise UserError(f"{self._folder}: episode {rows[0].episode} has no task instruction")
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
            gripper_states=self._gripper(rows),
            poses=np.empty((0, len(BODIES), 7), np.float32),
            pixels={c: np.zeros((count, 0, 2), np.float32) for c in self._cameras},
            intervention=np.array(
                [bool(row.numbers[INTERVENTION]) for row in rows if self._marked], np.bool_
            ),
        )
        size = self._options.image_size
        images: dict[str, Image] = {
            camera: np.stack([_square(row.images[name], size) for row in rows])
            for camera, name in self._cameras.items()
        }
        return Demonstration(track, images)

    def _gripper(self, rows: Sequence[DatasetRow]) -> Array:
        """[T, 2] as it was measured, in the set's own unit; zeros where nobody did."""
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
        """All in [-1, 1] of one scale, with the labels of their own instructions."""
        scale = self._scale([one.track.actions for one in found])
        if self._options.scale is None and self._options.known is None:
            self.notes += (
                f"actions taken for m and rad a period: up to {scale[0]:.3g} m, {scale[3]:.3g} rad;"
                " in a controller's units? say --action-scale",
            )
        closed, opened = self._options.gripper
        self.notes += (f"gripper: {closed:g} is closed, {opened:g} open (--gripper)",)
        sentences = tuple(sorted({one.track.instruction for one in found}))
        described = SetInfo(
            environment=self._options.known[0] if self._options.known else "lerobot",
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
        """Physical size of an action of 1: as the policy knows it, given, or the largest that
        occurs along any axis."""
        if self._options.known is not None:
            return np.array(self._options.known[1])
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


def import_data(
    folders: Sequence[Path],
    out: Path,
    shown: Progress,
    known: tuple[str, tuple[float, ...]] | None = None,
) -> tuple[list[Path], list[bool]]:
    """The folders of ``--data``, shards made of the LeRobotDatasets and bags among them; and
    which of them are from elsewhere, where their own instructions are all that is known.
    ``known`` as in ImportOptions. UserError."""
    options = ImportOptions(known=known)
    found = [
        imported(one, out, options, shown) if is_dataset(one) or is_bag(one) else one
        for one in folders
    ]
    return found, [_from_elsewhere(folder) for folder in found]


def is_bag(path: Path) -> bool:
    """Whether it is a rosbag2 folder, or one file of one."""
    return (path / "metadata.yaml").is_file() or path.suffix in (".mcap", ".db3")


def _from_elsewhere(folder: Path) -> bool:
    try:
        return read_info(shards(folder)[0]).own_sentence
    except UserError:
        return False  # the training says what is wrong with it, once its options are right


def imported(source: Path, out: Path, options: ImportOptions, shown: Progress) -> Path:
    """The shards of a data set or a bag in the run's folder ``out``, made where they are not there.

    UserError: it cannot be read, or an option of `vla-ros demonstrations` is needed first.
    """
    # Named by what it says it is, so that a run that goes on finds what it made.
    bag = not is_dataset(source)
    if not source.exists():
        raise UserError(f"{source} is not there")
    told = str(source.absolute()) + repr(options.known or "")
    for name in ("meta/info.json", "metadata.yaml"):
        told += (source / name).read_text() if (source / name).is_file() else ""
    digest = hashlib.sha256(told.encode()).hexdigest()[:8]
    made = out / f"imported-{source.absolute().stem}-{digest}"
    if made.is_dir():
        return made

    def said(frames: int, total: int) -> None:
        shown.update("import", str(source), frames, total)

    try:
        if bag:
            done = import_bag(source, made, options, said)
        else:
            done = import_shards(python_of(), source, made, options, said)
    except UserError as error:
        first = "`vla-ros export --lerobot`, then " if bag else ""
        verb = "`vla-ros demonstrations --from-lerobot`"
        raise UserError(f"{error} (options: {first}{verb})") from None
    for note in done.notes:
        shown.say(note)
    return made
