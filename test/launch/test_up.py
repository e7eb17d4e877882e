"""`vla-ros up`: real nodes come up, say why not, and end cleanly."""

import os
import re
import signal
import time

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")


from support.nodes import run_cli
from support.processes import alive, children
from support.timing import QUIET, judge
from support.wait import wait_until
from vla_ros.msg import EpisodeStatus, PolicyStatus
from vla_ros.ros.bringup.graph import Graph, GraphFailed
from vla_ros.ros.bringup.graph_file import GraphSpec
from vla_ros.ros.common.qos import LATCHED
from vla_ros.sim.so101.world import MODEL_PACKAGE


def test_up_activates_the_policy_and_ends_cleanly_on_sigint(up, ros):
    graph = up("policy", "-p", "policy.instruction=wait", "--namespace", "arm")
    status = ros.inbox(PolicyStatus, "/arm/policy/status", LATCHED)
    seen = status.wait(lambda m: m.state == PolicyStatus.STATE_WAITING, timeout=30)
    assert seen.instruction == "wait"
    graph.wait_for_log("everything is running", timeout=30)
    start = time.monotonic()
    graph.signal(signal.SIGINT)
    assert graph.wait(30) == 0
    judge("the end of the graph", time.monotonic() - start, quiet=4.0, loaded=20.0)
    for line in ("policy: configure done", "policy: activate done", "policy ended with status 0"):
        assert line in graph.log


def test_up_says_that_nothing_moves_in_the_shadow(up):
    graph = up("policy", "-p", "policy.shadow=true")
    graph.wait_for_log("everything is running", timeout=30)
    line = next(one for one in graph.log.splitlines() if "everything is running" in one)
    assert "/policy is WAITING" in line
    assert line.count("SHADOW: nothing of ours moves the robot") == 1
    assert "SHADOW: ~/shadow/action alone" in graph.log  # the table


def test_a_second_ctrl_c_changes_nothing(up, ros):
    """0.3 s after the first, and again while everything ends."""
    graph = up("policy", "-p", "policy.policy=zero")
    graph.wait_for_log("everything is running", timeout=30)
    while graph.returncode is None:
        graph.signal(signal.SIGINT)
        time.sleep(0.05)
    assert graph.wait(30) == 0
    for node in ("monitor", "policy"):
        assert f"{node} ended with status 0" in graph.log


@pytest.mark.timing
def test_up_sim_with_the_shipped_policy_solves_one_task_after_another(up, ros):
    """Nothing but a checkpoint is said: its units are its own, and an end is not a fault. Where the
    machine does other work, in a world that waits: how late actions come there says nothing."""
    pytest.importorskip("torch")
    pytest.importorskip("mujoco")
    task = ("-p", "bridge.task=reach_green_cube", "-p", "bridge.image_size=128")
    vla = ("-p", "policy.policy=vla", "-p", "policy.checkpoint=shipped:tabletop")
    graph = up(
        "sim" if QUIET else "lockstep",
        *vla,
        *task,
        "-p",
        "policy.num_threads=1",
        "-p",
        "bridge.reset_pause_s=1.0",
    )
    episodes = ros.inbox(EpisodeStatus, "/bridge/episode", LATCHED)
    final = (EpisodeStatus.STATE_SUCCESS, EpisodeStatus.STATE_FAILURE)
    for number in (1, 2):
        end = episodes.wait(lambda m, n=number: m.episode == n and m.state in final, timeout=60)
        assert end.state == EpisodeStatus.STATE_SUCCESS, end.reason
        assert end.initial_state == number - 1
    graph.wait_for_log("taken for granted; ? marks a default that nothing says:")
    assert re.search(r"\? units of actions +m m m rad rad rad  \(default\)", graph.log)
    assert re.search(r"episode 1 of reach_green_cube: success after \d+ steps; the next", graph.log)
    assert "camera: no image for" not in graph.log


