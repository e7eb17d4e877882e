"""Demonstrations in HDF5 shards, laid out as robomimic's and LIBERO's data sets are.

    data/                 attrs: total, env_args (JSON)
      demo_0/             attrs: num_samples, task, language_instruction, seed, initial_state,
                                 success, source
        actions           float32 [T, 7] the expert's clean action: the label
        labels            float16 [T, G, 7] what it would do for each of the G instructions
        executed          float32 [T, 7] what was done instead: with noise, or the policy's
        obs/agentview     uint8 [n]      T images as one AVIF sequence (encode())
        obs/ee_pos        float32 [T, 3] m
        obs/gripper_states float32 [T, 2] m
        intervention      bool [T] a person acted; not there: unknown
        poses             float32 [T, BODIES, 7] of every body: m, and a quaternion x, y, z, w
        pixels/agentview  float32 [T, K, 2] x and y of every object's center in the image

Actions are in environment units. A shard appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped, import-not-found, unused-ignore]
import numpy as np
import numpy.typing as npt
from PIL import Image as PILImage
from PIL import features

from vla_ros.core.errors import UserError
from vla_ros.core.types import Floats, Image, Pose
from vla_ros.runtime.control.observation import LIBERO_STATE, libero_oft

Float32 = npt.NDArray[np.float32]
SUFFIX = ".hdf5"
#: whose poses are recorded, in this order
BODIES = (
    "blue_cube", "green_cube", "plate", "red_cube", "yellow_cube", "gripper", "finger_left",
    "finger_right",
)  # fmt: skip
EXPERT = "expert"  # the source of a demonstration

# Images are kept as AVIF sequences, so that a still table costs nothing after the first frame.
# Measured on the tabletop at 128 px, bytes a frame: PNG 14800, JPEG (quality 90) 4600, gzip along
# time 5500, WebP (80) 1700, AVIF sequence (60) 670 with a mean error of 1.7 of 255, less than
# WebP's. That is what lets 70,000 frames fit into 50 MB. Pillow >= 11.3 writes and reads them.
QUALITY = 60
_SPEED = 8  # 0 slow and small to 10


#: attributes of a demonstration, and their types
ATTRIBUTES = {
    "task": str, "instruction": str, "seed": int, "initial_state": int, "success": bool,
    "source": str,
}  # fmt: skip
#: names in the file of what is not called so there
_NAMES = {
    "instruction": "language_instruction",
    "ee_pos": "obs/ee_pos",
    "gripper_states": "obs/gripper_states",
}
_ARRAYS = ("actions", "executed", "ee_pos", "gripper_states", "poses")


def _empty(*shape: int) -> Any:
    return field(default_factory=lambda: np.empty((0, *shape), np.float32))


@dataclass(frozen=True, slots=True)
class SetInfo:
    """Facts that all demonstrations of a data set share.

    ``scale`` [6]: physical size of an action of 1. ``action_rate_hz``: actions, and so rows, a
    second. ``objects``: the K names of ``pixels``. ``instructions``: the G instructions of
    ``labels``. ``two_ways``: the expert had two ways to everything (:mod:`vla_ros.sim.expert`).
    ``own_sentence``: what was done for a demonstration's own instruction is known, and ``labels``
    has nothing for the others: a set from elsewhere.
    """

    environment: str
    image_size: int
    cameras: tuple[str, ...]
    objects: tuple[str, ...]
    scale: tuple[float, ...]
    action_rate_hz: float
    instructions: tuple[str, ...]
    two_ways: bool = False
    own_sentence: bool = False

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> SetInfo:
        """The facts as JSON has them."""
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Track:
    """A demonstration without its images. ``source`` is "expert" or names the policy's round.

    ``labels`` has no rows in a set from elsewhere until its instructions are known, ``executed``
    none likewise, ``poses`` none in sets that were collected before poses were, ``intervention``
    (a person acted) none where it is unknown."""

    task: str
    instruction: str
    actions: Float32
    ee_pos: Float32
    gripper_states: Float32
    pixels: Mapping[str, Float32]
    seed: int = 0
    initial_state: int = 0
    success: bool = True
    source: str = EXPERT
    labels: Float32 = _empty(0, 7)
    executed: Float32 = _empty(7)
    poses: Float32 = _empty(len(BODIES), 7)
    intervention: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def posed(self) -> bool:
        """Every frame has poses."""
        return len(self.poses) == len(self)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A track with its ``images``: camera -> uint8 [T, size, size, 3]."""

    track: Track
    images: Mapping[str, Image]


def write_shard(path: Path, info: SetInfo, demonstrations: Iterable[Demonstration]) -> None:
    """Write a shard beside its place, then move it there."""
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    with h5py.File(scratch, "w", libver="latest") as file:
        data = file.create_group("data")
        total = 0
        for number, demonstration in enumerate(demonstrations):
            _write(data.create_group(f"demo_{number}"), demonstration)
            total += len(demonstration.track)
        data.attrs["total"] = total
        data.attrs["env_args"] = json.dumps(asdict(info), sort_keys=True)
    with scratch.open("rb") as stream:
        os.fsync(stream.fileno())
    scratch.replace(path)


