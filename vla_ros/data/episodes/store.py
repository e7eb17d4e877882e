"""The directory of an evaluation: one line an episode, safe against any end. One writer.

``run.json``: setup, variants and the commands that played it; ``episodes.jsonl``: the records;
``strips/``: images. Two evaluations never mix: a directory takes more episodes and variants of
the same setup and refuses another.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from vla_ros.core.errors import UserError
from vla_ros.core.files import RECORDED, BadFile, parse_json, read_arrays, read_bytes, read_json
from vla_ros.data.episodes.records import (
    Job,
    Record,
    Setup,
    Variant,
    record_from_json,
    setup_from_json,
    to_json,
    variant_from_json,
)

RUN, EPISODES = "run.json", "episodes.jsonl"


class StoreError(UserError, ValueError):
    """A directory that cannot be used: one line that says why."""


class Store:
    """An evaluation on disk. Entering claims the directory; leaving closes it.

    ``records`` are those there are, in the order they were written, ``commands`` the different
    commands that played it, ``command`` being this one.
    """

    def __init__(
        self, directory: Path, setup: Setup, variants: Iterable[Variant], command: str = ""
    ) -> None:
        self._directory = directory
        self.commands: list[str] = [command] if command else []
        self._setup = setup
        self._variants = {variant.label: variant for variant in variants}
        self._file: BinaryIO | None = None
        self.records: list[Record] = []

    def __enter__(self) -> Store:
        """Raises StoreError: another setup, another process writes, or a damaged file."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._file = (self._directory / EPISODES).open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._claim()
            self.records = self._resume(self._file)
        except BlockingIOError:
            self._close()
            raise StoreError(f"{self._directory}: another evaluation is writing there") from None
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self._close()

    @property
    def done(self) -> set[str]:
        """Keys of the jobs that have a record."""
        return {record.job.key() for record in self.records}

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Records of this run and of the runs before, in the order they came."""
        return tuple(self._variants.values())

    def add(self, record: Record) -> None:
        """Write a record; it is on the disk when this returns."""
        assert self._file is not None, "enter the store first"
        line = json.dumps(to_json(record), allow_nan=False) + "\n"
        self._file.write(line.encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.records.append(record)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _claim(self) -> None:
        """Write the run's file, or check that it is of the same evaluation."""
        path = self._directory / RUN
        if path.exists():
            setup, variants, commands = _read(path)
            if difference := _differences(to_json(setup), to_json(self._setup)):
                raise StoreError(f"{self._directory} holds an evaluation with {difference}")
            for label, variant in self._variants.items():
                before = variants.get(label, variant)
                if difference := _differences(to_json(before), to_json(variant)):
                    raise StoreError(f"{self._directory} holds '{label}' with {difference}")
            self._variants = {**variants, **self._variants}
            self.commands = list(dict.fromkeys([*commands, *self.commands]))
        content = {
            "setup": to_json(self._setup),
            "variants": [to_json(variant) for variant in self._variants.values()],
            "commands": self.commands,
        }
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(content, indent=1) + "\n")
        scratch.replace(path)

    def _resume(self, file: BinaryIO) -> list[Record]:
        """The records there are; a last line that was cut off is taken away."""
        file.seek(0)
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
        return _parse(content[:whole], self._directory / EPISODES)


def read_run(directory: Path) -> tuple[Setup, dict[str, Variant]]:
    """Setup and variants of an evaluation; StoreError."""
    setup, variants, _ = _read(directory / RUN)
    return setup, variants


def _read(path: Path) -> tuple[Setup, dict[str, Variant], list[str]]:
    try:
        content = read_json(path)
        variants = [variant_from_json(one) for one in content["variants"]]
        setup = setup_from_json(content["setup"])
        return setup, {v.label: v for v in variants}, content["commands"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def read_records(directory: Path) -> list[Record]:
    """The records of an evaluation, also while it is written; StoreError."""
    path = directory / EPISODES
    try:
        content = read_bytes(path, RECORDED)
    except (OSError, BadFile) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    return _parse(content[: content.rfind(b"\n") + 1], path)


def _parse(content: bytes, path: Path) -> list[Record]:
    records: dict[str, Record] = {}
    for number, line in enumerate(content.splitlines(), 1):
        try:
            record = record_from_json(parse_json(line, "it"))
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path}, line {number} cannot be read: {error}") from error
        records.setdefault(record.job.key(), record)
    return list(records.values())


