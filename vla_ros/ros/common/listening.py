"""Subscriptions of every node: damaged bytes are dropped before native code reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from rclpy.subscription import Subscription

from vla_ros.nodes.common.compat import SubscriptionEventCallbacks, listener
from vla_ros.nodes.common.structure import check
from vla_ros.pixels import BadMessage

_SAY_EVERY_S = 5.0


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

    ``refuse`` is told why a message was dropped; without one the node's log is.
    """

    def complain(reason: str) -> None:
        node.get_logger().warning(reason, throttle_duration_sec=_SAY_EVERY_S)

    say = refuse or complain

    def read(raw: bytes) -> Any:
        try:
            return message_of(raw, kind)
        except BadMessage as error:
            say(f"message on {topic}: {error}")
            return None

    def hear(raw: bytes) -> None:
        message = read(raw)
        if message is not None:
            callback(message)

    def hear_with_info(raw: bytes, info: Any) -> None:
        message = read(raw)
        if message is not None:
            callback(message, info)

    return node.create_subscription(
        kind,
        topic,
        listener(hear_with_info) if with_info else hear,
        profile,
        raw=True,
        event_callbacks=event_callbacks,
    )