def _write(group: Any, demonstration: Demonstration) -> None:
    track = demonstration.track
    group.attrs["num_samples"] = len(track)
    for name in ATTRIBUTES:
        group.attrs[_NAMES.get(name, name)] = getattr(track, name)
    arrays = {_NAMES.get(name, name): getattr(track, name) for name in _ARRAYS}
    arrays |= {f"pixels/{camera}": pixels for camera, pixels in track.pixels.items()}
    for name, array in arrays.items():
        group.create_dataset(name, data=array.astype(np.float32))  # too small to compress
    if len(track.intervention):
        group.create_dataset("intervention", data=track.intervention)
    group.create_dataset(
        "labels", data=track.labels.astype(np.float16), compression="gzip", shuffle=True
    )
    for camera, frames in demonstration.images.items():
        encoded = np.frombuffer(encode(frames), np.uint8)
        group.create_dataset(f"obs/{camera}", data=encoded).attrs["codec"] = "avif"


def shard_path(directory: Path, number: int) -> Path:
    """The path of a shard."""
    return directory / f"shard-{number:04d}{SUFFIX}"


def shards(directory: Path) -> list[Path]:
    """The shards of a data set, in order. UserError: there are none."""
    found = sorted(directory.glob(f"*{SUFFIX}")) if directory.is_dir() else []
    if not found:
        lacks = f"no {SUFFIX} shards in" if directory.is_dir() else "there is no folder"
        raise UserError(f"{lacks} {directory}: make one with `vla-ros collect`")
    return found


def read_info(path: Path) -> SetInfo:
    """The facts of a shard's data set. UserError: they are those of another version."""
    with _opened(path) as file:
        try:
            return SetInfo.from_json(json.loads(file["data"].attrs["env_args"]))
        except TypeError as error:
            raise UserError(f"{path} is of another version ({error}): collect it anew") from None


def common_info(paths: Sequence[Path]) -> SetInfo:
    """The facts that all shards have in common. UserError: they do not belong together."""
    first = read_info(paths[0])
    for path in paths[1:]:
        if read_info(path) != first:
            raise UserError(f"{path} does not fit {paths[0]}: other cameras, sizes or scales")
    return first


def own_states(poses: Float32, fingers: Float32) -> Floats:
    """The robot's own state [N, 8] of ``poses`` [N, BODIES, 7] and ``fingers`` [N, 2], as the
    policy node makes it."""
    rows = []
    for hand, grip in zip(poses[:, BODIES.index("gripper")].tolist(), fingers, strict=True):
        pose = Pose(tuple(hand[:3]), tuple(hand[3:]))
        rows.append(libero_oft({"end_effector_pose": pose, "joint_states": grip}))
    return np.array(rows, np.float64).reshape(-1, LIBERO_STATE)


def read_tracks(path: Path) -> list[Track]:
    """Every demonstration of a shard, without images."""
    with _opened(path) as file:
        return [_track(group) for group in _groups(file)]


def read_images(path: Path, camera: str) -> Iterator[Image]:
    """The images of one camera, a demonstration after the other, in the order of the tracks."""
    with _opened(path) as file:
        for group in _groups(file):
            yield decode(group[f"obs/{camera}"][()].tobytes())


def digest(paths: Iterable[Path]) -> str:
    """SHA-256 over labels, executed actions and positions in the images, by which sets differ.

    The images follow from them; their bytes do not: an AVIF sequence carries the time of day.
    """
    whole = hashlib.sha256()
    for track in (track for path in paths for track in read_tracks(path)):
        arrays: tuple[npt.NDArray[Any], ...] = (track.actions, track.labels, track.executed)
        arrays = (*arrays, track.gripper_states, track.intervention)
        for array in (*arrays, *(track.pixels[name] for name in sorted(track.pixels))):
            whole.update(array.tobytes())
    return whole.hexdigest()


def _opened(path: Path) -> Any:
    """An HDF5 file. UserError: it cannot be read, or is none."""
    try:
        return h5py.File(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _groups(file: Any) -> list[Any]:
    data = file["data"]
    return [data[name] for name in sorted(data, key=lambda n: int(n.removeprefix("demo_")))]


def _track(group: Any) -> Track:
    found = {name: kind(group.attrs[_NAMES.get(name, name)]) for name, kind in ATTRIBUTES.items()}
    for name in (*_ARRAYS, "labels", "intervention"):
        if (stored := _NAMES.get(name, name)) in group:
            found[name] = group[stored][()]
    found["labels"] = found["labels"].astype(np.float32)
    return Track(**found, pixels={name: group[f"pixels/{name}"][()] for name in group["pixels"]})


def encode(frames: Image) -> bytes:
    """uint8 [T, size, size, 3] -> one AVIF sequence (which carries the time of day)."""
    _need_avif()
    images = [PILImage.fromarray(frame) for frame in frames]
    stream = io.BytesIO()
    images[0].save(
        stream,
        "AVIF",
        save_all=True,
        append_images=images[1:],
        duration=50,
        quality=QUALITY,
        speed=_SPEED,
        subsampling="4:4:4",  # the color is what the instruction names
        max_threads=1,
    )
    return stream.getvalue()


def decode(data: bytes) -> Image:
    """The frames [T, size, size, 3] of :func:`encode`, nearly."""
    _need_avif()
    with PILImage.open(io.BytesIO(data)) as sequence:
        count = getattr(sequence, "n_frames", 1)
        out = np.empty((count, sequence.height, sequence.width, 3), np.uint8)
        for number in range(count):
            sequence.seek(number)
            out[number] = np.asarray(sequence.convert("RGB"))
    return out


def _need_avif() -> None:
    if not features.check("avif"):
        raise UserError("this Pillow has no AVIF: pip install 'Pillow>=11.3'")
