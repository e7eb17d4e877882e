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
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray.serve", reason="ray is not installed: pip install '.[ray]'")
pytest.importorskip("torch")

from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Inference, Instruction, Observation, Timeline
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import PolicySpec, load_policy
from vla_ros.policies.base import Unreachable

CLOCK = SystemClock()


def ask(policy: Any) -> Inference | None:
    image, now = np.zeros((64, 64, 3), np.uint8), CLOCK.steady_ns()
    return policy.step(Observation(now, now, now, image), Timeline(now), CLOCK)


def answered(policy: Any, within_s: float = 90.0) -> None:
    """Asks until there is an answer."""
    until = time.monotonic() + within_s
    while True:
        try:
            assert ask(policy) is not None
            return
        except Unreachable:
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
            spec = PolicySpec(
                "remote",
                engine=EngineOptions(f"ws://127.0.0.1:{port}"),
                options={"timeout_s": "20"},
            )
            clients: list[Any] = [load_policy(spec) for _ in range(2)]
            for client in clients:
                client.reset(Instruction("stack", 1))
            assert all(ask(client) is not None for client in clients)
            first = replicas_of(port)
            assert len(first) == 2
            moved = 0
            for pid in first:
                before = [client._link.connections for client in clients]
                os.kill(pid, signal.SIGKILL)
                for client in clients:
                    answered(client)
                after = [client._link.connections for client in clients]
                moved += sum(b > a for a, b in zip(before, after, strict=True))
            assert moved >= 2, "each of them was at one of the two"
            until = time.monotonic() + 90
            while len(replicas_of(port) - first) < 2 and time.monotonic() < until:
                time.sleep(0.2)
            assert len(replicas_of(port) - first) == 2, "Ray put others in their place"
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)
