"""Serialized images and texts, read without the middleware's own readers."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from hypothesis import given
from hypothesis import strategies as st
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String

from endurance.mutate import spoilt_bytes
from vla_ros.core.pixels import BadMessage, image_of
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.common.convert import to_time
from vla_ros.ros.common.serialized import read_compressed, read_image, read_text

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9)
STAMPS = st.integers(0, 2**31 * 10**9 - 1)
SIZES = st.integers(0, 2**32 - 1)


@given(STAMPS, TEXTS, SIZES, SIZES, TEXTS, SIZES, st.binary(max_size=40))
def test_an_image_is_read_as_it_was_written(stamp, frame, height, width, encoding, step, data):
    message = Image(height=height, width=width, encoding=encoding, step=step, data=data)
    message.header.stamp, message.header.frame_id = to_time(stamp), frame
    read = read_image(bytes(serialize_message(message)))
    assert (read.stamp_ns, read.height, read.width) == (stamp, height, width)
    assert (read.encoding, read.step, bytes(read.data)) == (encoding, step, data)


@given(STAMPS, TEXTS, TEXTS, st.binary(max_size=40))
def test_a_compressed_image_is_read_as_it_was_written(stamp, frame, kind, data):
    message = CompressedImage(format=kind, data=data)
    message.header.stamp, message.header.frame_id = to_time(stamp), frame
    read = read_compressed(bytes(serialize_message(message)))
    assert (read.stamp_ns, read.format, bytes(read.data)) == (stamp, kind, data)


@given(TEXTS)
def test_a_text_is_read_as_it_was_written(text):
    assert read_text(bytes(serialize_message(String(data=text)))) == text


def test_the_other_byte_order_is_read_too():
    little = bytes(serialize_message(Image(height=2, width=3, encoding="mono8", step=3)))
    words = (0, 4, 8, 16, 20, 24, 36)  # after the head: stamp, length of the frame, size, ...
    assert read_image(little).encoding == "mono8"
    body = bytearray(little[4:])
    for at in words:
        body[at : at + 4] = body[at : at + 4][::-1]
    swapped = read_image(b"\0\0\0\0" + bytes(body))
    assert (swapped.height, swapped.width, swapped.encoding, swapped.step) == (2, 3, "mono8", 3)


@given(st.randoms(use_true_random=False))
def test_damaged_bytes_are_read_or_refused_in_one_line(rng):
    good = Image(height=4, width=5, encoding="rgb8", step=15, data=bytes(60))
    for message, read in ((good, read_image), (CompressedImage(data=bytes(9)), read_compressed)):
        raw = spoilt_bytes(bytes(serialize_message(message)), rng)
        try:
            found = read(raw)
            if read is read_image:
                assert image_of(found, 100).nbytes <= 300
        except BadMessage as error:
            assert str(error) and "\n" not in str(error)


def test_damaged_bytes_on_the_image_topic_do_not_end_the_policy(start_policy):
    """They ended it below rclpy: within a hundred on average."""
    rig = start_policy()
    rig.bring_up()
    rig.connect()
    rng, good = random.Random(0), bytes(serialize_message(rig.frame()))
    for _ in range(40):
        before = rig.now().frames_dropped
        # A reader that keeps the newest only may see one of 25, and that one's damage may lie in
        # its pixels, where nobody can tell: more are sent until one is refused.
        for _ in range(40):
            for _ in range(25):
                rig.show(spoilt_bytes(good, rng))
            if rig.now().frames_dropped > before:
                break
        else:
            raise AssertionError("none of 1000 damaged frames was refused")
    rig.instruct("reach")
    with rig.filming():
        rig.expect(State.RUNNING)
        rig.wait_for(CommandKind.POLICY, len(rig.commands))
    rig.check_commands()
