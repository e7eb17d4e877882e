"""Subscriptions of every node: damaged bytes are dropped before native code reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from rclpy.subscription import Subscription

from vla_ros.core.clock import SECOND, Moment, SystemClock
from vla_ros.core.pixels import BadMessage
from vla_ros.ros.common.compat import SubscriptionEventCallbacks, listener
from vla_ros.ros.common.serialized import check

if TYPE_CHECKING:
    from rclpy.subscription import MessageInfo  # Jazzy and Humble lack it


_LOG_EVERY_S = 5.0


def message_of(raw: bytes, kind: Any) -> Any:
    """A serialized message of that type. Raises :class:`BadMessage` in one line."""
    check(raw, kind)
    try:
        return deserialize_message(raw, kind)
    except RuntimeError as error:  # RMWError: for example a bool of 7
        raise BadMessage(f"damaged: {str(error).splitlines()[0]}") from None


def listen(
    node: Node,
    kind: Any,
    topic: str,
    callback: Callable[..., None],
    profile: QoSProfile,
    *,
    refuse: Callable[[str], None] | None = None,
    with_info: bool = False,
    event_callbacks: SubscriptionEventCallbacks | None = None,
) -> Subscription:
    """Subscribe ``callback(message)``, or ``callback(message, info)`` ``with_info``.

    ``refuse`` gets the reason why a message was dropped; without one the node's log does.
    """

    def warn(reason: str) -> None:
        node.get_logger().warning(reason, throttle_duration_sec=_LOG_EVERY_S)

    report = refuse or warn

    def read(raw: bytes) -> Any:
        try:
            return message_of(raw, kind)
        except BadMessage as error:
            report(f"message on {topic}: {error}")
            return None

    def take(raw: bytes) -> None:
        message = read(raw)
        if message is not None:
            callback(message)

    def take_with_info(raw: bytes, info: Any) -> None:
        message = read(raw)
        if message is not None:
            callback(message, info)

    return node.create_subscription(
        kind,
        topic,
        listener(take_with_info) if with_info else take,
        profile,
        raw=True,
        event_callbacks=event_callbacks,
    )


# Receipt of a message: when the middleware had it, not when the executor came to read it.


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
        """Receipt of a message by the middleware; now, where it does not report one.

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
