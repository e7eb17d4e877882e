"""The launch files, started by the real launch. Needs a full ROS 2 (launch is not on PyPI)."""

import os

import pytest

REASON = "launch is not installed (not on PyPI): source a full ROS 2 to run this"
launch = pytest.importorskip("launch", reason=REASON)
launch_pytest = pytest.importorskip("launch_pytest", reason=REASON)
pytest.importorskip("launch_ros", reason=REASON)

from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource

from support.domain import leased_domain
from support.nodes import ros_environment
from support.ros import RosPeer
from vla_ros.msg import EpisodeStatus, PolicyStatus
from vla_ros.nodes.common.qos import LATCHED
from vla_ros.resources import share


@pytest.fixture
def domain(monkeypatch):
    """launch starts its processes with this process's environment."""
    with leased_domain() as number:
        for name, value in ros_environment(number).items():
            if os.environ.get(name) != value:
                monkeypatch.setenv(name, value)
        # The launch file must set these by itself.
        monkeypatch.delenv("FASTDDS_DEFAULT_PROFILES_FILE", raising=False)
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
        "policy.launch.py", policy="zero", max_age_s="0.4", namespace="arm", instruction="wait"
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
        assert up.max_age_ms == pytest.approx(400.0)
        assert os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"
        assert os.environ["FASTDDS_DEFAULT_PROFILES_FILE"].endswith("fastdds_shm.xml")
    finally:
        peer.close()


@pytest.mark.launch(fixture=sim_graph)
def test_sim_launch_in_lockstep_moves_the_robot(domain):
    peer = RosPeer(domain)
    try:
        episodes = peer.inbox(EpisodeStatus, "/bridge/episode", LATCHED)
        moved = episodes.wait(lambda m: m.actions_applied >= 5, timeout=60)
        assert moved.mode == "lockstep"
    finally:
        peer.close()
