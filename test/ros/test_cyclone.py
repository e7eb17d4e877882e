"""A robot whose drivers run on Cyclone DDS, another vendor's: the policy sees it, and it hears the
policy, with the shipped profile and nothing set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.strangers import stranger
from vla_ros.core.types import PolicyState as State

PEER = Path(__file__).parents[1] / "support" / "cyclone_peer.py"
#: Discovery on this machine alone, as the graph's.
LOOPBACK = """<CycloneDDS><Domain><General><Interfaces>
<NetworkInterface name="lo" multicast="true"/></Interfaces></General>
<Discovery><ParticipantIndex>auto</ParticipantIndex>
<Peers><Peer address="127.0.0.1"/></Peers></Discovery></Domain></CycloneDDS>"""


def test_a_camera_a_person_and_a_robot_on_cyclone_dds(
    start_policy, ros_env, ros_domain, monkeypatch
):
    stranger("cyclonedds", monkeypatch)
    rig = start_policy(outputs=["twist"], velocity_limits=[1.0] * 3 + [8.0] * 3)
    rig.bring_up()
    env = {**ros_env, "CYCLONEDDS_URI": LOOPBACK, "PYTHONPATH": os.environ["PYTHONPATH"]}
    peer = subprocess.run(
        [sys.executable, str(PEER), "push the cube", "20", str(ros_domain)],
        env=env,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert peer.returncode == 0, peer.stdout + peer.stderr + rig.node.log
    running = rig.status.wait(lambda message: message.state == State.RUNNING, 5.0)
    assert running.instruction == "push the cube"
