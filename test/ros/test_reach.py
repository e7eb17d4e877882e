"""What others can reach of a graph: its ports, its topics, and from another machine nothing."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.nodes import Program
from support.ports import open_ports
from support.processes import session
from support.ros import RosPeer
from support.sros2 import Endpoint, read_policy
from support.two_machines import two_machines
from support.wait import wait_until
from vla_ros.core.resources import config_path
from vla_ros.ros.bringup.environment import PROFILES, defaults
from vla_ros.ros.bringup.graph import Graph, command_line
from vla_ros.ros.bringup.graph_file import GraphSpec, NodeSpec
from vla_ros.ros.bringup.view import view_node

RANGE = "ROS_AUTOMATIC_DISCOVERY_RANGE"
BARE = "import rclpy, time; rclpy.init(); n = rclpy.create_node('bare'); time.sleep(600)"
VIEW_PORT = 8931
needs_mujoco = pytest.mark.skipif(
    importlib.util.find_spec("mujoco") is None, reason="mujoco is not installed: no simulation"
)


@pytest.fixture
def graph(ros_env: dict[str, str], tmp_path: Path) -> Iterator[Graph]:
    """Simulation, policy, monitor and recorder; the page too, where viser is."""
    recorder = {"parameter_files": ["recorder.yaml"], "parameters": {"output": str(tmp_path / "b")}}
    more = {"recorder": {**recorder, "spectator": True}}
    given = {"policy": {"policy": "scripted"}}
    if importlib.util.find_spec("viser") is not None:
        more |= view_node(simulated=False)
        given["view"] = {"port": VIEW_PORT}
    spec = GraphSpec.load("sim", given, more=more)
    with Graph(spec, environment=ros_env).start() as running:
        yield running


def endpoints(ros: RosPeer, node: str) -> set[Endpoint]:
    """What the graph says that ``node`` has open."""
    ask = ros.node
    lists = {
        "publish": ask.get_publisher_names_and_types_by_node,
        "subscribe": ask.get_subscriber_names_and_types_by_node,
        "reply": ask.get_service_names_and_types_by_node,
        "request": ask.get_client_names_and_types_by_node,
    }
    return {Endpoint(how, name) for how in lists for name, _ in lists[how](node, "/")}


@needs_mujoco
@pytest.mark.timeout(300)
def test_a_running_graph_opens_what_its_policies_allow_and_dds_ports_alone(
    graph: Graph, ros: RosPeer, ros_env: dict[str, str], ros_domain: int
) -> None:
    names = [spec.name for spec in graph.spec.nodes]
    assert {"policy", "bridge", "monitor", "recorder"} <= set(names)
    wait_until(lambda: set(names) <= set(ros.node.get_node_names()), 30.0, "every node")
    for name in names:
        enclave = read_policy(config_path(f"security/{name}.xml"))
        wait_until(lambda n=name: len(endpoints(ros, n)) >= 9, 20.0, f"what {name} opens")
        found = endpoints(ros, name)
        assert not {e: lack for e in found if (lack := enclave.lacks(e))}, name
    assert Endpoint("publish", "/policy/action") in endpoints(ros, "policy")

    bare = Program("bare", [sys.executable, "-c", BARE], ros_env)
    try:
        wait_until(lambda: "bare" in ros.node.get_node_names(), 30.0, "a node of rclpy alone")
        dds = open_ports([bare.pid])
    finally:
        bare.kill()
    first = 7400 + 250 * ros_domain  # RTPS 2.5, 9.6.2.3: a domain's ports
    for name in names:
        if name == "view":  # a node is in the graph before its page can be opened
            pid = graph.pid(name)
            wait_until(lambda p=pid: any(one.kind == "tcp" for one in open_ports([p])), 20.0, "it")
        leader, *workers = sorted(session(graph.pid(name)), key=lambda p: p != graph.pid(name))
        found = open_ports([leader])
        heard = {one for one in found if one.kind.startswith("tcp")}
        assert heard == {one for one in heard if name == "view" and one.port == VIEW_PORT}, name
        assert (name == "view") == bool(heard)
        assert all(one.loopback for one in heard)
        assert len(found - heard) <= len(dds), f"{name} has more than rclpy alone: {found}"
        listens = [one for one in found - heard if first <= one.port < first + 250]
        assert listens and all(one.loopback for one in listens), found
        assert not open_ports(workers), f"{name}'s workers"


STRANGER = """
import rclpy, sys, time
rclpy.init()
node = rclpy.create_node("stranger")
until = time.monotonic() + 300
while time.monotonic() < until:
    time.sleep(0.2)
    print(sorted(set(node.get_node_names())), flush=True)
"""
UDP = """<?xml version="1.0" encoding="UTF-8" ?>
<dds xmlns="http://www.eprosima.com"><profiles>
  <transport_descriptors><transport_descriptor>
    <transport_id>udp</transport_id><type>UDPv4</type>
  </transport_descriptor></transport_descriptors>
  <participant profile_name="udp" is_default_profile="true"><rtps>
    <userTransports><transport_id>udp</transport_id></userTransports>
    <useBuiltinTransports>false</useBuiltinTransports>
  </rtps></participant>
</profiles></dds>
"""


@pytest.mark.long
@pytest.mark.timeout(240)
def test_one_of_another_machine_that_knows_the_address_finds_nothing_by_default(
    ros_env: dict[str, str], tmp_path: Path
) -> None:
    """Nor does it where discovery alone is limited: so the same is tried without our profile's
    binding, where it finds the node."""
    profile = tmp_path / "udp.xml"  # the shared memory of one machine would be a second cable
    profile.write_text(UDP)
    plain = {k: v for k, v in ros_env.items() if k not in (*PROFILES, RANGE)}
    monitor = command_line(NodeSpec("monitor", "monitor", (config_path("monitor.yaml"),)))
    with two_machines("reach", "10.231.8") as (robot, elsewhere):
        stranger = {**plain, RANGE: "SUBNET", "ROS_STATIC_PEERS": robot.address}
        stranger |= dict.fromkeys(PROFILES, str(profile))

        def finds(environment: dict[str, str], patience: float) -> bool:
            ask = (sys.executable, "-c", STRANGER)
            node = Program("monitor", [*robot.run, *monitor], environment)
            here = Program("neighbor", [*robot.run, *ask], environment)
            there = Program("stranger", [*elsewhere.run, *ask], stranger)
            try:
                wait_until(lambda: "monitor" in here.log, 30.0, here.said)
                wait_until(lambda: "stranger" in there.log, 30.0, there.said)
                return _within(lambda: "monitor" in there.log, patience)
            finally:
                for program in (there, here, node):
                    program.kill()

        assert finds({**plain, RANGE: "LOCALHOST", **dict.fromkeys(PROFILES, str(profile))}, 30.0)
        assert not finds({**plain, **defaults(plain)}, 10.0)


def _within(predicate: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if predicate():
            return True
        time.sleep(0.05)
    return False
