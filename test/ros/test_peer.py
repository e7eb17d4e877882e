"""The tests' own place in the graph goes when it is closed, and not under a callback that runs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from std_msgs.msg import String

from support.ros import RosPeer
from support.wait import wait_until
from vla_ros.action import ExecuteInstruction

TEST = Path(__file__).resolve().parents[1]


def participants() -> int:
    """How many participants of Fast DDS live in this process: each has one thread of timers."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            found += task.joinpath("comm").read_text().startswith("dds.ev")
    return found


def settled(count: int) -> None:
    """Wait for that many: a thread names itself a moment after it was started, and a joined one
    leaves /proc a moment after it ended."""
    wait_until(lambda: participants() == count, 5.0, f"{count} participants")


def test_a_peer_that_is_closed_leaves_the_graph_at_once(ros_domain, ros_env):
    """With an action client too: it kept node and participant until it was collected, in whatever
    thread, long after their context had ended."""
    before = participants()
    peer = RosPeer(ros_domain)
    peer.publisher(String, "said").publish(String(data="x"))
    client = peer.action_client(ExecuteInstruction, "go")
    settled(before + 1)
    peer.close()
    settled(before)
    peer.close()  # the same twice
    del client


def test_a_process_may_end_without_closing_its_peer(ros_domain, ros_env):
    """A test run that is cut short: it was aborted in every other case."""
    code = f"import sys; sys.path.insert(0, {str(TEST)!r}); from support.ros import RosPeer; "
    code += (
        f"from std_msgs.msg import String; peer = RosPeer({ros_domain}); peer.inbox(String, 'x')"
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_nothing_is_taken_down_under_a_callback(ros_domain, ros_env):
    """A busy machine lets a callback take seconds: rclpy's own shutdown does not wait for it."""
    entered, done = threading.Event(), threading.Event()

    def slow(_: String) -> None:
        entered.set()
        time.sleep(2.5)
        peer.node.get_clock().now()
        done.set()

    peer = RosPeer(ros_domain)
    peer.node.create_subscription(String, "said", slow, 10)
    publisher = peer.publisher(String, "said")
    peer.wait_for_subscriber(publisher)
    publisher.publish(String(data="x"))
    wait_until(entered.is_set, 5.0, "the callback")
    peer.close()
    assert done.is_set()


def test_a_callback_that_never_ends_is_said_and_nothing_is_taken_from_it(ros_domain, ros_env):
    entered, release = threading.Event(), threading.Event()
    before = participants()
    peer = RosPeer(ros_domain)
    peer.node.create_timer(0.01, lambda: (entered.set(), release.wait()))
    peer._executor.wake()
    wait_until(entered.is_set, 5.0, "the callback")
    settled(before + 1)
    with pytest.raises(AssertionError, match="callback"):
        peer.close(timeout=0.2)
    assert participants() == before + 1, "its node is still whole"
    release.set()
    peer.close()
    settled(before)
