"""A ROS domain that nobody else on this machine is in."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from vla_ros.errors import UserError

LAST_DOMAIN = 100  # above, a domain's ports lie in Linux's range of ephemeral ports
_ELSEWHERE = ("ROS_LOCALHOST_ONLY", "ROS_STATIC_PEERS", "ROS_DISCOVERY_SERVER")


def free_domain() -> int:
    """A domain, 1 to LAST_DOMAIN, without a participant on this machine. Raises UserError."""
    for domain in _candidates():
        if _unused(domain):
            return domain
    raise UserError(f"all ROS domains 1 to {LAST_DOMAIN} are in use; give one with --domain-id")


@contextlib.contextmanager
def leased_domain() -> Iterator[int]:
    """A free domain that no other lease of this user has until the end of the `with`.

    For graphs that start side by side: a domain shows its first participant only a moment after
    it was chosen. Raises UserError.
    """
    folder = Path(tempfile.gettempdir()) / f"vla_ros_domains_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for domain in _candidates():
        with open(folder / str(domain), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            if _unused(domain):
                yield domain
                return
    raise UserError(f"all ROS domains 1 to {LAST_DOMAIN} are in use: end what runs in them")


def isolate(domain: int) -> None:
    """Keep this process and its children to this machine and to ``domain``, whatever the shell
    has set. Before rclpy is initialised."""
    os.environ["ROS_DOMAIN_ID"] = str(domain)
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    for name in _ELSEWHERE:
        os.environ.pop(name, None)


def _candidates() -> Iterator[int]:
    for i in range(LAST_DOMAIN):
        yield 1 + (os.getpid() + i) % LAST_DOMAIN


def _unused(domain: int) -> bool:
    """RTPS: the first participant of a domain listens at this port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("", 7410 + 250 * domain))
        except OSError:
            return False
    return True