def _differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Fields of ``there`` that differ in ``wanted``, as text; "" where they agree."""
    return ", ".join(
        f"{name} {there[name]!r} (now {wanted[name]!r})"
        for name in sorted(there)
        if there[name] != wanted[name]
    )


# A policy's tokens, frame by frame: an .npz an episode in the folder `tokens` of an evaluation.
#
# Each holds ``tokens`` int32 [frames, K], in the order of the frames, and ``success``, bool. What
# an evaluation's lines keep of them is a digest only; these are for studies of drafts.


FOLDER = "tokens"


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeTokens:
    """One episode: ``tokens`` int [frames, K]."""

    name: str
    tokens: npt.NDArray[np.int32]
    success: bool


def write_tokens(record: Record, directory: Path) -> Path | None:
    """Write the tokens of an episode into the evaluation's directory; None: there are none."""
    if not record.tokens:
        return None
    name = re.sub(r"[^A-Za-z0-9._=,-]+", "_", record.job.key()).strip("_")
    path = directory / FOLDER / f"{name[:200]}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, tokens=np.asarray(record.tokens, np.int32), success=record.success)
    return path


def read_tokens(directory: Path, variant: str = "") -> list[EpisodeTokens]:
    """The episodes of an evaluation, or of one of its variants, by name. UserError, OSError."""
    start = re.sub(r"[^A-Za-z0-9._=,-]+", "_", f"{variant}/") if variant else ""
    paths = sorted(p for p in (directory / FOLDER).glob("*.npz") if p.name.startswith(start))
    if not paths:
        raise UserError(f"{directory / FOLDER} holds no tokens: play with `eval --keep-tokens`")
    return [_tokens_of(path) for path in paths]


