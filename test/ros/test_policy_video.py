"""Cameras that send video: what moves the robot is an image of its own moment, or nothing."""

from __future__ import annotations

import importlib
import itertools
import os
import sys

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("av", reason="PyAV is not installed: pip install '.[video]'")

from sensor_msgs.msg import CompressedImage

from support import built_messages
from support.policy_client import PolicyRig, moves
from support.video import packets
from support.wait import repeating, wait_until
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.common.convert import stamp_of

PACKAGES = {"ffmpeg": "ffmpeg_image_transport_msgs", "foxglove": "foxglove_msgs"}
KEY_EVERY = 40  # 2 s at 20 Hz


@pytest.fixture(scope="module")
def film():
    return packets(400, key_every=KEY_EVERY)


@pytest.fixture(params=["ffmpeg", "foxglove", "compressed"])
def rig(request, ros, spawn_node, ros_env, tmp_path, monkeypatch):
    """A policy node that reads packets of a transport; ``packet(data)`` makes one of now."""
    transport = request.param
    package, path = PACKAGES.get(transport), os.environ.get("PYTHONPATH", "")
    if package:
        try:
            folder = built_messages.where(package, tmp_path)
        except LookupError as missing:
            pytest.skip(str(missing))
        if folder:
            monkeypatch.syspath_prepend(folder)
            path = os.pathsep.join(filter(None, (folder, path)))
    parameters = {
        "policy": "replay",
        "replay_file": moves(tmp_path),
        "image_transport": transport,
        "max_age_s": 0.5,
    }
    node = spawn_node("policy", parameters, extra_env={"PYTHONPATH": path})
    rig = PolicyRig(ros, node, ros_env, [])
    rig.topic = f"image/{transport}"

    def packet(data):
        stamp = ros.node.get_clock().now().to_msg()
        if transport == "foxglove":
            message = importlib.import_module("foxglove_msgs.msg").CompressedVideo(format="h264")
            message.timestamp = stamp
        elif transport == "ffmpeg":
            message = importlib.import_module(f"{package}.msg").FFMPEGPacket(encoding="libx264")
            message.header.stamp = stamp
        else:
            message = CompressedImage(format="h264")
            message.header.stamp = stamp
        message.data.frombytes(data)
        return message

    rig.packet = packet
    yield rig
    for name in [name for name in sys.modules if package and name.startswith(package)]:
        del sys.modules[name]


@pytest.mark.long
def test_a_lost_packet_holds_the_robot_until_the_next_key_frame(rig, film):
    rig.bring_up("reach")
    sent, lose = [], []
    numbers = itertools.count()

    def show():
        number = next(numbers)
        if lose and number % KEY_EVERY == KEY_EVERY // 4:
            lose.clear()
            return
        message = rig.packet(film[number % len(film)])
        stamp = getattr(message, "timestamp", None) or message.header.stamp
        sent.append((stamp_of(stamp), number))
        rig.show(message, rig.topic)

    with repeating(show, 0.05):
        rig.expect(State.RUNNING, timeout=20.0)
        rig.wait_for(CommandKind.POLICY, len(rig.commands))
        lose.append(True)
        rig.expect(State.HOLD, timeout=20.0)
        wait_until(lambda: "frames before a packet were lost" in rig.status.last.last_drop, 5.0)
        rig.expect(State.RUNNING, timeout=20.0)
        rig.wait_for(CommandKind.POLICY, len(rig.commands))
    by_stamp = dict(sent)
    lost = next(b - 1 for (_, a), (_, b) in itertools.pairwise(sent) if b - a == 2)
    void = range(lost, lost - lost % KEY_EVERY + KEY_EVERY)
    used = [by_stamp[stamp_of(m.latest_observation_stamp)] for m in rig.commands.messages
            if m.kind == CommandKind.POLICY]  # fmt: skip
    assert used and not set(used) & set(void), (lost, used)
    assert max(used) >= void.stop > void.start > min(used)
    rig.check_commands(0.5)


def test_a_package_of_messages_that_is_missing_is_named_when_the_node_is_configured(
    ros, spawn_node, ros_env, tmp_path
):
    parameters = {"policy": "replay", "replay_file": moves(tmp_path), "image_transport": "ffmpeg"}
    rig = PolicyRig(ros, spawn_node("policy", parameters), ros_env, [])
    with pytest.raises(AssertionError):
        rig.bring_up()
    rig.node.wait_for_log(
        "transport ffmpeg of image needs ffmpeg_image_transport_msgs, which is not installed here:"
        " apt install ros-$ROS_DISTRO-ffmpeg-image-transport-msgs"
    )
