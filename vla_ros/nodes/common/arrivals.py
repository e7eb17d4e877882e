"""When a message was received: as the middleware says, not as the executor came to read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rclpy.node import Node

from vla_ros.timing import SECOND, Moment, SystemClock

if TYPE_CHECKING:
    from rclpy.subscription import MessageInfo  # Jazzy and Humble lack it


class ArrivalClock:
    """The monotonic clock, and the ROS clock of a node (simulated or wall time)."""

    def __init__(self, node: Node, simulated: bool) -> None:
        self._system = SystemClock()
        self._ros = node.get_clock()
        self._simulated = simulated

    def steady_ns(self) -> int:
        return self._system.steady_ns()

    def now_ns(self) -> int:
        return int(self._ros.now().nanoseconds)

    def arrival(self, info: MessageInfo) -> Moment:
        """Receipt of a message by the middleware; now, where it does not say.

        The middleware reads wall time. Simulated time cannot be counted back from it, since it
        may have stood still meanwhile.
        """
        received = int(info["received_timestamp"] or 0)
        wall = self._system.now_ns()
        # Read after the wall clock: a pause in between makes the receipt later, never too early.
        steady, now = self.steady_ns(), self.now_ns()
        if not 0 <= wall - received < SECOND:
            return Moment(now, steady)
        return Moment(now if self._simulated else received, steady - (wall - received))
