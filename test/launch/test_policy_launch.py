"""The launch files, started by the real launch. Needs a full ROS 2 (launch is not on PyPI)."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

REASON = "launch is not installed (not on PyPI): source a full ROS 2 to run this"
launch = pytest.importorskip("launch", reason=REASON)
launch_pytest = pytest.importorskip("launch_pytest", reason=REASON)
pytest.importorskip("launch_ros", reason=REASON)

from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from rcl_interfaces.srv import GetParameters

from support.domain import leased_domain
from support.nodes import ros_environment
from support.ros import RosPeer
from support.wait import wait_until
from vla_ros.core.resources import share
from vla_ros.msg import EpisodeStatus, PolicyStatus
from vla_ros.ros.bringup.environment import PROFILES
from vla_ros.ros.common.qos import LATCHED


@pytest.fixture
def domain(monkeypatch):
    """launch starts its processes with this process's environment."""
    with leased_domain() as number:
        for name, value in ros_environment(number).items():
            if os.environ.get(name) != value:
                monkeypatch.setenv(name, value)
        # The launch file must set these by itself.
        for name in PROFILES:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv("ROS_AUTOMATIC_DISCOVERY_RANGE", raising=False)
        yield number


def included(name, **arguments):
    source = PythonLaunchDescriptionSource(str(share() / "launch" / name))
    return launch.LaunchDescription(
        [
            IncludeLaunchDescription(source, launch_arguments=arguments.items()),
            launch_pytest.actions.ReadyToTest(),
        ]
    )


@launch_pytest.fixture
def policy_graph(domain):
    return included(
        "policy.launch.py",
        policy="zero",
        max_age_s="0.4",
        namespace="arm",
        instruction="wait",
        parameters="{silence_after_s: 0.3, joint_names: [b, a], cameras.main.topic: eye}",
        remappings="{~/action: /servo/action}",
    )


@launch_pytest.fixture
def sim_graph(domain):
    return included("sim.launch.py", policy="scripted", mode="lockstep")


@pytest.mark.launch(fixture=policy_graph)
def test_policy_launch_brings_the_node_up_with_its_arguments(domain):
    peer = RosPeer(domain)
    try:
        status = peer.inbox(PolicyStatus, "/arm/policy/status", LATCHED)
        up = status.wait(lambda m: m.state == PolicyStatus.STATE_WAITING, timeout=30)
        assert (up.policy, up.instruction) == ("zero", "wait")
        assert up.max_age_s == pytest.approx(0.4)
        request = GetParameters.Request(
            names=["silence_after_s", "joint_names", "cameras.main.topic"]
        )
        silence, joints, topic = peer.call(
            GetParameters, "/arm/policy/get_parameters", request
        ).values
        assert (silence.double_value, topic.string_value) == (0.3, "eye")
        assert list(joints.string_array_value) == ["b", "a"]
        wait_until(lambda: peer.node.count_publishers("/servo/action") == 1, 5.0, "its topic")
        for name in (*PROFILES, "ROS_AUTOMATIC_DISCOVERY_RANGE"):
            assert name not in os.environ, "only the nodes have it"
            assert {name in found for found in environments("vla_ros.ros.nodes")} == {True}
    finally:
        peer.close()


def environments(command: str) -> list[dict[str, str]]:
    """Of every process that launch started with this in its command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = folder.joinpath("stat").read_text().rsplit(")", 1)[1].split()[1]
            if int(parent) == os.getpid() and command in folder.joinpath("cmdline").read_text():
                text = folder.joinpath("environ").read_text()
                found.append(dict(item.split("=", 1) for item in text.split("\0") if item))
    assert found, f"no process of {command}"
    return found


LAUNCH = """
import sys
from launch import LaunchDescription, LaunchService
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource

given = dict(word.split(":=", 1) for word in sys.argv[2:])
source = PythonLaunchDescriptionSource(sys.argv[1])
service = LaunchService(noninteractive=True)
included = IncludeLaunchDescription(source, launch_arguments=given.items())
service.include_launch_description(LaunchDescription([included]))
sys.exit(service.run())
"""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"policy": "vla"}, "configure refused: policy 'vla' needs a checkpoint"),
        ({"control_rate_hz": "-4.0"}, "bad parameter: "),
        ({"policy": "zero", "require_verified": "true"}, "require_verified is for policy vla"),
        ({"policy": "vla", "checkpoint": "random:small", "weights": "int9"}, "int9"),
        ({"enclave": "/vla_ros"}, "ROS_SECURITY_ENABLE is not set"),
        ({"parameters": "[max_age_s]"}, "write '{NAME: VALUE, NAME: VALUE}'"),
    ],
)
def test_a_wrong_value_ends_the_launch_with_a_reason_and_status_1(domain, arguments, says):
    """As `ros2 launch` does it: in a process of its own."""
    words = [f"{name}:={value}" for name, value in arguments.items()]
    command = [sys.executable, "-c", LAUNCH, str(share() / "launch" / "policy.launch.py"), *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert says in ended.stdout + ended.stderr


@pytest.mark.launch(fixture=sim_graph)
def test_sim_launch_in_lockstep_moves_the_robot(domain):
    peer = RosPeer(domain)
    try:
        episodes = peer.inbox(EpisodeStatus, "/bridge/episode", LATCHED)
        moved = episodes.wait(lambda m: m.actions_applied >= 5, timeout=60)
        assert moved.mode == "lockstep"
    finally:
        peer.close()
