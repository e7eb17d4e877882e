"""The launch files, started by the real `ros2 launch`: `make ros2-launch`, or a sourced ROS 2."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from lifecycle_msgs.srv import GetState
from rcl_interfaces.srv import GetParameters

from support.nodes import Program
from support.plugins import EXAMPLE, install
from support.processes import alive, session
from support.ros import RosPeer
from support.ros2_launch import needs_launch
from support.wait import wait_until
from vla_ros.msg import EpisodeStatus, PolicyStatus
from vla_ros.ros.bringup.environment import profile_name
from vla_ros.ros.common.qos import LATCHED

pytestmark = needs_launch


def test_policy_launch_brings_the_node_up_with_its_arguments(
    ros2_launch: Callable[..., Program], ros: RosPeer
) -> None:
    graph = ros2_launch(
        "policy.launch.py",
        policy="zero",
        max_age_s="0.4",
        namespace="arm",
        instruction="wait",
        parameters="{silence_after_s: 0.3, joint_names: [b, a], cameras.main.topic: eye}",
        remappings="{~/action: /servo/action}",
    )
    status = ros.inbox(PolicyStatus, "/arm/policy/status", LATCHED)
    up = status.wait(lambda m: m.state == PolicyStatus.STATE_WAITING, timeout=30)
    assert (up.policy, up.instruction) == ("zero", "wait")
    assert up.max_age_s == pytest.approx(0.4)
    request = GetParameters.Request(names=["silence_after_s", "joint_names", "cameras.main.topic"])
    silence, joints, topic = ros.call(GetParameters, "/arm/policy/get_parameters", request).values
    assert (silence.double_value, topic.string_value) == (0.3, "eye")
    assert list(joints.string_array_value) == ["b", "a"]
    wait_until(lambda: ros.node.count_publishers("/servo/action") == 1, 5.0, "its topic")
    nodes = environments(graph.pid, "lib/vla_ros/")
    assert len(nodes) == 2, "policy and monitor"
    for name in (profile_name(os.environ), "ROS_AUTOMATIC_DISCOVERY_RANGE"):
        assert {name in found for found in nodes} == {True}


def test_a_robot_file_gives_its_parameters_and_its_topics(
    ros2_launch: Callable[..., Program], ros: RosPeer, tmp_path: Path
) -> None:
    robot = tmp_path / "robot.yaml"
    robot.write_text(
        "/**/policy:\n  ros__parameters:\n    cameras.main.topic: /front/image_raw\n"
        "    max_age_s: 0.4\n"
        "remappings:\n  ros__parameters:\n    ~/action: /servo/action\n"
    )
    ros2_launch("policy.launch.py", robot=str(robot), namespace="arm")
    status = ros.inbox(PolicyStatus, "/arm/policy/status", LATCHED)
    up = status.wait(lambda m: m.state == PolicyStatus.STATE_WAITING, timeout=60)
    assert up.max_age_s == pytest.approx(0.4)
    wait_until(lambda: ros.node.count_publishers("/servo/action") == 1, 5.0, "its topic")
    wait_until(lambda: ros.node.count_subscribers("/front/image_raw") > 0, 5.0, "its camera")


def environments(parent: int, command: str) -> list[dict[str, str]]:
    """Of every process that this one started with this in its command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            of = folder.joinpath("stat").read_text().rsplit(")", 1)[1].split()[1]
            if int(of) == parent and command in folder.joinpath("cmdline").read_text():
                text = folder.joinpath("environ").read_text()
                found.append(dict(item.split("=", 1) for item in text.split("\0") if item))
    return found


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"policy": "vla"}, "configure refused: policy 'vla' needs a checkpoint"),
        (
            {"policy": "vlaa"},
            "configure refused: there is no policy 'vlaa': did you mean 'vla'?",
        ),
        ({"control_rate_hz": "-4.0"}, "bad parameter: "),
        ({"robot": "so100"}, "no robot file 'so100': did you mean 'so101'?"),
        ({"policy": "zero", "require_verified": "true"}, "require_verified is for policy vla"),
        ({"policy": "vla", "checkpoint": "random:small", "weights": "int9"}, "int9"),
        ({"enclave": "/vla_ros"}, "ROS_SECURITY_ENABLE is not set"),
        ({"parameters": "[max_age_s]"}, "write '{NAME: VALUE, NAME: VALUE}'"),
    ],
)
def test_a_wrong_value_ends_the_launch_with_a_reason_and_status_1(ros2_launch, arguments, says):
    ended = ros2_launch("policy.launch.py", **arguments)
    assert ended.wait(60) == 1
    assert says in ended.log


def test_every_policy_that_the_parameter_takes_can_be_launched(ros2_launch, ros, tmp_path) -> None:
    """Also those that no list in a launch file knows: of a package with an entry point."""
    site = install(EXAMPLE, tmp_path)
    ros2_launch("policy.launch.py", policy="nod", extra_env={"PYTHONPATH": str(site)})
    status = ros.inbox(PolicyStatus, "/policy/status", LATCHED)
    up = status.wait(lambda m: m.state == PolicyStatus.STATE_WAITING, timeout=30)
    assert up.policy == "nod"


