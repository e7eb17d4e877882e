"""The monitor beside a real policy node: it hears of the camera that the policy looks through, by
whichever topic and transport, and asks for no image itself."""

from __future__ import annotations

import io

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from diagnostic_msgs.msg import DiagnosticArray
from PIL import Image as Pillow
from sensor_msgs.msg import CompressedImage, Image

from support.wait import repeating
from vla_ros.msg import MonitorReport
from vla_ros.ros.common import qos

OK = b"\x00"


def photo() -> CompressedImage:
    stream = io.BytesIO()
    Pillow.new("RGB", (64, 48), 77).save(stream, "JPEG")
    message = CompressedImage(format="jpeg")
    message.data.frombytes(stream.getvalue())
    return message


def raw() -> Image:
    message = Image(height=6, width=8, encoding="rgb8", step=24)
    message.data.frombytes(bytes(144))
    return message


def filming(ros, message, topic):
    """Its images at 20 Hz, as a driver publishes them."""
    publisher = ros.publisher(type(message), topic, qos.IMAGE_PUB)

    def show() -> None:
        message.header.stamp = ros.node.get_clock().now().to_msg()
        publisher.publish(message)

    return repeating(show, 0.05)


def camera_of(diagnostics, topic):
    """The next judgement of a camera in order, by its topic."""

    def seen(array):
        return any(
            one.name == "monitor: camera"
            and one.level == OK
            and any(v.key == "topic" and v.value == topic for v in one.values)
            for one in array.status
        )

    return diagnostics.wait_new(seen, timeout=30.0)


def readers(ros, topic):
    return {one.node_name for one in ros.node.get_subscriptions_info_by_topic(topic)}


def test_it_follows_topic_and_transport_of_the_policy(spawn_node, ros):
    spawn_node("monitor", {"window_s": 5.0})
    diagnostics = ros.inbox(DiagnosticArray, "/diagnostics")
    reports = ros.inbox(MonitorReport, "/monitor/report")
    diagnostics.wait(lambda m: "no image yet" in str(m.status), timeout=60.0)
    spawn_node(
        "policy",
        {"policy": "zero", "cameras.main.topic": "front", "cameras.main.transport": "compressed"},
        remappings={"front": "/cell/front"},
    )
    ros.bring_up("/policy")
    with filming(ros, photo(), "/cell/front/compressed"):
        camera_of(diagnostics, "/cell/front/compressed")
        reports.wait_new(lambda m: m.camera_rate_hz > 5.0, timeout=30.0)
        assert readers(ros, "/cell/front/compressed") == {"policy"}

        # Configured anew, with another camera.
        for transition in ("deactivate", "cleanup"):
            assert ros.change_state("/policy", transition)
        assert ros.set_parameter("/policy", "cameras.main.topic", "/side")[0]
        assert ros.set_parameter("/policy", "cameras.main.transport", "raw")[0]
        ros.bring_up("/policy")
        with filming(ros, raw(), "/side"):
            camera_of(diagnostics, "/side")
            assert readers(ros, "/side") == {"policy"}
            assert readers(ros, "/image") == set()


def test_what_a_policy_without_a_word_sees_is_not_known(spawn_node, ros):
    """A camera that stands still is told from a policy that does."""
    spawn_node("monitor", {"status_timeout_s": 60.0, "camera_timeout_s": 0.5})
    policy = spawn_node("policy", {"policy": "zero"})
    diagnostics = ros.inbox(DiagnosticArray, "/diagnostics")
    ros.bring_up("/policy")
    with filming(ros, raw(), "/image"):
        camera_of(diagnostics, "/image")
        policy.kill()
        told = "not known: the policy, which reports what it sees, is silent"
        diagnostics.wait_new(
            lambda m: any(s.name == "monitor: camera" and told in s.message for s in m.status),
            timeout=30.0,
        )
