"""Statuses on /diagnostics, each named after the node that says it.

Tools merge statuses of the same name, so the name has the namespace: two robots are two.
"""

from __future__ import annotations

from collections.abc import Iterable

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node

from vla_ros.nodes.common import qos


def status(
    level: int, subject: str, message: str, values: Iterable[tuple[str, object]] = ()
) -> DiagnosticStatus:
    """``subject``: of what the node speaks; the node's name comes in front when it is said.
    ``level``: 0 ok, 1 warning, 2 error, 3 stale."""
    pairs = [KeyValue(key=key, value=str(value)) for key, value in values]
    return DiagnosticStatus(level=bytes([level]), name=subject, message=message, values=pairs)


class Diagnostics:
    """A node's publisher of /diagnostics. ``hardware_id``: of the robot; empty: the namespace."""

    def __init__(self, node: Node, hardware_id: str = "") -> None:
        self._node = node
        self._hardware_id = hardware_id or node.get_namespace()
        self._publisher = node.create_publisher(DiagnosticArray, "/diagnostics", qos.REPORT)

    def say(self, *statuses: DiagnosticStatus) -> None:
        """Publish these, as the node's."""
        array = DiagnosticArray(status=list(statuses))
        array.header.stamp = self._node.get_clock().now().to_msg()
        for one in statuses:
            one.name = f"{self._node.get_fully_qualified_name()}: {one.name}"
            one.hardware_id = self._hardware_id
        self._publisher.publish(array)
