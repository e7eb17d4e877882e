"""The launch files as ROS 2's own tests run them: launch_pytest's fixtures and ReadyToTest.

`colcon test` runs this on a sourced ROS 2, `make launch-pytest` elsewhere. pytest 9 does not take
launch_pytest's plugin, so it is apart from test/launch, which starts the `ros2 launch` of a user.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

launch_pytest = pytest.importorskip(
    "launch_pytest", reason="launch_pytest is not installed: make launch-pytest"
)

import launch
import rclpy
from launch.event_handlers import OnProcessExit
from launch.launch_description_sources import PythonLaunchDescriptionSource
from rclpy.executors import SingleThreadedExecutor

from vla_ros.core.resources import share
from vla_ros.msg import EpisodeStatus, PolicyStatus
from vla_ros.ros.bringup.environment import isolate, leased_domain, prepare
from vla_ros.ros.common.qos import LATCHED

STARTS_S = 60.0


def including(file: str, **arguments: str) -> launch.LaunchDescription:
    """One of our launch files, ready to test at once."""
    source = PythonLaunchDescriptionSource(str(share() / "launch" / file))
    return launch.LaunchDescription(
        [
            launch.actions.IncludeLaunchDescription(
                source, launch_arguments=list(arguments.items())
            ),
            launch_pytest.actions.ReadyToTest(),
        ]
    )


@pytest.fixture(autouse=True, scope="session")
def domain() -> Iterator[None]:
    """A ROS domain that nobody else is in, for this process and what it launches."""
    with leased_domain() as number:
        isolate(number)
        prepare()
        yield


@pytest.fixture
def ended() -> list[int]:
    """Exit statuses of the processes of the launch."""
    return []


@launch_pytest.fixture
def policy(ended: list[int]) -> launch.LaunchDescription:
    description = including("policy.launch.py", policy="zero", instruction="wait")
    counts = OnProcessExit(on_exit=lambda event, _: ended.append(event.returncode))
    description.add_action(launch.actions.RegisterEventHandler(counts))
    return description


@launch_pytest.fixture
def simulation() -> launch.LaunchDescription:
    return including("sim.launch.py", policy="scripted", mode="lockstep")


@pytest.fixture
def listen() -> Iterator[Any]:
    """`listen(kind, topic, judge)`: the first latched message that ``judge`` is true of."""
    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node("launch_pytest_listener", context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)

    def first(kind: Any, topic: str, judge: Any) -> Any:
        found = []
        here = threading.Event()

        def take(message: Any) -> None:
            if judge(message):
                found.append(message)
                here.set()

        node.create_subscription(kind, topic, take, LATCHED)
        until = time.monotonic() + STARTS_S
        while not here.is_set() and time.monotonic() < until:
            executor.spin_once(timeout_sec=0.1)
        assert found, f"no such message on {topic} within {STARTS_S:g} s"
        return found[0]

    yield first
    executor.shutdown()
    node.destroy_node()
    context.try_shutdown()


@pytest.mark.launch(fixture=policy)
def test_the_policy_comes_up_and_everything_ends_with_status_0(listen, ended):
    waits = PolicyStatus.STATE_WAITING
    status = listen(PolicyStatus, "policy/status", lambda message: message.state == waits)
    assert (status.policy, status.instruction) == ("zero", "wait")
    yield
    assert ended == [0, 0, 0], "bring-up, then policy and monitor"


@pytest.mark.launch(fixture=simulation)
def test_the_simulated_robot_moves(listen):
    moved = listen(EpisodeStatus, "bridge/episode", lambda message: message.actions_applied >= 5)
    assert moved.mode == "lockstep"
