"""How many of a camera's pictures come is seen by their stamps; a decoder takes the newest."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from vla_ros.core.clock import SECOND, Moment
from vla_ros.ros.nodes.policy.cameras import Decoder, LossWatch

PERIOD = SECOND // 30


def info(number, writer=b"one"):
    return {"publication_sequence_number": number, "publisher_gid": {"data": writer}}


def told(kept, reliable=False, writers=(b"one",), seconds=10):
    """What is said while those pictures come that ``kept`` says do, of 30 a second."""
    watch, said = LossWatch(), []
    for number in range(30 * seconds):
        for writer in writers if kept(number) else ():
            watch.picture(info(1000 + number, writer), number * PERIOD)
        if number % 15 == 0:
            said.append(watch.told("/image", reliable))
    return [line for line in said if line]


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
    lines = told(kept)
    assert len(lines) == says == len(told(kept, writers=(b"one", b"two")))
    for line in lines:
        assert "/image: " in line and "reliabl" in line and "FASTDDS_DEFAULT_PROFILES_FILE" in line
        assert "does not keep up" in told(kept, reliable=True)[0]


def test_what_is_heard_twice_or_has_no_number_is_no_loss():
    watch = LossWatch()
    for number in range(1, 60):
        watch.picture(info(number), number * PERIOD)
        watch.picture(info(number), number * PERIOD)  # by the reader before this one
        watch.picture({"received_timestamp": 0}, number * PERIOD)  # Humble
    assert watch.told("/image", reliable=False) == ""


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
