"""Replicas by Ray Serve: clients keep theirs, and find another when it dies."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray.serve", reason="ray is not installed: pip install '.[ray]'")
pytest.importorskip("torch")

from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Inference, Instruction, Observation, Timeline
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import Policy, PolicySpec, load_policy
from vla_ros.policies.base import Unreachable

CLOCK = SystemClock()


def ask(policy: Policy) -> Inference | None:
    image, now = np.zeros((64, 64, 3), np.uint8), CLOCK.steady_ns()
    return policy.step(Observation(now, now, now, image), Timeline(now), CLOCK)


def answered(policy: Policy, within_s: float = 90.0) -> int:
    """How often it said that there is nobody before it answered again."""
    lost, until = 0, time.monotonic() + within_s
    while True:
        try:
            assert ask(policy) is not None
            return lost
        except Unreachable:
            lost += 1
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def replicas_of(port: int) -> set[int]:
    """Processes of this server's replicas, by the number of its port in their environment."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (
                b"ServeReplica:vla_ros" in (entry / "cmdline").read_bytes()
                and f"VLA_ROS_TEST_PORT={port}\0".encode() in (entry / "environ").read_bytes()
            ):
                found.add(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.slow  # Ray starts in half a minute, and puts a replica in a dead one's place as slowly
@pytest.mark.timeout(400)
def test_a_client_whose_replica_dies_goes_on_at_another() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vla_ros", "serve", "random:small", "--dtype", "float32",
               "--replicas", "2", "--port", str(port)]  # fmt: skip
    environment = {**os.environ, "VLA_ROS_TEST_PORT": str(port)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            assert re.search(
                r"serving random:small at ws://\S+, 2 replicas", server.stdout.readline()
            )
            spec = PolicySpec("remote", engine=EngineOptions(f"ws://127.0.0.1:{port}"))
            clients = [load_policy(spec) for _ in range(2)]
            for client in clients:
                client.reset(Instruction("stack", 1))
            said = [answered(client) for client in clients]
            assert said == [0, 0]
            first = replicas_of(port)
            assert len(first) == 2
            lost = 0
            for pid in first:
                os.kill(pid, signal.SIGKILL)
                lost += sum(answered(client) > 0 for client in clients)
            assert lost >= 2, "each of them was at one of the two"
            until = time.monotonic() + 90
            while len(replicas_of(port) - first) < 2 and time.monotonic() < until:
                time.sleep(0.2)
            assert len(replicas_of(port) - first) == 2, "Ray put others in their place"
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)
