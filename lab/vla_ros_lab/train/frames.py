"""A data set in memory, one row a frame that is worth training on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vla_ros.core.errors import UserError
from vla_ros.core.types import GRIPPER, Floats
from vla_ros.engine.io.config import TowerConfig
from vla_ros.engine.io.images.preprocessor import fit
from vla_ros.sim.tasks import PLATE, Family, Goal, parse_instruction
from vla_ros_lab.train.demonstrations import (
    BODIES,
    EXPERT,
    Float32,
    SetInfo,
    Track,
    common_info,
    digest,
    read_images,
    read_info,
    read_tracks,
    shards,
)
from vla_ros_lab.train.units import norm_stats, to_values


@dataclass(frozen=True, slots=True)
class ForeignInstruction:
    """An instruction of another world than the tabletop: it is learned as it is worded, and nothing
    is known of the things in it. The fields but ``text`` are those of a Goal."""

    text: str
    family: str = "own"
    object: str = ""
    target: str = ""


LearnedGoal = Goal | ForeignInstruction


def goal_of(text: str, foreign: bool) -> LearnedGoal:
    """The goal of an instruction. ``foreign``: it is of a set from elsewhere, and not parsed.

    UnknownInstruction: it is not, and the tabletop does not know it.
    """
    return ForeignInstruction(text) if foreign else parse_instruction(text)


STILL = 1e-3  # environment units: no motion is asked for
SETTLED = 5e-4  # m between two frames: the fingers have stopped


@dataclass(frozen=True, slots=True)
class FrameTable:
    """Frames of data sets. ``images`` uint8 [M, cameras, s, s, 3], ``pixels`` float32 [M, cameras,
    K, 2]: where things are in them. ``image_index`` int64 [N, 1 + D]: the image of each row's
    moment, and those that many frames before it; ``longest_delay`` int64 [N, G]: how many of them
    show what is to be done at that moment for each of ``goals`` (:func:`longest_delays`).
    ``values`` float16 [N, G, 7] in [-1, 1] (see units): what it is; ``goal`` int64 [N]: the one
    that was pursued. ``chunks`` float16 [N, C, 7]: for it, what to do now and in the frames that
    follow, the last of an episode repeated; ``expert`` bool [N]: the expert acted, ``person`` bool
    [N]: a person did, past a policy. ``episode`` int64 [N] counts demonstrations; ``weight``
    float64 [N]: how often a row is drawn, against others of its family. For what lies ahead of a
    frame (see ahead): ``poses`` float32 [N, BODIES, 7], ``fingers`` float32 [N, 2] in m, ``before``
    float32 [N, 2, 7]: what was executed one and two steps ago; ``posed``: all of the sets have
    poses.

    ``demonstrations`` counts them, ``digest`` names the files that all came from.
    """

    images: torch.Tensor
    values: torch.Tensor
    pixels: torch.Tensor
    image_index: torch.Tensor
    longest_delay: torch.Tensor
    goal: torch.Tensor
    chunks: torch.Tensor
    expert: torch.Tensor
    person: torch.Tensor
    episode: torch.Tensor
    weight: torch.Tensor
    poses: torch.Tensor
    fingers: torch.Tensor
    before: torch.Tensor
    posed: bool
    goals: tuple[LearnedGoal, ...]
    info: SetInfo
    demonstrations: int
    digest: str

    def __len__(self) -> int:
        return len(self.values)

    def to(self, device: torch.device) -> FrameTable:
        """The table on a device; a GPU holds the standard set many times over."""
        names = ("images", "values", "pixels", "image_index", "goal", "chunks", "expert")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


@dataclass(frozen=True, slots=True)
class DataSummary:
    """Data of a checkpoint, all parts together. ``digest`` differs with the data."""

    info: SetInfo
    frames: int
    demonstrations: int
    digest: str

    @classmethod
    def of(cls, parts: Sequence[FrameTable]) -> DataSummary:
        """Summary of several tables; the digest is a hash over theirs."""
        digests = [part.digest for part in parts]
        several = hashlib.sha256("".join(digests).encode()).hexdigest()
        return cls(
            parts[0].info,
            sum(map(len, parts)),
            sum(part.demonstrations for part in parts),
            digests[0] if len(parts) == 1 else several,
        )

    def norm_stats(self) -> dict[str, Any]:
        """Statistics as OpenVLA's configurations have them."""
        scale = np.array(self.info.scale)
        return norm_stats(self.info.environment, scale, self.frames, self.demonstrations)


