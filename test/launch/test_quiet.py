"""A healthy graph is quiet: no warning, ours or the middleware's; each fault is said once."""

import re
import signal
import time

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from std_msgs.msg import String

from support.ros import RosPeer
from support.timing import QUIET
from support.wait import wait_until
from vla_ros.msg import EpisodeStatus, PolicyStatus
from vla_ros.ros.common.qos import LATCHED, STATUS

BAD = re.compile(r"\[(WARN|ERROR|FATAL)\]|Traceback|incompatible QoS", re.IGNORECASE)


def bad_lines(log):
    return [line for line in log.splitlines() if BAD.search(line)]


def test_a_healthy_run_from_start_to_end_warns_of_nothing(up, ros):
    """Two episodes of a policy that solves them, and the end: in a world that waits, where the
    machine's load is no fault of the graph."""
    pytest.importorskip("mujoco")
    graph = up(
        "sim" if QUIET else "lockstep",
        *("-p", "policy.policy=scripted"),
        *("-p", "bridge.task=reach_green_cube", "-p", "bridge.image_size=64"),
        *("-p", "bridge.reset_pause_s=1.0"),
    )
    episodes = ros.inbox(EpisodeStatus, "/bridge/episode", LATCHED)
    final = (EpisodeStatus.STATE_SUCCESS, EpisodeStatus.STATE_FAILURE)
    for number in (1, 2):
        end = episodes.wait(lambda m, n=number: m.episode == n and m.state in final, timeout=60)
        assert end.state == EpisodeStatus.STATE_SUCCESS, end.reason
    time.sleep(1.5)  # the monitor looks once a second
    graph.signal(signal.SIGINT)
    assert graph.wait(30) == 0
    assert bad_lines(graph.log) == []


@pytest.mark.long
def test_a_volatile_writer_of_the_instruction_is_heard_and_nobody_warns(up, ros, capfd):
    """The default of `ros2 topic pub`; the middleware would warn in both logs."""
    graph = up("policy")
    graph.wait_for_log("everything is running", timeout=60)
    publisher = ros.publisher(String, "/instruction", 10)
    ros.wait_for_subscriber(publisher)
    publisher.publish(String(data="pick up the cube"))
    status = ros.inbox(PolicyStatus, "/policy/status", STATUS)
    status.wait(lambda m: m.instruction == "pick up the cube", timeout=10)
    time.sleep(1.0)
    assert "incompatible" not in graph.log.lower()
    assert "incompatible" not in capfd.readouterr().err.lower()


@pytest.mark.long
def test_a_latched_instruction_from_before_and_from_after_the_start_is_heard(up, ros):
    publisher = ros.publisher(String, "/instruction", LATCHED)
    publisher.publish(String(data="first"))
    graph = up("policy")
    status = ros.inbox(PolicyStatus, "/policy/status", STATUS)
    status.wait(lambda m: m.instruction == "first", timeout=60)
    late = []
    try:
        for text in ("second", "third", "fourth"):  # the others stay, and latch what was before
            late.append(RosPeer(ros.domain, text))
            late[-1].publisher(String, "/instruction", LATCHED).publish(String(data=text))
            status.wait(lambda m, text=text: m.instruction == text, timeout=10)
    finally:
        for peer in late:
            peer.close()
    assert "incompatible" not in graph.log.lower()


@pytest.mark.long
def test_running_names_what_is_missing_and_says_it_once(up):
    graph = up("policy")
    graph.wait_for_log("everything is running", timeout=60)
    line = next(one for one in graph.log.splitlines() if "everything is running" in one)
    assert "no image on /image" in line and "an instruction" in line, line
    time.sleep(4.0)
    said = [one for one in graph.log.splitlines() if "no image on /image" in one and "WARN" in one]
    assert len(said) <= 1, said


@pytest.mark.long
def test_a_refusal_is_said_once_and_last(up):
    graph = up("policy", "-p", "policy.policy=vla", "-p", "policy.checkpoint=random:tiny")
    assert graph.wait(60) == 1
    lines = graph.log.splitlines()
    said = [line for line in lines if "'random:tiny' is unknown" in line]
    assert len(said) == 1 and lines[-1] == said[0], graph.log
    assert lines[-1].startswith("vla-ros up: policy refused to configure: ")


@pytest.mark.long
def test_a_second_graph_leaves_the_nodes_of_the_first_alone(up, ros):
    first = up("policy")
    first.wait_for_log("everything is running", timeout=60)
    before = first.log
    second = up("policy")
    assert second.wait(60) == 1
    last = second.log.splitlines()[-1]
    # On a busy machine one of the two may be discovered, and that is enough.
    assert re.search(r"/(monitor|policy) runs? in domain \d+ already: end .*--namespace", last), (
        last
    )
    assert "Traceback" not in second.log and first.returncode is None
    time.sleep(1.0)
    bad = bad_lines(first.log.removeprefix(before))
    assert [line for line in bad if "camera: no image" not in line] == []
    third = up("policy", "--namespace", "arm")
    third.wait_for_log("everything is running", timeout=60)


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.3, 1.0, 1.6])
def test_ctrl_c_in_the_first_seconds_gives_no_traceback(up, seconds):
    graph = up("policy")
    wait_until(lambda: "started" in graph.log, 30)
    time.sleep(seconds)
    graph.signal(signal.SIGINT)
    graph.wait(30)
    assert "Traceback" not in graph.log and "KeyboardInterrupt" not in graph.log
    assert graph.returncode in (0, 130), graph.log
