"""Main function of every node: own signal handling, one executor, a clean end.

rclpy's own signal handlers make the context invalid before a node can publish its last
command, so they stay off: SIGINT, SIGTERM and SIGHUP only set an event that ends :func:`spin`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import rclpy
from rclpy.action import ActionClient, ActionServer
from rclpy.clock import Clock, ClockType
from rclpy.exceptions import (
    InvalidParameterTypeException,
    InvalidParameterValueException,
    ParameterUninitializedException,
)
from rclpy.executors import Executor, ExternalShutdownException, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from vla_ros.core.console import log_line
from vla_ros.core.signals import set_on_signal
from vla_ros.ros.common.answers import KeptAnswers
from vla_ros.ros.common.ending import FORCED, bounded, end_with_parent
from vla_ros.ros.common.given import given_place
from vla_ros.ros.common.surroundings import missing
from vla_ros.ros.common.text import plain_log

if TYPE_CHECKING:
    from rclpy.timer import Timer

N = TypeVar("N", bound=Node)

_REFUSED_S = 5.0  # to take a half-made node down: a tenth of a second, on a busy machine some


def make_executor() -> Executor:
    """Events executor where this rclpy has it: a fifth of the jitter of the others."""
    try:
        from rclpy.experimental import EventsExecutor
    except ImportError:
        return SingleThreadedExecutor()
    executor: Executor = EventsExecutor()
    return executor


def spin(node: Node, stop: threading.Event, make: Callable[[], Executor] = make_executor) -> None:
    """Run the callbacks of ``node`` until ``stop`` is set. An exception in a callback is
    logged and does not end the node."""
    executor = make()
    executor.add_node(node)
    try:
        # The events executor's own spin() takes a whole core while idle; spin_once does not.
        while rclpy.ok() and not stop.is_set():
            try:
                executor.spin_once(timeout_sec=0.1)
            except ExternalShutdownException:
                break
            except Exception as error:  # the edge of every callback
                node.get_logger().error(f"{type(error).__name__} in a callback: {error}")
    finally:
        executor.remove_node(node)
        executor.shutdown(timeout_sec=0.2)


def every(node: Node, seconds: float, call: Callable[[], None]) -> Timer:
    """Timer by the steady clock: /clock may stand still."""
    return node.create_timer(seconds, call, clock=Clock(clock_type=ClockType.STEADY_TIME))


def _first_cause(error: Exception) -> str:
    """rcl reports a chain of causes with source positions; the first one is the user's."""
    text = str(error).removeprefix("failed to initialize rcl: ")
    return text.split(", at /")[0]


def run(
    make: Callable[[threading.Event], N],
    before_end: Callable[[N], None] | None = None,
    args: Sequence[str] | None = None,
    executor: Callable[[], Executor] = make_executor,
    end_s: float = 5.0,
) -> int:
    """Run one node to its end: 0 after SIGINT or SIGTERM, 2 for a bad parameter, one that the node
    does not have, or a parameter file that cannot be read, FORCED where it did not end in time.

    ``make`` is given the event that SIGINT and SIGTERM set, for a node whose callbacks may
    block for long. ``before_end`` runs while the context is still valid: the place of the last
    command.
    ``executor``: another one for a node that the default cannot serve. ``end_s``: the most that
    ``before_end`` and taking the node down may take; the process ends then, come what may.
    """
    end_with_parent()
    plain_log()
    stop = threading.Event()
    if line := missing(os.environ):
        log_line(f"bad environment: {line}")
        return 2
    try:
        rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    except rclpy_implementation.RCLError as error:
        log_line(f"bad parameter: {_first_cause(error)}")
        return 2
    set_on_signal(stop)
    node: N | None = None
    try:
        node = make(stop)
    except (
        InvalidParameterTypeException,
        InvalidParameterValueException,
        ParameterUninitializedException,
        ValueError,
    ) as error:
        where = given_place(str(error))
        log_line(f"bad parameter: {where + ': ' if where else ''}{error}")
    if node is None:
        with bounded(_REFUSED_S, 2):
            gc.collect()  # the half-made node must go before its context
            rclpy.try_shutdown()
        return 2
    KeptAnswers(node)
    try:
        spin(node, stop, executor)
    finally:
        with contextlib.suppress(OSError):  # whoever read it may be gone
            sys.stdout.flush()
        with bounded(end_s, FORCED):
            if before_end is not None:
                before_end(node)
            node.destroy_node()
            rclpy.try_shutdown()
    return 0


# How a node that spins in a thread of its own leaves the graph: in the one order that is safe.
#
# The thread first: ``Executor.shutdown`` of rclpy (9.1.2) waits for nothing, whatever time it is
# given, so what runs would go on over entities and guard conditions that are gone. Then the
# executor, then actions: ``Node.destroy_node`` destroys none of them, and the node's participant
# lives as long as one of them does, until Python collects it, in whatever thread, after its context
# and the process's logging have ended. Then the node, and its context last.


def leave(node: Node, executor: Executor, thread: threading.Thread, wait_s: float) -> bool:
    """Take a node down once ``thread``, which was signalled to end, has ended.

    False: a callback did not end within ``wait_s``, and everything is left whole for it. Doing it
    twice does no harm.
    """
    executor.wake()
    thread.join(wait_s)
    if thread.is_alive():
        return False
    executor.remove_node(node)
    executor.shutdown(timeout_sec=0.0)
    take_down(node)
    return True


def take_down(node: Node) -> None:
    """Destroy a node, its actions and its context, once no executor spins it any more."""
    for action in [one for one in node.waitables if isinstance(one, (ActionClient, ActionServer))]:
        action.destroy()
    node.destroy_node()
    node.context.try_shutdown()