def load_parts(
    directories: Sequence[Path], image_size: int, images: int, chunk: int = 1, delays: int = 0
) -> tuple[FrameTable, ...]:
    """Frames by the kind of data set: what was collected, with labels for every instruction, then
    what was recorded or is from elsewhere, where a row's own is all that is known.

    UserError: as of load_frames; or the two are not of the same cameras, rate and scale.
    """
    kinds: dict[bool, list[Path]] = {False: [], True: []}
    for directory in directories:
        kinds[read_info(shards(directory)[0]).own_sentence].append(directory)
    found = [of for of in kinds.values() if of]
    if len(found) > 1:
        one, other = (read_info(shards(of[0])[0]) for of in found)
        for name in ("environment", "action_rate_hz", "scale"):
            if getattr(one, name) != getattr(other, name):
                raise UserError(
                    f"{found[0][0]} and {found[1][0]} have another {name}"
                    f" ({getattr(one, name)} and {getattr(other, name)}): recordings are of the"
                    " scale of the checkpoint that --init-from names"
                )
    return tuple(load_frames(of, image_size, images, chunk, delays) for of in found)


def load_frames(
    directories: Sequence[Path], image_size: int, images: int, chunk: int = 1, delays: int = 0
) -> FrameTable:
    """Read, filter and resize every demonstration of the data sets, in a fixed order.

    With ``delays`` the images before a row's own are there too, also of moments that are not worth
    training. UserError: nothing there, or the sets do not fit together or the model's cameras.
    """
    paths = [path for directory in directories for path in shards(directory)]
    info = common_info(paths)
    if len(info.cameras) < images:
        raise UserError(
            f"the model needs {images} cameras, {paths[0].parent} has"
            f" {', '.join(info.cameras)}: collect with --wrist"
        )
    cameras = info.cameras[:images]
    tracks = [read_tracks(path) for path in paths]
    flat = list(chain.from_iterable(tracks))
    if not flat:
        raise UserError(f"{directories[0]} has no demonstration")
    if delays and not all(has_image(track).all() for track in flat):
        raise UserError("--delays wants an image of every step, and these sets have fewer")
    masks = [[worth_training(track) for track in shard] for shard in tracks]
    seen = [[np.ones_like(m) if delays else m for m in shard] for shard in masks]
    goals = tuple(goal_of(text, info.own_sentence) for text in info.instructions)
    columns: dict[str, list[torch.Tensor]] = {}
    pictured = 0
    every = zip(flat, chain.from_iterable(masks), chain.from_iterable(seen), strict=True)
    for number, (track, mask, kept) in enumerate(every):
        centers = np.stack([track.pixels[camera][kept] for camera in cameras], axis=1)
        index = torch.from_numpy(np.flatnonzero(mask[kept]))
        values = torch.from_numpy(to_values(track.labels[mask].astype(np.float64)))
        follow = np.minimum(np.flatnonzero(mask)[:, None] + np.arange(chunk), len(track) - 1)
        chunks = torch.from_numpy(to_values(track.actions[follow].astype(np.float64)))
        person = track.intervention if len(track.intervention) else np.zeros(len(track), np.bool_)
        poses = track.poses if track.posed else np.zeros((len(track), len(BODIES), 7), np.float32)
        goal = goals.index(goal_of(track.instruction, info.own_sentence))
        found = {
            "pixels": torch.from_numpy(centers) * (image_size / info.image_size),
            "image_index": pictured + (index[:, None] - torch.arange(1 + delays)).clamp(min=0),
            "longest_delay": torch.from_numpy(longest_delays(track)[mask]),
            "values": values.half(),
            "chunks": chunks.half(),
            "expert": torch.full((len(index),), track.source == EXPERT),
            "person": torch.from_numpy(person[mask]),
            "episode": torch.full((len(index),), number),
            "goal": torch.full((len(index),), goal),
            "poses": torch.from_numpy(poses[mask]),
            "fingers": torch.from_numpy(track.gripper_states[mask]),
            "before": torch.from_numpy(executed_before(track)[mask]),
        }
        for name, column in found.items():
            columns.setdefault(name, []).append(column)
        pictured += int(kept.sum())
    stored = torch.empty(pictured, len(cameras), image_size, image_size, 3, dtype=torch.uint8)
    for number, camera in enumerate(cameras):
        at = 0
        for frame in _kept_images(paths, seen, camera, image_size):
            stored[at : at + len(frame), number] = torch.from_numpy(frame)
            at += len(frame)
    table = {name: torch.cat(parts) for name, parts in columns.items()}
    return FrameTable(
        images=stored,
        **table,
        weight=torch.ones(len(table["goal"]), dtype=torch.float64),
        posed=all(track.posed for track in flat),
        goals=goals,
        info=info,
        demonstrations=len(flat),
        digest=digest(paths),
    )


