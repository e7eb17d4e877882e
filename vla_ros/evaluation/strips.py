"""A strip of frames: one small picture that shows an episode from its begin to its end.

Feed it every image of the episode; it keeps only as many as it needs, already made small, so
an episode of any length costs the same memory. Not thread-safe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from vla_ros.evaluation.records import Job

FRAMES = 6
TILE = 128  # px, the longer side of a frame
_GAP = 3  # px of white between two frames
_QUALITY = 85  # of the JPEG


def strip_paths(jobs: Iterable[Job]) -> dict[str, str]:
    """Which episodes get a strip: the first of every task under the first variant.

    Give all jobs of the evaluation, also when some of them are done already. Key of the job ->
    where its picture belongs, relative to the evaluation's directory.
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


class Strip:
    """``frames`` pictures, evenly spaced over the steps seen, the first and the last among them."""

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
        """What is kept, by the step after which it was seen; the last frame is among them."""
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
        strip.save(path, quality=_QUALITY, optimize=True)
        return True

    def _chosen(self) -> list[Image.Image]:
        """The frames nearest to evenly spaced steps, in order, none twice."""
        if self._last is None:
            return []
        seen = self.frames
        steps = np.array(sorted(seen))
        wanted = np.linspace(steps[0], steps[-1], self._frames)
        nearest = {int(steps[np.abs(steps - place).argmin()]) for place in wanted}
        return [seen[step] for step in sorted(nearest)]
