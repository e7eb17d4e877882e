"""Who publishes commands? Only one node may.

Two sources of evidence: the ROS graph, which names writers but forgets a killed one only
after its lease (20 s), and the GIDs of the commands received, which are proof but nameless.
"""

from __future__ import annotations

from dataclasses import dataclass

from vla_ros.monitoring.seen import PublisherSeen
from vla_ros.timing import SECOND

RECENT_NS = 2 * SECOND
MAX_SENDERS = 16


@dataclass(slots=True)
class _Sender:
    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class Writers:
    """``active``: node names that may command the robot now. ``leftover``: dead namesakes."""

    active: tuple[str, ...] = ()
    leftover: tuple[str, ...] = ()


class WriterWatch:
    """Joins the graph's list of writers with the senders of the commands received."""

    def __init__(self) -> None:
        self._listed: tuple[PublisherSeen, ...] = ()
        self._senders: dict[bytes, _Sender] = {}

    def listed(self, publishers: tuple[PublisherSeen, ...]) -> None:
        """The writers of the action topic that the graph knows."""
        self._listed = publishers

    def sent(self, gid: bytes, steady_ns: int) -> None:
        """A command of the writer ``gid`` was received; empty when the writer is unknown."""
        if not gid:
            return
        sender = self._senders.get(gid)
        if sender is not None and steady_ns - sender.last_ns <= RECENT_NS:
            sender.last_ns = steady_ns
            return
        if sender is None and len(self._senders) >= MAX_SENDERS:
            oldest = min(self._senders, key=lambda key: self._senders[key].last_ns)
            del self._senders[oldest]
        self._senders[gid] = _Sender(steady_ns, steady_ns)

    def judge(self, steady_ns: int) -> Writers:
        """Who may command now, by node name; a stranger is named by its GID."""
        recent = {
            gid: sender
            for gid, sender in self._senders.items()
            if steady_ns - sender.last_ns <= RECENT_NS
        }
        names = {publisher.gid: publisher.node for publisher in self._listed}
        leftover = self._leftover(recent)
        active = [names[gid] for gid in names if gid not in leftover]
        active += [_stranger(gid) for gid in recent if gid not in names and _overlaps(gid, recent)]
        return Writers(tuple(active), tuple(names[gid] for gid in leftover))

    def _leftover(self, recent: dict[bytes, _Sender]) -> tuple[bytes, ...]:
        """Listed writers that are silent while a namesake speaks: a killed process."""
        speaking = {p.node for p in self._listed if p.gid in recent}
        return tuple(p.gid for p in self._listed if p.gid not in recent and p.node in speaking)


def _overlaps(gid: bytes, recent: dict[bytes, _Sender]) -> bool:
    """Did another writer send while ``gid`` was sending? A node that was restarted did not."""
    own = recent[gid]
    return any(
        max(own.first_ns, other.first_ns) <= min(own.last_ns, other.last_ns)
        for key, other in recent.items()
        if key != gid
    )


def _stranger(gid: bytes) -> str:
    return f"unknown writer {gid.hex()}"
