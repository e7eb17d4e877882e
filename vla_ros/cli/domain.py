"""A ROS domain that nobody else on this machine is in."""

from __future__ import annotations

import os
import socket

from vla_ros.cli import UserError

LAST_DOMAIN = 100  # above, a domain's ports lie in Linux's range of ephemeral ports


def free_domain() -> int:
    """A domain, 1 to LAST_DOMAIN, without a participant on this machine. Raises UserError."""
    for i in range(LAST_DOMAIN):
        domain = 1 + (os.getpid() + i) % LAST_DOMAIN
        # RTPS: the first participant of a domain listens at this port.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("", 7410 + 250 * domain))
            except OSError:
                continue
        return domain
    raise UserError(f"all ROS domains 1 to {LAST_DOMAIN} are in use; give one with --domain-id")
