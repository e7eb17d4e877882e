"""How many of a camera's pictures come is seen by their stamps; a decoder takes the newest."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from vla_ros.core.clock import MS, SECOND, Moment
from vla_ros.ros.nodes.policy.cameras import Decoder, LossWatch

PERIOD = SECOND // 30


def told(kept, jitter=0, reliable=False, seconds=15):
    """What is said while those pictures come that ``kept`` says do, of 30 a second."""
    watch, said = LossWatch(), []
    for number in range(30 * seconds):
        stamp = number * PERIOD + jitter * (number % 3)
        if kept(number):
            watch.frame(SECOND + stamp, stamp + 2 * MS)
        if number % 15 == 0:
            said.append(watch.told("/image", reliable, stamp))
    return [line for line in said if line]


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        (lambda n: True, False),
        (lambda n: n % 10 != 3, False),
        (lambda n: n % 17 == 0 or n % 23 == 0, True),
        (lambda n: n % 100 in (0, 1, 40, 70), True),
        (lambda n: n % 160 in (0, 1, 70, 140), True),
    ],
    ids=["all", "nine of ten", "one of ten", "one of thirty", "some windows with too few to tell"],
)
def test_far_fewer_pictures_than_are_sent_are_told_once(kept, says):
    lines = told(kept, jitter=3 * MS)
    assert len(lines) == says
    for line in lines:
        assert "/image: " in line and "reliabl" in line and "FASTDDS_DEFAULT_PROFILES_FILE" in line
        assert "does not keep up" in told(kept, reliable=True)[0]


def test_a_slow_camera_loses_nothing():
    assert told(lambda n: n % 6 == 0) == []
    assert told(lambda n: n % 150 == 0) == []


def test_two_pictures_close_together_are_no_period_of_the_camera():
    assert told(lambda n: n % 15 == 0 or n == 91) == []


def test_a_decoder_leaves_out_what_came_while_it_decoded_another():
    busy, free, seen = threading.Event(), threading.Event(), []

    def take(raw: bytes, received: Moment) -> None:
        seen.append(raw)
        busy.set()
        assert free.wait(10.0)

    decoder = Decoder(take)
    decoder.put(b"0", Moment(0, 0))
    assert busy.wait(10.0)
    for number in range(1, 9):
        decoder.put(b"%d" % number, Moment(0, 0))
    busy.clear()
    free.set()
    assert busy.wait(10.0)
    decoder.close()
    assert seen == [b"0", b"8"]
