"""Strips: evenly spaced frames of an episode of any length, in bounded memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vla_ros.data.episodes.records import Job
from vla_ros.data.episodes.store import FrameStrip, strip_paths


def frame(step: int, size: int = 8) -> np.ndarray:
    """An image that says its step in two of its colors."""
    return np.full((size, size, 3), (step // 256, step % 256, 7), np.uint8)


def steps_of(path, size: int = 8) -> list[int]:
    """The steps of the frames in a strip."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    assert pixels.shape[0] == size
    starts = range(0, pixels.shape[1], size + 3)
    return [256 * pixels[4, x + 4, 0] + pixels[4, x + 4, 1] for x in starts]


@settings(max_examples=60, deadline=None)
@given(steps=st.integers(1, 3000), frames=st.integers(2, 9), begin=st.integers(0, 3))
def test_frames_are_even_from_the_first_to_the_last(tmp_path_factory, steps, frames, begin):
    strip = FrameStrip(frames, tile=8)
    for step in range(begin, begin + steps):
        strip.add(frame(step), step)
    path = tmp_path_factory.mktemp("strip") / "deep" / "a.png"
    assert strip.save(path)
    shown = steps_of(path)
    assert len(shown) == len(strip) == min(frames, steps)
    assert shown[0] == begin
    assert shown[-1] == begin + steps - 1
    even = (steps - 1) / (frames - 1)
    wanted = begin + np.arange(frames) * even
    if steps >= frames:
        # frames are kept at a stride of at most half the distance of two of them
        assert np.abs(np.array(shown) - wanted).max() <= max(1.0, even / 2)


def test_memory_does_not_grow_with_the_episode():
    strip = FrameStrip(4, tile=8)
    for step in range(5000):
        strip.add(frame(step), step)
    assert len(strip._kept) <= 16


def test_frames_may_come_at_some_steps_only(tmp_path):
    strip = FrameStrip(3, tile=8)
    for step in range(5, 1000, 7):
        strip.add(frame(step), step)
    strip.save(tmp_path / "a.png")
    first, middle, last = steps_of(tmp_path / "a.png")
    assert (first, last) == (5, 999)
    assert abs(middle - 502) <= 100


def test_large_frames_become_small_ones_and_keep_their_shape(tmp_path):
    strip = FrameStrip(2, tile=64)
    for step in range(3):
        strip.add(np.zeros((240, 320, 3), np.uint8), step)
    assert strip.save(tmp_path / "a.jpg")
    with Image.open(tmp_path / "a.jpg") as image:
        assert image.format == "JPEG"
        assert image.size == (64 + 3 + 64, 48)


def test_the_callers_image_may_change_afterwards(tmp_path):
    strip, image = FrameStrip(2, tile=8), frame(0)
    strip.add(image, 0)
    image[:] = 255
    strip.add(frame(1), 1)
    strip.save(tmp_path / "a.png")
    assert steps_of(tmp_path / "a.png") == [0, 1]


def test_without_frames_there_is_no_file(tmp_path):
    assert not FrameStrip().save(tmp_path / "a.jpg")
    assert not (tmp_path / "a.jpg").exists()


@pytest.mark.parametrize(
    "image",
    [np.zeros((8, 8), np.uint8), np.zeros((8, 8, 4), np.uint8), np.zeros((8, 8, 3), np.float32)],
)
def test_what_is_no_picture_is_refused(image):
    with pytest.raises(ValueError, match=r"uint8 \[H, W, 3\]"):
        FrameStrip().add(image, 0)


def test_a_strip_needs_two_frames():
    with pytest.raises(ValueError, match="2 frames"):
        FrameStrip(frames=1)


def test_the_first_episode_of_every_task_of_the_first_variant_gets_a_strip():
    jobs = [
        Job(variant, task, state, 0, number=number)
        for number, (variant, state, task) in enumerate(
            (v, s, t) for v in ("first", "second") for s in (0, 1) for t in ("reach a", "pick/../b")
        )
    ]
    paths = strip_paths(reversed(jobs))
    assert paths == {
        jobs[0].key(): "strips/001_reach_a.jpg",
        jobs[1].key(): "strips/002_pick_.._b.jpg",
    }
    assert strip_paths([]) == {}
