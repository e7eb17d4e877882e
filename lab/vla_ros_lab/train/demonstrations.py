"""Demonstrations in HDF5 shards, laid out as robomimic's and LIBERO's data sets are.

    data/                 attrs: total, env_args (JSON)
      demo_0/             attrs: num_samples, task, language_instruction, seed, initial_state,
                                 success, source
        actions           float32 [T, 7] the expert's clean action: the label
        labels            float16 [T, G, 7] what it would do if told each of the G instructions
        executed          float32 [T, 7] what was done instead: with noise, or the policy's
        obs/agentview     uint8 [n]      T images as one AVIF sequence (encode())
        obs/ee_pos        float32 [T, 3] m
        obs/gripper_states float32 [T, 2] m
      intervention      bool [T] whether a person acted; not there: nobody says
      poses             float32 [T, BODIES, 7] where everything is: m, and a quaternion x, y, z, w
        pixels/agentview  float32 [T, K, 2] x and y of every object's center in the image

Actions are in environment units. A shard appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped, import-not-found, unused-ignore]
import numpy as np
import numpy.typing as npt
from PIL import Image as PILImage
from PIL import features

from vla_ros.core.errors import UserError
from vla_ros.core.types import Image

Float32 = npt.NDArray[np.float32]
SUFFIX = ".hdf5"
#: whose poses are recorded, in this order
BODIES = (
    "blue_cube", "green_cube", "plate", "red_cube", "yellow_cube", "gripper", "finger_left",
    "finger_right",
)  # fmt: skip
_NOBODY = np.empty(0, np.bool_)
EXPERT = "expert"  # the source of a demonstration

# Images are kept as AVIF sequences, so that a still table costs nothing after the first frame.
# Measured on the tabletop at 128 px, bytes a frame: PNG 14800, JPEG (quality 90) 4600, gzip along
# time 5500, WebP (80) 1700, AVIF sequence (60) 670 with a mean error of 1.7 of 255, less than
# WebP's. That is what lets 70,000 frames fit into 50 MB. Pillow >= 11.3 writes and reads them.
QUALITY = 60
_SPEED = 8  # 0 slow and small to 10


@dataclass(frozen=True, slots=True)
class SetInfo:
    """What all demonstrations of a data set share.

    ``scale`` [6]: physical size of an action of 1. ``objects``: the K names of ``pixels``.
    ``instructions``: the G instructions of ``labels``. ``two_ways``: the expert had two ways to
    everything (:mod:`vla_ros.sim.expert`). ``own_sentence``: what was done for a demonstration's
    own instruction is known, and ``labels`` has nothing for the others: a set from elsewhere.
    """

    environment: str
    image_size: int
    cameras: tuple[str, ...]
    objects: tuple[str, ...]
    scale: tuple[float, ...]
    control_rate_hz: float
    instructions: tuple[str, ...]
    two_ways: bool = False
    own_sentence: bool = False


@dataclass(frozen=True, slots=True)
class Track:
    """A demonstration without its images. ``source`` is "expert" or names the policy's round.

    ``poses`` has no rows in sets that were collected before poses were, ``intervention`` (a person
    acted) none where nobody says it."""

    task: str
    instruction: str
    seed: int
    initial_state: int
    success: bool
    source: str
    actions: Float32
    labels: Float32
    executed: Float32
    ee_pos: Float32
    gripper_states: Float32
    poses: Float32
    pixels: Mapping[str, Float32]
    intervention: npt.NDArray[np.bool_] = field(default_factory=lambda: _NOBODY)

    def __len__(self) -> int:
        return len(self.actions)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """``images``: camera -> uint8 [T, size, size, 3]."""

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
        data.attrs["env_args"] = json.dumps(_info_json(info), sort_keys=True)
    with scratch.open("rb") as stream:
        os.fsync(stream.fileno())
    scratch.replace(path)


def _write(group: Any, demonstration: Demonstration) -> None:
    track = demonstration.track
    group.attrs["num_samples"] = len(track)
    group.attrs["task"] = track.task
    group.attrs["language_instruction"] = track.instruction
    group.attrs["seed"] = track.seed
    group.attrs["initial_state"] = track.initial_state
    group.attrs["success"] = track.success
    group.attrs["source"] = track.source
    arrays = {
        "actions": track.actions,
        "executed": track.executed,
        "obs/ee_pos": track.ee_pos,
        "obs/gripper_states": track.gripper_states,
        "poses": track.poses,
        **{f"pixels/{camera}": pixels for camera, pixels in track.pixels.items()},
    }
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


def shards(directory: Path) -> list[Path]:
    """The shards of a data set, in order. UserError: there are none."""
    found = sorted(directory.glob(f"*{SUFFIX}")) if directory.is_dir() else []
    if not found:
        raise UserError(f"no {SUFFIX} shards in {directory}: make some with `vla-ros collect`")
    return found


def read_info(path: Path) -> SetInfo:
    """What a shard says about its data set."""
    with _opened(path) as file:
        raw: dict[str, Any] = json.loads(file["data"].attrs["env_args"])
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
    return SetInfo(**values)


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
    """SHA-256 over labels, executed actions and where everything is seen: tells sets apart.

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
    """UserError: the file cannot be read, or is none of HDF5."""
    try:
        return h5py.File(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _groups(file: Any) -> list[Any]:
    data = file["data"]
    return [data[name] for name in sorted(data, key=lambda n: int(n.removeprefix("demo_")))]


def _track(group: Any) -> Track:
    attrs = group.attrs
    return Track(
        task=str(attrs["task"]),
        instruction=str(attrs["language_instruction"]),
        seed=int(attrs["seed"]),
        initial_state=int(attrs["initial_state"]),
        success=bool(attrs["success"]),
        source=str(attrs["source"]),
        actions=group["actions"][()],
        labels=group["labels"][()].astype(np.float32),
        executed=group["executed"][()],
        ee_pos=group["obs/ee_pos"][()],
        gripper_states=group["obs/gripper_states"][()],
        poses=group["poses"][()] if "poses" in group else np.empty((0, len(BODIES), 7), np.float32),
        pixels={name: group[f"pixels/{name}"][()] for name in group["pixels"]},
        intervention=group["intervention"][()] if "intervention" in group else _NOBODY,
    )


def _info_json(info: SetInfo) -> dict[str, Any]:
    return {name: getattr(info, name) for name in SetInfo.__dataclass_fields__}


def encode(frames: Image) -> bytes:
    """uint8 [T, size, size, 3] -> one AVIF sequence (which carries the time of day)."""
    _need_avif()
    pictures = [PILImage.fromarray(frame) for frame in frames]
    stream = io.BytesIO()
    pictures[0].save(
        stream,
        "AVIF",
        save_all=True,
        append_images=pictures[1:],
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
