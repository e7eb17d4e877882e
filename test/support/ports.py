"""Network ports that processes have open, by /proc: what `ss -tulpn` shows."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LISTENING, UNCONNECTED = 0x0A, 0x07  # include/net/tcp_states.h: TCP_LISTEN, TCP_CLOSE


@dataclass(frozen=True, order=True)
class Open:
    """A socket that others can reach. ``kind``: tcp, tcp6, udp or udp6."""

    kind: str
    address: str
    port: int

    @property
    def loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback


def open_ports(pids: Iterable[int]) -> set[Open]:
    """TCP sockets that listen, and UDP sockets with a port."""
    found: set[Open] = set()
    for pid in pids:
        mine = _inodes(pid)
        for kind in ("tcp", "tcp6", "udp", "udp6"):
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]
                found |= {one for line in lines if (one := _open(kind, line.split(), mine))}
    return found


def _open(kind: str, fields: list[str], mine: set[str]) -> Open | None:
    wanted = LISTENING if kind.startswith("tcp") else UNCONNECTED
    if fields[9] not in mine or int(fields[3], 16) != wanted:
        return None
    address, _, port = fields[1].partition(":")
    return Open(kind, _address(address), int(port, 16))


def _address(text: str) -> str:
    """The kernel prints words of 32 bits in the machine's order."""
    words = [int(text[i : i + 8], 16).to_bytes(4, "little") for i in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


def _inodes(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found
