"""Camera pictures with their age burnt in, so that a still picture cannot pass for a live one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image as Pillow
from PIL import ImageDraw, ImageFont

from vla_ros.core import Image

FRESH = (255, 255, 255)
OLD = (255, 90, 80)
_LONG_MS = 10_000.0
_SHOWN = 320  # pixels of the longer side: a page is no microscope


def age_text(age_ms: float) -> str:
    """Of a picture, for a person. A clock that is not ours shows as an age below zero."""
    if age_ms < 0:
        return f"{age_ms:.0f} ms: clocks differ"
    return f"{age_ms:.0f} ms" if age_ms < _LONG_MS else f"{age_ms / 1e3:.0f} s"


def burnt(image: Image, age_ms: float, max_age_ms: float) -> Image:
    """Uint8 [height, width, 3], at most 320 pixels a side, the age in its lower left corner: red
    where it is above ``max_age_ms`` (0: there is no limit)."""
    picture = Pillow.fromarray(image)
    picture.thumbnail((_SHOWN, _SHOWN))
    draw = ImageDraw.Draw(picture)
    size = max(11, picture.height // 14)
    font = ImageFont.load_default(size)
    text = age_text(age_ms)
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
    pad = size // 4
    y = picture.height - (bottom - top) - 2 * pad
    draw.rectangle((0, y, right - left + 2 * pad, picture.height), fill=(0, 0, 0))
    colour = OLD if 0 < max_age_ms < age_ms else FRESH
    draw.text((pad - left, y + pad - top), text, fill=colour, font=font)
    return np.asarray(picture, np.uint8)


def side_by_side(pictures: Sequence[Image]) -> Image:
    """In one row, as high as the lowest, four pixels of white between."""
    height = min(picture.shape[0] for picture in pictures)
    row: list[Image] = []
    for picture in pictures:
        width = round(picture.shape[1] * height / picture.shape[0])
        same = picture.shape[:2] == (height, width)
        scaled = picture if same else np.asarray(Pillow.fromarray(picture).resize((width, height)))
        row += [scaled, np.full((height, 4, 3), 255, np.uint8)]
    return np.ascontiguousarray(np.concatenate(row[:-1], axis=1))