def longest_delays(track: Track) -> npt.NDArray[np.int64]:
    """Number of the images before each frame that show what is to be done there for each
    instruction, int64 [T, G]: those since the hand last opened where the teacher would hold.

    An image of a cube in the hand does not show that a policy lets go of it two periods later. The
    teacher opens then, to grasp it again: learned as what comes after that image, it makes the
    policy let go.
    """
    dropped = (track.executed[:, None, GRIPPER] < 0) & (track.labels[:, :, GRIPPER] > 0)
    number = np.arange(len(track))[:, None]
    since = np.maximum.accumulate(np.where(dropped, number + 1, 0), axis=0)  # the first one after
    out = np.zeros(since.shape, np.int64)
    out[1:] = number[1:] - since[:-1]
    return out


def executed_before(track: Track) -> npt.NDArray[np.float32]:
    """Actions executed one and two steps before each frame, float32 [T, 2, 7]; at first 0."""
    out = np.zeros((len(track), 2, GRIPPER + 1), np.float32)
    for steps in (1, 2):
        out[steps:, steps - 1] = track.executed[: len(track) - steps]
    return out


def worth_training(track: Track) -> npt.NDArray[np.bool_]:
    """Mask [T] of the frames that show a reason for their action.

    A model that sees one image cannot know how long it has been waiting: while the fingers
    close, the image shows why to stand still; once they have stopped nothing does, and a greedy
    policy that learned to wait there waits for ever. OpenVLA drops no-ops likewise.
    """
    still = (np.abs(track.actions[:, :GRIPPER]) < STILL).all(1)
    settled = np.zeros(len(track), dtype=bool)
    moved = np.abs(np.diff(track.gripper_states, axis=0)).max(1)
    obeyed = track.executed[:-1, GRIPPER] * track.actions[1:, GRIPPER] > 0
    settled[1:] = (moved < SETTLED) & obeyed
    kept: npt.NDArray[np.bool_] = ~(still & settled) & has_image(track)
    return kept


def has_image(track: Track) -> npt.NDArray[np.bool_]:
    """Mask [T] of the frames with an image of their own, not that of a frame before (Recorder)."""
    pixels = next(iter(track.pixels.values()))
    own: npt.NDArray[np.bool_] = ~np.isnan(pixels).all((1, 2)) | (pixels.shape[1] == 0)
    return own


def _kept_images(
    paths: Sequence[Path],
    masks: Sequence[Sequence[npt.NDArray[np.bool_]]],
    camera: str,
    size: int,
) -> Iterator[npt.NDArray[np.uint8]]:
    for path, shard in zip(paths, masks, strict=True):
        for frames, mask in zip(read_images(path, camera), shard, strict=True):
            kept = frames[mask]
            if len(kept) and kept.shape[1] != size:
                kept = np.stack([fit(frame, size, "resize-naive", (0, 0, 0)) for frame in kept])
            yield kept


