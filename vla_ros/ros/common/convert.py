"""Conversions that every node needs: stamps, percentiles, diagnostics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node

from vla_ros.core.clock import SECOND, Distribution
from vla_ros.core.text import printable
from vla_ros.msg import Percentiles
from vla_ros.ros.common import qos
from vla_ros.ros.common.text import LONGEST


def stamp_of(time: Time) -> int:
    """Stamp of a Time message, ns."""
    return int(time.sec) * SECOND + int(time.nanosec)


def to_time(stamp_ns: int) -> Time:
    """Time message of a stamp, ns >= 0."""
    sec, nanosec = divmod(stamp_ns, SECOND)
    return Time(sec=sec, nanosec=nanosec)


def set_time(time: Time, stamp_ns: int) -> None:
    """Set a Time message to a stamp, ns >= 0."""
    time.sec, time.nanosec = divmod(stamp_ns, SECOND)


def set_times(message: Any, name: str, of_ms: Distribution) -> None:
    """Set field ``name_s``, in s, to a distribution of durations in ms."""
    values = {p: getattr(of_ms, p) / 1e3 for p in ("p50", "p95", "p99", "max")}
    setattr(message, f"{name}_s", Percentiles(count=of_ms.count, **values))


# Statuses on /diagnostics, each named after the node that publishes it.
#
# Tools merge statuses of the same name, so the name has the namespace: two robots are two. As
# diagnostic_updater has them, names begin without a slash: `startswith` of an aggregator looks.


def status(
    level: int, subject: str, message: str, values: Iterable[tuple[str, object]] = ()
) -> DiagnosticStatus:
    """One status. ``subject``: what it is about; the node's name is put in front when it is
    published. ``level``: 0 ok, 1 warning, 2 error, 3 stale."""
    pairs = [KeyValue(key=key, value=str(value)) for key, value in values]
    return DiagnosticStatus(level=bytes([level]), name=subject, message=message, values=pairs)


class Diagnostics:
    """Publisher of /diagnostics. ``hardware_id``: of the robot; empty: the namespace."""

    def __init__(self, node: Node, hardware_id: str = "") -> None:
        self._node = node
        self._hardware_id = hardware_id or node.get_namespace()
        self._publisher = node.create_publisher(DiagnosticArray, "/diagnostics", qos.REPORT)

    def publish(self, *statuses: DiagnosticStatus) -> None:
        """Publish these in the node's name."""
        array = DiagnosticArray(status=list(statuses))
        array.header.stamp = self._node.get_clock().now().to_msg()
        node = self._node.get_fully_qualified_name().lstrip("/")
        for one in statuses:
            one.message = printable(one.message, LONGEST)
            for value in one.values:
                value.value = printable(value.value, LONGEST)
            one.name = f"{node}: {one.name}"
            one.hardware_id = self._hardware_id
        self._publisher.publish(array)
