"""What the camera saw, as an animated GIF or its last image as PNG."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from vla_ros.core.errors import UserError
from vla_ros.ros.listeners.demo_log import MAX_FRAMES, Film


def test_a_gif_has_every_image_and_lasts_as_long_as_they_did(tmp_path: Path) -> None:
    film = Film(tmp_path / "out.gif")
    ramp = np.arange(32 * 32 * 3).reshape(32, 32, 3)
    for i in range(10):
        assert film.wants()
        film.add(i * 50_000_000, ((ramp // 12 + 20 * i) % 256).astype(np.uint8))
    assert "10 images" in film.save()
    with Pillow.open(tmp_path / "out.gif") as gif:
        assert gif.n_frames == 10
        assert gif.info["duration"] == 50


def test_a_small_thing_keeps_its_color_in_a_gif(tmp_path: Path) -> None:
    film = Film(tmp_path / "out.gif")
    wood = np.random.default_rng(0).integers((150, 110, 70), (200, 160, 110), (64, 64, 3))
    image = wood.astype(np.uint8)
    image[30:34, 30:34] = (250, 220, 20)
    film.add(0, image)
    film.save()
    with Pillow.open(tmp_path / "out.gif") as gif:
        seen = np.array(gif.convert("RGB"))[32, 32]
    assert np.abs(seen - np.array([250, 220, 20])).max() < 20


def test_what_the_middle_image_hides_keeps_its_color_in_the_others(tmp_path: Path) -> None:
    film = Film(tmp_path / "out.gif")
    rng = np.random.default_rng(0)
    shown = [i for i in range(20) if not 4 <= i < 17]
    for i in range(20):
        image = rng.integers((150, 110, 70), (200, 160, 110), (64, 64, 3)).astype(np.uint8)
        if i in shown:
            image[30:34, 30:34] = (220, 20, 30)
        film.add(i * 50_000_000, image)
    film.save()
    with Pillow.open(tmp_path / "out.gif") as gif:
        for i in shown:
            gif.seek(i)
            seen = np.array(gif.convert("RGB"))[32, 32].astype(int)
            assert np.abs(seen - np.array([220, 20, 30])).max() < 20, i


def test_a_long_episode_is_thinned_out_evenly(tmp_path: Path) -> None:
    film = Film(tmp_path / "out.gif")
    kept = []
    for i in range(4 * MAX_FRAMES):
        if film.wants():
            film.add(i, np.zeros((2, 2, 3), np.uint8))
    kept = [stamp for stamp, _ in film._frames]
    assert len(kept) <= MAX_FRAMES
    assert kept[0] == 0
    assert kept[-1] > 4 * MAX_FRAMES - 10
    assert len(set(np.diff(kept))) == 1


def test_a_png_is_the_last_image(tmp_path: Path) -> None:
    film = Film(tmp_path / "out.png")
    for i in range(3):
        film.wants()
        film.add(i, np.full((4, 6, 3), i, np.uint8))
    film.save()
    with Pillow.open(tmp_path / "out.png") as png:
        assert png.size == (6, 4)
        assert png.getpixel((0, 0)) == (2, 2, 2)


@pytest.mark.parametrize("name", ["out.mp4", "out", "no/folder/out.gif"])
def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="--gif"):
        Film(tmp_path / name)