def pixels_at(
    points: Floats, position: Floats, rotation: Floats, fovy: float, size: int
) -> Float32:
    """Pixels [K, 2] of ``points`` [K, 3] of the world in a square image of ``size``: x to the
    right, y down, the corner at 0, 0; NaN for what is behind the camera, and of NaN.

    The camera: its position [3] in m, its axes as columns [3, 3] (it looks along -z, y up), and its
    field of view from top to bottom in rad.
    """
    local = (points - position) @ rotation
    depth = np.where(-local[:, 2] > 1e-3, -local[:, 2], np.nan)
    half = size / 2
    focal = half / np.tan(fovy / 2)
    x, y = half + focal * local[:, 0] / depth, half - focal * local[:, 1] / depth
    return np.stack((x, y), axis=1).astype(np.float32)


NOWHERE = -100  # no patch: cross-entropy leaves it out


def patches_of(pixels: torch.Tensor, things: torch.Tensor, side: int, patch: int) -> torch.Tensor:
    """Pixels [B, objects, 2] in one image, things int64 [B, K, 2], an object's number or
    NOWHERE -> the patches they are in, int64 [B, K, 2]; NOWHERE outside of the image."""
    if not pixels.shape[1]:
        return torch.full_like(things, NOWHERE)
    cells = _cells(pixels, side, patch, NOWHERE)
    found = cells.gather(1, things.flatten(1).clamp(min=0)).view(things.shape)
    return torch.where(things == NOWHERE, NOWHERE, found)


def _cells(pixels: torch.Tensor, side: int, patch: int, outside: int) -> torch.Tensor:
    """Pixels [..., 2] -> patches int64 [...]; ``outside`` of the image, and of NaN."""
    cell = torch.floor(pixels / patch)
    inside = ((cell >= 0) & (cell < side)).all(-1)  # NaN is not
    return torch.where(inside, cell[..., 1] * side + cell[..., 0], float(outside)).long()


def patch_labels(pixels: torch.Tensor, side: int, patch: int) -> torch.Tensor:
    """Pixels [B, images, K, 2] -> int64 [B, images * side^2]: 1 + the object, 0 for none.

    What is outside of the image, or behind the camera (NaN), has no patch. Where two objects
    share a patch the later one has it.
    """
    batch, images, objects, _ = pixels.shape
    # One cell more, for what has none.
    cells = _cells(pixels, side, patch, side * side)
    labels = torch.zeros(batch, images, side * side + 1, dtype=torch.long, device=pixels.device)
    for number in range(objects):
        labels.scatter_(2, cells[:, :, number : number + 1], number + 1)
    return labels[:, :, :-1].flatten(1)


_LIGHT = 0.1  # largest relative change of brightness and contrast
_GRAIN = 0.01  # standard deviation of pixel noise, of 1


@dataclass(frozen=True, slots=True)
class DrawnBatch:
    """Augmented images: ``pixels`` [B, images, 3, s, s] normalized; ``centers`` [B, images,
    objects, 2] of what is in them; ``patches`` int64 [B, patches], labels of the patch loss."""

    pixels: torch.Tensor
    centers: torch.Tensor
    patches: torch.Tensor


