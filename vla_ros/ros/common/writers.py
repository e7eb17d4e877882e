"""Second writers: one thing on a topic that two nodes publish is nobody's word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rclpy.node import Node

from vla_ros.core.clock import SECOND

SILENT_NS = SECOND  # a writer that has been silent for so long is gone
_MOST = 8  # writers of one thing that are told apart


@dataclass(slots=True)
class _Run:
    """Steady times of a writer's messages without such a pause between them."""

    first_ns: int
    last_ns: int


class TopicPublishers:
    """Who publishes each thing on a topic. While two do, neither is heard: each may be the one
    that is meant. Two that publish different things are welcome. Not thread-safe."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[bytes, _Run]] = {}

    def rivals(self, thing: str, writer: bytes, steady_ns: int) -> tuple[bytes, ...] | None:
        """None: ``writer`` alone publishes it. Otherwise its message is not to be used; of the
        writers that do both speak, itself included, empty while the other one may have ended."""
        runs = self._runs.setdefault(thing, {})
        for other in [w for w, run in runs.items() if steady_ns - run.last_ns > SILENT_NS]:
            del runs[other]
        if writer not in runs:
            if len(runs) >= _MOST:
                return tuple(runs)
            runs[writer] = _Run(steady_ns, steady_ns)
        mine = runs[writer]
        mine.last_ns = steady_ns
        others = {w: run for w, run in runs.items() if w != writer}
        if not others:
            return None
        both = [w for w, run in others.items() if run.last_ns > mine.first_ns]
        return (writer, *both) if both else ()


class StreamWriters:
    """The writers of one stream, which may come by several topics, by what each message publishes:
    joints by name, or the stream itself."""

    def __init__(self, node: Node, *topics: str) -> None:
        self._node, self._topics = node, tuple(map(node.resolve_topic_name, topics))
        self._contest = TopicPublishers()
        self._said: dict[tuple[bytes, ...], str] = {}

    def contested(
        self, things: Iterable[str], info: Mapping[str, Any], steady_ns: int
    ) -> dict[str, str]:
        """The things of a message that are not to be used, and why; "" while it is open whether
        another writer has ended. ``info``: the middleware's; not every one names the writer."""
        gid = info.get("publisher_gid")
        if gid is None:
            return {}
        writer = bytes(gid["data"])
        found: dict[str, str] = {}
        for thing in things:
            rivals = self._contest.rivals(thing, writer, steady_ns)
            if rivals is not None:
                topics = " and ".join(self._topics)
                what = f"joint {thing[:40]!r} on {topics}" if thing else topics
                by = self._names(rivals) if rivals else ""
                found[thing] = by and f"{what} is published by {by}"
        return found

    def _names(self, writers: tuple[bytes, ...]) -> str:
        key = tuple(sorted(writers))
        if key not in self._said:
            if len(self._said) >= _MOST:
                self._said.clear()
            self._said[key] = self._listed(key)
        return self._said[key]

    def _listed(self, writers: tuple[bytes, ...]) -> str:
        """Once a set of writers: the graph is asked, and a stop of one of them changes the set."""
        names = {
            bytes(one.endpoint_gid): f"{one.node_namespace.rstrip('/')}/{one.node_name}"
            for topic in self._topics
            for one in self._node.get_publishers_info_by_topic(topic)
        }
        found = sorted(
            next((n for gid, n in names.items() if gid.startswith(w) or w.startswith(gid)), "?")
            for w in writers
        )
        count = {2: "two"}.get(len(found), str(len(found)))
        return f"{count} nodes, {' and '.join(found)}: stop all but one, or remap them"
