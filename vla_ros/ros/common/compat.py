"""Differences between the ROS 2 distros that robots run. Each entry names its distro and goes when
that distro does.

Kilted and Jazzy are run by the tests; Humble's rclpy is held by its names and signatures
(test/package/test_surface.py), since there are no wheels of it.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import rclpy.subscription
from rcl_interfaces.msg import SetParametersResult
from rclpy.callback_groups import (
    CallbackGroup,
    MutuallyExclusiveCallbackGroup,
    ReentrantCallbackGroup,
)
from rclpy.executors import Executor, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.subscription import Subscription

try:
    from rclpy.event_handler import SubscriptionEventCallbacks, UnsupportedEventTypeError
except ImportError:  # Humble
    from rclpy.qos_event import SubscriptionEventCallbacks, UnsupportedEventTypeError

__all__ = [
    "SubscriptionEventCallbacks",
    "UnsupportedEventTypeError",
    "awaiting_executor",
    "awaiting_group",
    "listener",
    "on_parameters",
]


def awaiting_executor(best: Callable[[], Executor]) -> Executor:
    """An executor for a node with a service that is a coroutine; ``best`` where that can be.

    Jazzy's events executor calls such a service and never awaits it: the caller hears nothing.
    """
    return SingleThreadedExecutor() if _before_kilted() else best()


def awaiting_group() -> CallbackGroup:
    """The callback group for a node with such a service. In rclpy's own, that executor calls
    nothing else of the node while the service awaits, neither stop nor get_state."""
    return ReentrantCallbackGroup() if _before_kilted() else MutuallyExclusiveCallbackGroup()


def _before_kilted() -> bool:
    return not hasattr(rclpy.subscription, "MessageInfo")


def listener(callback: Callable[[Any, Any], None]) -> Callable[..., None]:
    """Callback of a subscription that also gets the message's info: its receipt by the middleware,
    and its writer.

    Humble calls with the message alone. 0 stands for "unknown" there, and
    :class:`vla_ros.ros.common.listening.ArrivalClock` takes the time of the call. Kilted's events
    executor calls with both as one; rclpy looks at the signature to see that both are wanted.
    """
    if hasattr(Subscription, "CallbackType"):

        def both(*given: Any) -> None:
            callback(*(given if len(given) == 2 else given[0]))

        both.__signature__ = signature(callback)  # type: ignore[attr-defined]
        return both

    def message_only(message: Any) -> None:
        callback(message, {"received_timestamp": 0})

    return message_only


def on_parameters(
    node: Node,
    judge: Callable[[list[Parameter]], SetParametersResult],
    apply: Callable[[list[Parameter]], None],
) -> None:
    """Callbacks for parameters: ``judge`` may refuse values, ``apply`` gets those that were set.

    Humble has no callback for what was set: there ``apply`` is called by a timer, right after
    the values that ``judge`` let pass are in force. A node has one judge, so none other refuses.
    """
    if hasattr(node, "add_post_set_parameters_callback"):
        node.add_on_set_parameters_callback(judge)
        node.add_post_set_parameters_callback(apply)
        return

    def judge_then_apply(parameters: list[Parameter]) -> SetParametersResult:
        result = judge(parameters)
        if result.successful:
            _once(node, lambda: apply(parameters))
        return result

    node.add_on_set_parameters_callback(judge_then_apply)


def _once(node: Node, call: Callable[[], None]) -> None:
    """At the executor's next turn."""

    def run() -> None:
        timer.cancel()
        node.destroy_timer(timer)
        call()

    timer = node.create_timer(0.0, run)
