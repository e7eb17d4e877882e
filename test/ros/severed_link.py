"""The policy on another machine than the robot, and the cable between them pulled.

Two network namespaces stand for two machines: camera and consumer (docs/how-to/consumer.py) are
in one, the policy node and this test in the other; nothing but two virtual interfaces between
them. It takes root, as in a container. test_severed_link.py runs this in a process of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.nodes import Program
from support.timing import judge
from support.wait import wait_until
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.bringup.environment import PROFILES

HERE = Path(__file__)
CONSUMER = HERE.parents[2] / "docs" / "how-to" / "consumer.py"
CAMERA = HERE.parents[1] / "support" / "camera.py"
CLONE_NEWNET = 0x40000000
A, T = 0.5, 0.05  # max_age_s and the control period
MARGIN = 0.06  # s, for the operating system to run three processes
BUSY = 1.0  # s, for one that has other work too

# The shared memory of one machine would be a second cable.
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

# What the arm is told, with the time at which it is: the consumer's output beyond the cable.
ARM = """
import time, rclpy
from std_msgs.msg import Float64MultiArray
rclpy.init()
node = rclpy.create_node("arm")
def told(message):
    print(time.monotonic_ns(), int(bool(message.data)), flush=True)
node.create_subscription(Float64MultiArray, "arm/commands", told, 100)
rclpy.spin(node)
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def enter(namespace: int) -> None:
    """This thread, and what it starts from now on, is on that machine (an open file of it)."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


@dataclass
class Link:
    """The cable, and the machine at its other end."""

    robot: str
    env: dict[str, str]

    def start(self, name: str, *words: str) -> Program:
        command = ["ip", "netns", "exec", self.robot, sys.executable, *words]
        return Program(name, command, self.env)

    def set(self, state: str) -> int:
        ip("-n", self.robot, "link", "set", "cable", state)
        return time.monotonic_ns()


@pytest.fixture
def link(ros_env, tmp_path, monkeypatch) -> Iterator[Link]:
    """Call it before `ros` and `start_policy`: they then are at this end."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("network namespaces take root and iproute2")
    robot, server = f"vla_robot_{os.getpid()}", f"vla_server_{os.getpid()}"
    with contextlib.ExitStack() as ending:
        for name in (robot, server):
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
            ending.callback(ip, "netns", "delete", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", robot, "link", "add", "cable", "type", "veth", "peer", "cable", "netns", server)
        for number, name in enumerate((robot, server), 1):
            ip("-n", name, "address", "add", f"10.231.7.{number}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "route", "add", "default", "dev", "cable")
        profile = tmp_path / "udp.xml"
        profile.write_text(UDP)
        ros_env |= dict.fromkeys(PROFILES, str(profile))
        ros_env["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "SUBNET"
        for name in (*PROFILES, "ROS_AUTOMATIC_DISCOVERY_RANGE"):
            monkeypatch.setenv(name, ros_env[name])
        here = ending.enter_context(open("/proc/thread-self/ns/net")).fileno()
        there = ending.enter_context(open(f"/run/netns/{server}")).fileno()
        enter(there)
        ending.callback(enter, here)
        yield Link(robot, ros_env)


def told(arm: Program) -> list[tuple[int, bool]]:
    """(when in ns, is it to move) of everything that the arm was told."""
    pairs = (line.split() for line in arm.log.splitlines())
    return [(int(p[0]), p[1] == "1") for p in pairs if len(p) == 2 and p[0].isdigit()]


def test_a_pulled_cable_stops_the_arm_and_holds_the_policy_until_it_is_back(
    link, ros, start_policy
):
    rig = start_policy()
    rig.bring_up("reach")
    arm = link.start("arm", "-c", ARM)
    consumer = link.start("consumer", str(CONSUMER))
    camera = link.start("camera", str(CAMERA))
    try:
        rig.expect(State.RUNNING, timeout=30.0)
        wait_until(lambda: any(moves for _, moves in told(arm)), 10.0, "motion beyond the cable")
        before = len(rig.commands)
        cut = link.set("down")
        held = rig.expect(State.HOLD)
        assert "observation age" in held.reason
        first = rig.wait_for(CommandKind.STOP, before)
        after = (rig.commands.times[first] - cut) / 1e9
        judge("first STOP after the cut", after, quiet=A + T + MARGIN, loaded=A + T + BUSY)

        wait_until(lambda: not told(arm)[-1][1], 5.0, "the arm's stop, which no message can bring")
        stop = next(when for when, moves in told(arm) if when > cut and not moves)
        own = (stop - cut) / 1e9
        judge("the arm's own stop", own, quiet=3 * T + MARGIN, loaded=3 * T + BUSY)
        time.sleep(1.0)
        assert not told(arm)[-1][1], "nothing moves while the cable is out"

        link.set("up")
        rig.expect(State.RUNNING, timeout=30.0)
        wait_until(lambda: told(arm)[-1][1], 10.0, "motion again")
        print(f"first STOP {after * 1e3:.0f} ms, the arm's own stop {(stop - cut) / 1e6:.0f} ms")
    finally:
        for program in (arm, consumer, camera):
            program.kill()
            print(f"----- {program.name}\n{program.log[-2000:]}")
