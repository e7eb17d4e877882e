"""Second publishers: a joint or a stream that two nodes publish is taken from neither."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rclpy.node import Node

from vla_ros.core.clock import SECOND

SILENT_NS = SECOND  # a writer that has been silent for so long is gone
_MOST = 8  # writers of one key that are tracked


@dataclass(slots=True)
class _Run:
    """Steady times of a writer's messages without such a pause between them."""

    first_ns: int
    last_ns: int


class TopicPublishers:
    """The publishers of each key (a joint's name, "" for the stream itself) on a topic. While two
    publish it, neither is used: each may be the one that is meant. Two that publish different keys
    are welcome. Not thread-safe."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[bytes, _Run]] = {}

    def rivals(self, key: str, writer: bytes, steady_ns: int) -> tuple[bytes, ...] | None:
        """None: ``writer`` alone publishes it. Otherwise its message is not to be used: the writers
        that publish it now, itself included, or () while the other one may have ended."""
        runs = self._runs.setdefault(key, {})
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
        self._known: dict[tuple[bytes, ...], str] = {}

    def contested(
        self, keys: Iterable[str], info: Mapping[str, Any], steady_ns: int
    ) -> dict[str, str]:
        """Keys of a message that are not to be used -> why; "" while it is open whether another
        writer has ended. ``info``: the middleware's; not every one names the writer."""
        gid = info.get("publisher_gid")
        if gid is None:
            return {}
        writer = bytes(gid["data"])
        found: dict[str, str] = {}
        for key in keys:
            rivals = self._contest.rivals(key, writer, steady_ns)
            if rivals is not None:
                topics = " and ".join(self._topics)
                what = f"joint {key[:40]!r} on {topics}" if key else topics
                by = self._names(rivals) if rivals else ""
                found[key] = by and f"{what} is published by {by}"
        return found

    def _names(self, writers: tuple[bytes, ...]) -> str:
        key = tuple(sorted(writers))
        if key not in self._known:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[key] = self._listed(key)
        return self._known[key]

    def _listed(self, writers: tuple[bytes, ...]) -> str:
        """Names of the writers' nodes, by a query of the graph. Once a set: a stop of one of them
        changes it."""
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