class FrameImages:
    """Augmented images of ``frames``, as ``tower`` wants them; ``shift``: largest shift in pixels.
    A pure function of (frames, seed, step)."""

    def __init__(
        self, frames: FrameTable, tower: TowerConfig, seed: int, shift: int, device: torch.device
    ) -> None:
        self._frames, self._seed, self._shift, self._device = frames, seed, shift, device
        #: patches a side, and pixels a side of a patch
        self.side, self.patch = tower.image_size // tower.patch, tower.patch
        self._mean = torch.tensor(tower.mean, device=device).view(3, 1, 1)
        self._std = torch.tensor(tower.std, device=device).view(3, 1, 1)

    def __call__(self, index: torch.Tensor, draw: torch.Generator, step: int) -> DrawnBatch:
        """The images ``index`` int64 [B] (see FrameTable.image_index); ``draw`` is advanced."""
        size = len(index)
        span = 2 * self._shift + 1
        shift = torch.randint(span, (size, 2), generator=draw) - self._shift
        light = torch.rand(size, 2, generator=draw) * 2 - 1
        there, moved = index.to(self._device), shift.to(self._device)
        pixels = self._pixels(there, moved, light.to(self._device), step)
        centers = self._frames.pixels[there] - moved[:, None, None, [1, 0]]
        return DrawnBatch(pixels, centers, patch_labels(centers, self.side, self.patch))

    def _pixels(
        self, index: torch.Tensor, shift: torch.Tensor, light: torch.Tensor, step: int
    ) -> torch.Tensor:
        """Shifted (edges repeat), relit, grainy and normalized images."""
        images = self._frames.images
        size = images.shape[2]
        along = torch.arange(size, device=self._device)
        y = (along + shift[:, :1]).clamp(0, size - 1)
        x = (along + shift[:, 1:]).clamp(0, size - 1)
        cameras = torch.arange(images.shape[1], device=self._device)[None, :, None, None]
        shifted = images[index[:, None, None, None], cameras, y[:, None, :, None], x[:, None, None]]
        pixels = shifted.permute(0, 1, 4, 2, 3).float() / 255.0
        if self._shift:  # augmentation is on
            brightness, contrast = (_LIGHT * light).T[..., None, None, None, None]
            pixels = (pixels - 0.5) * (1 + contrast) + 0.5 + brightness
            noise = torch.Generator(self._device).manual_seed(mixed(self._seed, step))
            grain = torch.randn(pixels.shape, generator=noise, device=self._device)
            pixels = (pixels + _GRAIN * grain).clamp(0, 1)
        return (pixels - self._mean) / self._std


def mixed(seed: int, step: int) -> int:
    """A seed of a step. torch's CPU generator reads 32 bits of it, so no simple shift does."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1)[0])


#: paraphrases that training draws from, the tasks' own first; sim.tasks.parse_instruction reads all
_TEMPLATES: dict[Family, tuple[str, ...]] = {
    Family.REACH: (
        "move the gripper above the {thing} cube",
        "move above the {thing} cube",
        "go over the {thing} cube",
        "bring the gripper over the {thing} cube",
        "hover above the {thing} block",
        "place the hand above the {thing} cube",
    ),
    Family.PUSH: (
        "push the {thing} cube to the {target}",
        "slide the {thing} cube to the {target}",
        "move the {thing} cube to the {target}",
        "shove the {thing} cube {target}",
        "nudge the {thing} block towards the {target}",
        "push the {thing} block to the {target} side",
    ),
    Family.PICK: (
        "pick up the {thing} cube and put it on the plate",
        "put the {thing} cube on the plate",
        "place the {thing} cube on the plate",
        "lift the {thing} cube and place it on the plate",
        "move the {thing} block onto the plate",
        "grasp the {thing} cube and put it onto the plate",
    ),
    Family.STACK: (
        "put the {thing} cube on the {target} cube",
        "stack the {thing} cube on the {target} cube",
        "place the {thing} cube on top of the {target} cube",
        "pick up the {thing} cube and put it on the {target} cube",
        "put the {thing} block onto the {target} block",
        "lift the {thing} cube and stack it on the {target} one",
    ),
}


def wordings(goal: LearnedGoal) -> tuple[str, ...]:
    """Every instruction that training uses for ``goal``, the tasks' own first."""
    if isinstance(goal, ForeignInstruction):
        return (goal.text,)
    thing = goal.object.removesuffix("_cube")
    target = "" if goal.target == PLATE else goal.target.removesuffix("_cube")
    return tuple(text.format(thing=thing, target=target) for text in _TEMPLATES[goal.family])
