"""How a node that spins in a thread of its own leaves the graph: in the one order that is safe.

The thread first: ``Executor.shutdown`` of rclpy (9.1.2) waits for nothing, whatever time it is
given, so what runs would go on over entities and guard conditions that are gone. Then the executor,
then actions: ``Node.destroy_node`` destroys none of them, and the node's participant lives as long
as one of them does, until Python collects it, in whatever thread, after its context and the
process's logging have ended. Then the node, and its context last.
"""

from __future__ import annotations

import threading

from rclpy.action import ActionClient, ActionServer
from rclpy.executors import Executor
from rclpy.node import Node


def leave(node: Node, executor: Executor, thread: threading.Thread, wait_s: float) -> bool:
    """Take all of it down once ``thread``, which was told to end, has ended.

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
    """The same for a node that nothing spins any more."""
    for action in [one for one in node.waitables if isinstance(one, (ActionClient, ActionServer))]:
        action.destroy()
    node.destroy_node()
    node.context.try_shutdown()
