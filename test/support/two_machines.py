"""Two network namespaces with a cable between them: two machines. It takes root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Machine:
    """One of them; ``run`` in front of a command runs it there."""

    name: str
    address: str

    @property
    def run(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def two_machines(label: str, subnet: str) -> Iterator[tuple[Machine, Machine]]:
    """Skips the test where there can be none. ``subnet``: three numbers, such as 10.231.8."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("network namespaces take root and iproute2")
    one, other = (Machine(f"vla_{label}_{n}_{os.getpid()}", f"{subnet}.{n}") for n in (1, 2))
    with contextlib.ExitStack() as ending:
        for machine in (one, other):
            try:
                _ip("netns", "add", machine.name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
            ending.callback(_ip, "netns", "delete", machine.name)
            _ip("-n", machine.name, "link", "set", "lo", "up")
        peer = ("peer", "cable", "netns", other.name)
        _ip("-n", one.name, "link", "add", "cable", "type", "veth", *peer)
        for machine in (one, other):
            _ip("-n", machine.name, "address", "add", f"{machine.address}/24", "dev", "cable")
            _ip("-n", machine.name, "link", "set", "cable", "up")
            _ip("-n", machine.name, "route", "add", "default", "dev", "cable")
        yield one, other
