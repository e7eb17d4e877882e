"""How many of a camera's pictures come is seen by their stamps; a decoder takes the newest."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from vla_ros.core.clock import MS, SECOND, Moment
from vla_ros.ros.nodes.policy.cameras import Decoder, LossWatch

PERIOD = SECOND // 30


def watched(kept, jitter=0):
    """After those of 300 pictures, 10 s, that ``kept`` says came."""
    watch = LossWatch()
    for number in range(300):
        if kept(number):
            stamp = number * PERIOD + jitter * (number % 3)
            watch.frame(SECOND + stamp, stamp + 2 * MS)
    return watch


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        (lambda n: True, False),
        (lambda n: n % 10 != 3, False),
        (lambda n: n % 17 == 0 or n % 23 == 0, True),
        (lambda n: n % 100 in (0, 1, 40, 70), True),
    ],
    ids=["all", "nine of ten", "one of ten", "one of thirty"],
)
def test_far_fewer_pictures_than_are_sent_are_told_once(kept, says):
    watch = watched(kept, jitter=3 * MS)
    line = watch.told("/image", reliable=False)
    assert bool(line) is says
    if says:
        assert "/image: " in line and "reliabl" in line and "FASTDDS_DEFAULT_PROFILES_FILE" in line
        assert watch.told("/image", reliable=False) == ""
        assert "does not keep up" in watched(kept).told("/image", reliable=True)


def test_a_slow_camera_loses_nothing():
    assert watched(lambda n: n % 6 == 0).told("/image", reliable=False) == ""
    assert watched(lambda n: n % 150 == 0).told("/image", reliable=False) == ""


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
