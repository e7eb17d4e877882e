import numpy as np
import pytest

from vla_ros_lab.train.demonstrations import decode, encode


def moving_square(count, size=64):
    frames = np.full((count, size, size, 3), (190, 160, 120), np.uint8)
    for number, frame in enumerate(frames):
        frame[20:32, 4 + number : 16 + number] = (210, 20, 20)
    return frames


@pytest.mark.parametrize("count", [1, 2, 25])
def test_every_frame_comes_back_nearly_as_it_was(count):
    frames = moving_square(count)
    back = decode(encode(frames))
    assert back.shape == frames.shape and back.dtype == np.uint8
    assert np.abs(back.astype(int) - frames).mean() < 3
    assert back[-1, 26, 10 + count - 1, 0] > 180  # the square is where it went
    assert back[-1, 26, 10 + count - 1, 1] < 60


def test_repeated_frames_are_not_dropped():
    frames = np.repeat(moving_square(1), 9, axis=0)
    assert len(decode(encode(frames))) == 9


def test_the_same_frames_come_back_the_same():
    assert np.array_equal(decode(encode(moving_square(5))), decode(encode(moving_square(5))))


def test_what_stands_still_costs_little():
    assert len(encode(np.repeat(moving_square(1), 50, axis=0))) < 3000