def _tokens_of(path: Path) -> EpisodeTokens:
    try:
        archive = read_arrays(path)
        tokens, success = archive["tokens"], bool(archive["success"])
    except (ValueError, KeyError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if tokens.ndim != 2 or tokens.dtype != np.int32:
        raise UserError(f"{path}: tokens are {tokens.dtype} {tokens.shape}, not int32 [frames, K]")
    return EpisodeTokens(path.stem, tokens, success)


# A clip of an episode that failed: an animated WebP with the step, the observation age and the
# instruction burnt in, so that they go along with an image that is passed on.


SIDE = 256  # px, the longer side
LIMIT = 40  # clips that an evaluation keeps
_MS = 180  # a frame; the last one stays longer
_LAST_MS = 1500
_FONT = 12
_BAND = 18  # px of one line of words
_QUALITY = 60


def clip_path(job: Job) -> str:
    """Path of an episode's clip, relative to the evaluation's directory."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{job.task}_{job.initial_state}")[:120]
    return f"clips/{job.number:05d}_{name}.webp"


def save_clip(
    frames: Mapping[int, Image.Image], ages_ms: Sequence[float], instruction: str, path: Path
) -> bool:
    """Write the frames, by the step after which each was seen, as one file; False without any.

    ``ages_ms``: of the observation behind what each step executed, NaN where it held.
    """
    if not frames:
        return False
    drawn = [_drawn(frames[step], _words(step, ages_ms), instruction) for step in sorted(frames)]
    path.parent.mkdir(parents=True, exist_ok=True)
    times = [*[_MS] * (len(drawn) - 1), _LAST_MS]
    drawn[0].save(
        path,
        save_all=True,
        append_images=drawn[1:],
        duration=times,
        loop=0,
        quality=_QUALITY,
        method=2,
    )
    return True


def _words(step: int, ages_ms: Sequence[float]) -> str:
    """The age is that of the action which the step before the image executed."""
    if step < 1:
        return f"step {step}"
    age = ages_ms[step - 1] if step <= len(ages_ms) else math.nan
    return f"step {step}, " + ("held" if math.isnan(age) else f"age {age:.0f} ms")


def _drawn(frame: Image.Image, words: str, instruction: str) -> Image.Image:
    scale = SIDE / max(frame.size)
    size = round(frame.width * scale), round(frame.height * scale)
    font = ImageFont.load_default(_FONT)
    lines = textwrap.wrap(instruction, max(12, size[0] // 7))[:2]
    image = Image.new("RGB", (size[0], size[1] + _BAND * len(lines)), "black")
    image.paste(frame.resize(size, Image.Resampling.BICUBIC), (0, _BAND * len(lines)))
    draw = ImageDraw.Draw(image)
    for row, line in enumerate(lines):
        draw.text((4, 2 + row * _BAND), line, fill="white", font=font)
    if words:
        _, _, right, _ = draw.textbbox((0, 0), words, font=font)
        draw.rectangle((0, image.height - _BAND, right + 8, image.height), fill="black")
        draw.text((4, image.height - _BAND + 2), words, fill="white", font=font)
    return image


# A strip of frames: one small image that shows an episode from its begin to its end.
#
# Feed it every image of the episode; it keeps only as many as it needs, already made small, so
# an episode of any length costs the same memory. Not thread-safe.


FRAMES = 6
TILE = 128  # px, the longer side of a frame
_GAP = 3  # px of white between two frames
_STRIP_QUALITY = 85  # of the JPEG


def strip_paths(jobs: Iterable[Job]) -> dict[str, str]:
    """Which episodes get a strip: the first of every task under the first variant.

    Give all jobs of the evaluation, also when some of them are done already. Key of the job ->
    where its image belongs, relative to the evaluation's directory.
    """
    ordered = sorted(jobs, key=lambda job: job.number)
    paths: dict[str, str] = {}
    tasks: set[str] = set()
    for job in ordered:
        if job.variant == ordered[0].variant and job.task not in tasks:
            tasks.add(job.task)
            name = re.sub(r"[^A-Za-z0-9._-]+", "_", job.task)[:120]
            paths[job.key()] = f"strips/{len(tasks):03d}_{name}.jpg"
    return paths


class FrameStrip:
    """``frames`` images, evenly spaced over the steps seen, the first and the last among them."""

    def __init__(self, frames: int = FRAMES, tile: int = TILE) -> None:
        if frames < 2 or tile < 8:
            raise ValueError(f"a strip needs 2 frames of 8 px or more, not {frames} of {tile}")
        self._frames = frames
        self._tile = tile
        self._kept: dict[int, Image.Image] = {}  # step -> frame, in order
        self._last: tuple[int, Image.Image] | None = None
        self._stride = 1  # of the frames seen, one in so many is kept
        self._seen = 0

    def __len__(self) -> int:
        """Frames that :meth:`save` would draw."""
        return len(self._chosen())

    def add(self, image: npt.NDArray[np.uint8], step: int) -> None:
        """Show the frame of a control step: uint8 [H, W, 3], RGB; steps never go back.

        ValueError: another shape or dtype.
        """
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise ValueError(f"a frame is uint8 [H, W, 3], not {image.dtype} {list(image.shape)}")
        small = Image.fromarray(np.ascontiguousarray(image))
        small.thumbnail((self._tile, self._tile), Image.Resampling.BOX)
        self._last = (step, small)
        if self._seen % self._stride == 0:
            self._kept[step] = small
        self._seen += 1
        if len(self._kept) > 4 * self._frames:
            self._stride *= 2
            self._kept = dict(list(self._kept.items())[::2])

    @property
    def frames(self) -> dict[int, Image.Image]:
        """Frames kept, by the step after which each was seen; the last is among them."""
        last = {} if self._last is None else {self._last[0]: self._last[1]}
        return {**self._kept, **last}

    def save(self, path: Path) -> bool:
        """Write the frames side by side (JPEG or PNG, by the name); False when there are none."""
        chosen = self._chosen()
        if not chosen:
            return False
        width = sum(frame.width for frame in chosen) + _GAP * (len(chosen) - 1)
        strip = Image.new("RGB", (width, max(frame.height for frame in chosen)), "white")
        left = 0
        for frame in chosen:
            strip.paste(frame, (left, 0))
            left += frame.width + _GAP
        path.parent.mkdir(parents=True, exist_ok=True)
        strip.save(path, quality=_STRIP_QUALITY, optimize=True)
        return True

    def _chosen(self) -> list[Image.Image]:
        """The frames nearest to evenly spaced steps, in order, none twice."""
        if self._last is None:
            return []
        seen = self.frames
        steps = np.array(sorted(seen))
        wanted = np.linspace(steps[0], steps[-1], self._frames)
        nearest = {int(steps[np.abs(steps - step).argmin()]) for step in wanted}
        return [seen[step] for step in sorted(nearest)]
