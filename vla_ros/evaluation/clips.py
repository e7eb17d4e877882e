"""A clip of an episode that failed: an animated WebP with the step, the age of the evidence and
the instruction burnt in, so that a picture passed on says what it shows."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from vla_ros.evaluation.records import Job

SIDE = 256  # px, the longer side
LIMIT = 40  # clips that an evaluation keeps
_MS = 180  # a frame; the last one stays longer
_LAST_MS = 1500
_FONT = 12
_BAND = 18  # px of one line of words
_QUALITY = 60


def clip_path(job: Job) -> str:
    """Where an episode's clip belongs, relative to the evaluation's directory."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{job.task}_{job.initial_state}")[:120]
    return f"clips/{job.number:05d}_{name}.webp"


def save_clip(
    frames: Mapping[int, Image.Image], ages_ms: Sequence[float], instruction: str, path: Path
) -> bool:
    """Write the frames, by the step after which each was seen, as one file; False without any.

    ``ages_ms``: of the evidence behind what each step executed, NaN where it held.
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
    """The age is that of the action which the step before the picture executed."""
    if step < 1:
        return f"step {step}"
    age = ages_ms[step - 1] if step <= len(ages_ms) else math.nan
    return f"step {step}, " + ("held" if math.isnan(age) else f"age {age:.0f} ms")


def _drawn(frame: Image.Image, words: str, instruction: str) -> Image.Image:
    scale = SIDE / max(frame.size)
    size = round(frame.width * scale), round(frame.height * scale)
    font = ImageFont.load_default(_FONT)
    lines = textwrap.wrap(instruction, max(12, size[0] // 7))[:2]
    picture = Image.new("RGB", (size[0], size[1] + _BAND * len(lines)), "black")
    picture.paste(frame.resize(size, Image.Resampling.BICUBIC), (0, _BAND * len(lines)))
    draw = ImageDraw.Draw(picture)
    for place, line in enumerate(lines):
        draw.text((4, 2 + place * _BAND), line, fill="white", font=font)
    if words:
        _, _, right, _ = draw.textbbox((0, 0), words, font=font)
        draw.rectangle((0, picture.height - _BAND, right + 8, picture.height), fill="black")
        draw.text((4, picture.height - _BAND + 2), words, fill="white", font=font)
    return picture