def test_after_the_first_bring_up_the_lifecycle_belongs_to_its_caller(ros2_launch, ros) -> None:
    """An inactive node stays inactive; a refused configure leaves the graph up and says why."""
    graph = ros2_launch("policy.launch.py", policy="zero")
    status = ros.inbox(PolicyStatus, "/policy/status", LATCHED)
    status.wait(lambda m: m.state == PolicyStatus.STATE_WAITING, timeout=30)
    for transition in ("deactivate", "cleanup", "configure"):
        assert ros.change_state("/policy", transition)
    time.sleep(1.0)  # time for a launch file that would activate it
    assert ros.call(GetState, "/policy/get_state").current_state.label == "inactive"
    assert ros.change_state("/policy", "cleanup")
    assert ros.set_parameter("/policy", "policy", "vla")[0]
    assert not ros.change_state("/policy", "configure")
    graph.wait_for_log("configure refused: policy 'vla' needs a checkpoint")
    assert ros.set_parameter("/policy", "policy", "zero")[0]
    assert ros.change_state("/policy", "configure")
    assert ros.change_state("/policy", "activate")
    assert graph.returncode is None
    os.killpg(graph.pid, signal.SIGINT)
    assert graph.wait(30) == 0


def test_sim_launch_in_lockstep_moves_the_robot(ros2_launch, ros) -> None:
    ros2_launch("sim.launch.py", policy="scripted", mode="lockstep")
    episodes = ros.inbox(EpisodeStatus, "/bridge/episode", LATCHED)
    moved = episodes.wait(lambda m: m.actions_applied >= 5, timeout=60)
    assert moved.mode == "lockstep"


@pytest.mark.parametrize("file", ["policy.launch.py", "sim.launch.py"])
def test_a_second_ctrl_c_changes_nothing(ros2_launch, ros, file) -> None:
    """A terminal sends it to the whole group of processes."""
    graph = ros2_launch(file, policy="zero")
    status = ros.inbox(PolicyStatus, "/policy/status", LATCHED)
    status.wait(lambda m: m.state == PolicyStatus.STATE_WAITING, timeout=60)
    for _ in range(2):
        os.killpg(graph.pid, signal.SIGINT)
        time.sleep(0.3)
    # `ros2` itself, which is not ours, may be past its own handler by then.
    assert graph.wait(30) in (0, -signal.SIGINT)
    ended = [line for line in graph.log.splitlines() if "process has" in line and "_node-" in line]
    assert all("process has finished cleanly" in line for line in ended), graph.log
    assert len(ended) == (3 if file == "sim.launch.py" else 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_node_outlives_its_launch(ros2_launch, ros, tmp_path, number) -> None:
    """systemd, a container and a cut test end `ros2 launch` in ways in which it ends nobody."""
    launch = ros2_launch("policy.launch.py", policy="zero", record=str(tmp_path / "bag"))
    status = ros.inbox(PolicyStatus, "/policy/status", LATCHED)
    up = status.wait(lambda m: m.state == PolicyStatus.STATE_WAITING, timeout=60)
    pids = [pid for pid in session(launch.pid) if pid != launch.pid]
    assert len(pids) >= 3, "policy, monitor, recorder"
    pids.append(up.worker_pid)  # which leads a session of its own
    wait_until((tmp_path / "bag").is_dir, 30.0, "the recorder's bag")
    launch.signal(number)
    launch.wait(30)
    wait_until(lambda: not any(map(alive, pids)), 15.0, f"the end of {pids}")
    assert (tmp_path / "bag" / "metadata.yaml").is_file(), "the recorder wrote its index"


UNDECLARED = {
    "policy.launch.py": ({"imgae": "/camera"}, "has no argument 'imgae': did you mean 'image'?"),
    "sim.launch.py": ({"polcy": "zero"}, "has no argument 'polcy': did you mean 'policy'?"),
    "libero.launch.py": ({"tasks": "3"}, "has no argument 'tasks': did you mean 'task'?"),
    "replay.launch.py": ({"bag": "x", "rates": "2"}, "no argument 'rates': did you mean 'rate'?"),
}


@pytest.mark.parametrize("file", UNDECLARED)
def test_an_argument_that_no_launch_file_declares_is_refused_with_the_nearest(
    ros2_launch: Callable[..., Program], file: str
) -> None:
    arguments, says = UNDECLARED[file]
    graph = ros2_launch(file, **arguments)
    assert graph.wait(60.0) != 0
    assert says in graph.log and "process started" not in graph.log, graph.log


def test_a_topic_that_no_node_has_is_refused(ros2_launch: Callable[..., Program]) -> None:
    graph = ros2_launch("policy.launch.py", remappings="{~/twsit: /servo}")
    assert graph.wait(60.0) != 0
    assert "no node here has a topic or service '~/twsit': did you mean '~/twist'?" in graph.log


def test_a_strangers_launch_file_keeps_its_own_arguments(
    ros2_launch: Callable[..., Program], ros: RosPeer, tmp_path: Path
) -> None:
    from vla_ros.core.resources import share

    policy = str(share() / "launch" / "policy.launch.py")

    file = tmp_path / "mine.launch.py"
    file.write_text(
        "from launch import LaunchDescription\n"
        "from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription\n"
        "from launch.launch_description_sources import PythonLaunchDescriptionSource as Source\n"
        "def generate_launch_description():\n"
        "    return LaunchDescription([DeclareLaunchArgument('arm', default_value=''),\n"
        f"        IncludeLaunchDescription(Source({policy!r}))])\n"
    )
    ros2_launch(str(file), arm="left", policy="zero")
    status = ros.inbox(PolicyStatus, "/policy/status", LATCHED)
    status.wait(lambda m: m.state == PolicyStatus.STATE_WAITING, timeout=30)