def test_up_so101_starts_with_the_policy_that_it_has_by_default(up):
    pytest.importorskip("mujoco")
    pytest.importorskip(MODEL_PACKAGE)
    graph = up("so101")
    graph.wait_for_log("everything is running")


@pytest.mark.long
def test_a_refused_configuration_says_why_and_ends_everything(up):
    graph = up("policy", "-p", "policy.policy=vla", "-p", "policy.checkpoint=random:tiny")
    assert graph.wait(60) == 1
    assert "refused to configure" in graph.log
    assert "'random:tiny' is unknown" in graph.log.split("vla-ros up:")[1]
    assert "monitor ended with status 0" in graph.log


@pytest.mark.parametrize(
    ("value", "status", "says"),
    [
        ("control_rate_hz=-4", 2, "control_rate_hz"),
        ("policy=vla", 2, "policy 'vla' needs a checkpoint"),
        ("max_age_s=0.06", 2, "max_age_s 0.06 cannot be met"),
    ],
)
def test_a_bad_parameter_says_which_before_anything_starts(up, value, status, says):
    graph = up("policy", "-p", f"policy.{value}")
    assert graph.wait(30) == status
    (line,) = graph.log.splitlines()
    assert line.startswith("vla-ros up: ") and says in line


def test_a_middleware_that_is_not_installed_is_one_line(ros_env):
    """In a process of its own: rcl ends one that imports rclpy, with a line of its own."""
    env = {**ros_env, "RMW_IMPLEMENTATION": "rmw_nobody_cpp"}
    status, out, err = run_cli("up", "sim", env=env)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1 and "RMW_IMPLEMENTATION is rmw_nobody_cpp" in err


def test_the_death_of_a_node_ends_the_graph(ros_env):
    lines = []
    graph = Graph(
        GraphSpec.load("policy"), environment=ros_env, on_line=lambda node, line: lines.append(line)
    )
    with graph.start():
        monitor, policy = graph.pid("monitor"), graph.pid("policy")
        assert graph.ended() is None
        os.kill(monitor, signal.SIGKILL)
        wait_until(lambda: graph.ended() == "monitor", 10)
        with pytest.raises(GraphFailed, match="monitor was ended by SIGKILL"):
            graph.check()
    wait_until(lambda: not alive(policy), 5.0, "the end of the policy")
    exits = {ended.name: ended for ended in graph.stop()}
    assert exits["policy"].clean and not exits["monitor"].clean


@pytest.mark.long
def test_a_node_that_ignores_signals_is_killed(ros_env, monkeypatch):
    from vla_ros.ros.bringup import graph as module

    monkeypatch.setattr(
        module, "ENDING", ((signal.SIGINT, 5.0), (signal.SIGTERM, 0.3), (signal.SIGKILL, 5.0))
    )
    said = []
    graph = Graph(
        GraphSpec.load("policy"), environment=ros_env, on_line=lambda *_: None, say=said.append
    )
    graph.start()
    os.kill(graph.pid("policy"), signal.SIGSTOP)
    exits = {ended.name: ended for ended in graph.stop()}
    assert exits["policy"].code == -signal.SIGKILL and not exits["policy"].clean
    assert exits["monitor"].clean
    assert any("sending SIGKILL" in line for line in said)


@pytest.mark.long
def test_killing_up_itself_ends_its_nodes(up):
    graph = up("policy")
    graph.wait_for_log("everything is running", timeout=30)
    nodes = children(graph.pid)
    assert len(nodes) == 2
    os.kill(graph.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, nodes)), 20, f"the end of {nodes}")


def test_list_shows_parameters_and_starts_nothing(ros_env):
    status, out, _ = run_cli("up", "sim", "--list", "-p", "policy.max_age_s=1", env=ros_env)
    assert status == 0
    assert "/policy: lifecycle node vla_ros.ros.nodes.policy.node" in out
    assert "  max_age_s: 1.0" in out
