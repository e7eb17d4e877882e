"""What lies about, and the last seconds of it; images with their age."""

import numpy as np
import pytest

from vla_ros.core.clock import SECOND
from vla_ros.viz.viewer.model import (
    HISTORY_SECONDS,
    OLD,
    ViewHistory,
    ViewInstant,
    age_text,
    burnt,
    side_by_side,
    thing_shape,
)


def at(x):
    place = np.eye(4)
    place[0, 3] = x
    return place


def test_looking_back_finds_the_instant_of_then():
    past = ViewHistory()
    for i in range(HISTORY_SECONDS * 20 + 40):
        past.add(ViewInstant(i * SECOND // 20, poses={"red_cube": at(i / 20)}))
    now = past.now.poses["red_cube"][0, 3]
    assert past.at(0.0) is past.now
    assert past.at(5.0).poses["red_cube"][0, 3] == pytest.approx(now - 5.0, abs=0.06)
    assert past.at(1e6).poses["red_cube"][0, 3] == pytest.approx(now - HISTORY_SECONDS, abs=0.2)


def test_the_arrow_leads_where_half_a_second_of_the_command_would():
    step = np.array([0.01, 0.0, 0.0])
    instant = ViewInstant(0, poses={"gripper": at(0.5), "red_cube": at(0.0)}, step=step)
    start, end = instant.arrow(20.0)
    assert start.tolist() == [0.5, 0.0, 0.0]
    assert end == pytest.approx([0.6, 0.0, 0.0])
    turned = np.eye(4)
    turned[:2, :2] = [[0, -1], [1, 0]]
    fifth = ViewInstant(0, poses=instant.poses, step=step / 5)  # of five commands an action
    assert fifth.arrow(100.0)[1] == pytest.approx(end)
    assert instant.arrow(20.0, turned)[1] == pytest.approx([0.5, 0.1, 0.0])
    assert ViewInstant(0, poses={"gripper": at(0.0)}, step=np.zeros(3)).arrow(20.0) is None
    assert ViewInstant(0, step=step).arrow(20.0) is None
    assert list(instant.things()) == ["red_cube"]
    assert thing_shape("red_cube").color != thing_shape("blue_cube").color


def test_the_age_is_burnt_in_and_red_where_it_is_too_high():
    image = np.full((256, 256, 3), 120, np.uint8)
    fresh, old = burnt(image, 80.0, 500.0), burnt(image, 800.0, 500.0)
    assert (fresh[:200] == 120).all() and (old[:200] == 120).all()

    def has(picture, color):
        return bool((picture == color).all(axis=2).any())

    assert has(old, OLD) and not has(fresh, OLD)
    assert has(fresh, (255, 255, 255)) and has(fresh, (0, 0, 0))
    assert not has(burnt(image, 800.0, 0.0), OLD)  # no limit is known
    assert (image == 120).all()


@pytest.mark.parametrize(
    ("ms", "text"), [(83.4, "83 ms"), (12_340.0, "12 s"), (-5.0, "-5 ms: clocks differ")]
)
def test_ages_in_words(ms, text):
    assert age_text(ms) == text


def test_pictures_of_any_size_stand_in_one_row():
    wide, square = np.zeros((240, 320, 3), np.uint8), np.zeros((120, 120, 3), np.uint8)
    assert side_by_side([wide, square]).shape == (120, 160 + 4 + 120, 3)
    assert side_by_side([square]).shape == (120, 120, 3)
