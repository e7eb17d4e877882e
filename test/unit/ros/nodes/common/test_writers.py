"""Who publishes what on a topic."""

from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from vla_ros.core.clock import MS, SECOND
from vla_ros.ros.common.writers import StreamWriters, TopicPublishers

A, B = b"a" * 16, b"b" * 16


def test_two_that_publish_different_things_are_both_heard():
    contest = TopicPublishers()
    for step in range(300):
        assert contest.rivals("arm", A, step * 10 * MS) is None
        assert contest.rivals("hand", B, step * 10 * MS) is None


def test_while_both_publish_one_thing_neither_is_heard():
    contest = TopicPublishers()
    assert contest.rivals("arm", A, 0) is None
    assert contest.rivals("arm", B, 10 * MS) == (), "the first may have ended"
    assert contest.rivals("arm", A, 20 * MS) == (A, B)
    assert contest.rivals("arm", B, 30 * MS) == (B, A)
    assert contest.rivals("arm", B, 20 * MS + SECOND) == (B, A)
    assert contest.rivals("arm", B, 21 * MS + SECOND) is None, "one has been silent"
    assert contest.rivals("arm", A, 22 * MS + SECOND) == ()


def test_a_writer_that_was_restarted_is_waited_for_and_not_named():
    contest = TopicPublishers()
    contest.rivals("arm", A, 0)
    found = [contest.rivals("arm", B, step * 100 * MS) for step in range(1, 13)]
    assert found == [()] * 10 + [None] * 2


def test_writers_beyond_number_fill_no_memory():
    contest = TopicPublishers()
    for number in range(100):
        contest.rivals("arm", bytes([number]) * 16, number)
    assert len(contest._runs["arm"]) <= 8


def of(gid):
    return {"publisher_gid": {"data": gid}}


def test_what_is_contested_is_named_with_its_nodes():
    listed = [
        SimpleNamespace(endpoint_gid=list(A), node_namespace="/", node_name="driver"),
        SimpleNamespace(endpoint_gid=list(B) + [0] * 8, node_namespace="/left", node_name="other"),
    ]
    asked = []
    node = SimpleNamespace(
        resolve_topic_name=lambda topic: f"/{topic}",
        get_publishers_info_by_topic=lambda topic: asked.append(topic) or listed,
    )
    joints, camera = StreamWriters(node, "joint_states"), StreamWriters(node, "image")
    for writers, thing in ((joints, "j1"), (camera, "")):
        assert writers.contested([thing, "k"], of(A), 0) == {}
        assert writers.contested([thing], of(B), 1) == {thing: ""}
        for step in range(5):
            told = writers.contested([thing], of(A), 2 + step)
        what = "joint 'j1' on /joint_states" if thing else "/image"
        assert told == {
            thing: f"{what} is published by two nodes, /driver and /left/other:"
            " stop all but one, or remap them"
        }
    assert asked == ["/joint_states", "/image"], "once each"


def test_a_middleware_that_names_no_writer_is_believed():
    node = SimpleNamespace(resolve_topic_name=lambda topic: f"/{topic}")
    writers = StreamWriters(node, "image")
    assert writers.contested([""], {"received_timestamp": 0}, 0) == {}
