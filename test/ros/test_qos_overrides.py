"""qos_overrides: what a running node's publishers and subscriptions have, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from rclpy.qos import DurabilityPolicy, ReliabilityPolicy

from support.nodes import Program
from support.wait import wait_until

NODE = [sys.executable, "-m", "vla_ros.ros.nodes.{}.node", "--ros-args"]


def command(node: str, *values: str) -> list[str]:
    words = [word for value in values for word in ("-p", f"qos_overrides.{value}")]
    return [*(word.format(node) for word in NODE), *words]


def offered(ros, topic, kind):
    """Profile of the one writer or reader of a topic, by the graph."""
    ask = getattr(ros.node, f"get_{kind}_info_by_topic")

    def one():
        found = [info for info in ask(topic) if info.node_name in ("policy", "monitor")]
        return found if len(found) == 1 else None

    return wait_until(one, 20.0, f"{kind} of {topic}")[0].qos_profile


def test_entities_have_what_was_given_and_the_others_what_they_had(ros, ros_env):
    node = Program(
        "monitor",
        command(
            "monitor",
            "/policy/action.subscription.reliability:=best_effort",
            "/policy/action.subscription.depth:=7",
            "/policy/status.subscription.durability:=volatile",
            "/monitor/report.publisher.reliability:=best_effort",
            "/policy/actoin.subscription.depth:=3",
        ),
        ros_env,
    )
    try:
        best, reliable = ReliabilityPolicy.BEST_EFFORT, ReliabilityPolicy.RELIABLE
        assert offered(ros, "/policy/action", "subscriptions").reliability == best
        assert offered(ros, "/policy/shadow/action", "subscriptions").reliability == reliable
        status = offered(ros, "/policy/status", "subscriptions")
        assert status.durability == DurabilityPolicy.VOLATILE
        assert status.reliability == reliable
        assert offered(ros, "/monitor/report", "publishers").reliability == best
        # One profile is that of all reports: rclpy writes into the one that it is given.
        assert offered(ros, "/policy/latency", "subscriptions").reliability == reliable
        node.wait_for_log(
            "as given: qos_overrides./policy/action.subscription.reliability best_effort,"
            " qos_overrides./policy/action.subscription.depth 7"
        )
        node.wait_for_log(
            "qos_overrides./policy/actoin.subscription.depth: this node has no such topic: did you"
            " mean 'qos_overrides./policy/action.subscription'?"
        )
    finally:
        node.kill()


@pytest.mark.parametrize("name", ["recorder", "view"])
def test_who_only_listens_has_what_was_given_too(ros_env, tmp_path, name):
    if name == "view":
        pytest.importorskip("viser", reason="viser is not installed: make view")
    given = ("/policy/action.subscription.depth:=7", "/policy/actoin.subscription.depth:=3")
    own = {"recorder": f"output:={tmp_path / 'bag'}", "view": "port:=8765"}
    node = Program(name, [*command(name, *given), "-p", own[name]], ros_env)
    try:
        node.wait_for_log("as given: qos_overrides./policy/action.subscription.depth 7", 30.0)
        node.wait_for_log("actoin.subscription.depth: this node has no such topic", 30.0)
    finally:
        node.kill()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("/policy/action.subscription.reliability:=sometimes", "`reliability`: `sometimes`"),
        ("/policy/action.subscription.depth:=0", "depth is at least 1"),
        ("/policy/action.subscription.depth:=many", "depth"),
        (
            "/monitor/report.publisher.durability:=transient_local",
            "of a publisher here history, depth, reliability can be given",
        ),
    ],
)
def test_what_is_no_profile_is_refused_in_a_line(ros_env, value, says):
    done = subprocess.run(
        command("monitor", value), env=ros_env, capture_output=True, text=True, timeout=60
    )
    last = (done.stderr.strip().splitlines() or [""])[-1]
    assert done.returncode == 2 and last.startswith("bad parameter: "), done.stderr
    assert "qos_overrides./" in last and says in last


def test_the_policy_s_are_those_of_configure_again_after_cleanup(start_policy, ros):
    rig = start_policy(
        **{
            "qos_overrides./image.subscription.reliability": "reliable",
            "qos_overrides./policy/latency.publisher.reliability": "best_effort",
        }
    )
    best, reliable = ReliabilityPolicy.BEST_EFFORT, ReliabilityPolicy.RELIABLE
    assert offered(ros, "/policy/latency", "publishers").reliability == best
    for _ in range(2):
        rig.bring_up()
        assert offered(ros, "/image", "subscriptions").reliability == reliable
        assert ros.change_state("policy", "deactivate")
        assert ros.change_state("policy", "cleanup")
