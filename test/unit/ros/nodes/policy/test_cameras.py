"""Most of a camera's images lost is told; a decoder takes the newest."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from vla_ros.core.clock import SECOND, Moment
from vla_ros.ros.nodes.policy.cameras import Decoder, LossWatch

RATE_HZ = 30


def told(kept, reliable=False, seconds=20, loses=True):
    """What is said while those images come that ``kept`` says do, of 30 a second; the others are
    lost on the way, or, without ``loses``, never sent."""
    watch, said = LossWatch(), []
    for number in range(RATE_HZ * seconds):
        if kept(number):
            watch.came()
        elif loses:
            watch.lost(1)
        if number % 15 == 0:
            said.append(watch.warning("/image", reliable, SECOND + number * SECOND // RATE_HZ))
    return [line for line in said if line]


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        (lambda n: True, False),
        (lambda n: n % 10 != 3, False),
        (lambda n: not 150 <= n < 240, False),
        (lambda n: n % 17 == 0 or n % 23 == 0, True),
        (lambda n: n % 100 == 0, True),
        (lambda n: False, True),
    ],
    ids=["all", "nine of ten", "a gap of 3 s", "one of ten", "one of a hundred", "none"],
)
def test_far_fewer_images_than_are_sent_are_warned_of_once(kept, says):
    lines = told(kept)
    assert len(lines) == says
    for line in lines:
        assert "/image: " in line and "reliabl" in line and "FASTDDS_DEFAULT_PROFILES_FILE" in line
        assert "does not keep up" in told(kept, reliable=True)[0]


def test_a_slow_camera_loses_nothing():
    assert told(lambda n: n % 6 == 0, loses=False) == []
    assert told(lambda n: n % 150 == 0, loses=False) == []


def test_a_decoder_leaves_out_what_came_while_it_decoded_another():
    busy, free, seen = threading.Event(), threading.Event(), []

    def take(raw: bytes, received: Moment) -> None:
        seen.append(raw)
        busy.set()
        assert free.wait(10.0)

    decoder = Decoder(take, 1)
    decoder.put(b"0", Moment(0, 0))
    assert busy.wait(10.0)
    for number in range(1, 9):
        decoder.put(b"%d" % number, Moment(0, 0))
    busy.clear()
    free.set()
    assert busy.wait(10.0)
    decoder.close()
    assert seen == [b"0", b"8"]
