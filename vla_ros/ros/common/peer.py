"""A node beside a running graph, in a ROS context and a thread of its own.

Callbacks run in that thread; what they share with the caller is under :attr:`Peer.bell`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from rclpy.client import Client
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node

from vla_ros.nodes.common.leaving import leave, take_down

P = TypeVar("P", bound="Peer")

_LEAVE_S = 5.0  # for a callback that runs while the node is to leave
_LOOK_S = 0.1  # how often a wait looks for other reasons to end


class Peer:
    """Joins the graph of ``domain``; use it with `with`.

    A subclass makes its publishers and subscriptions on :attr:`node` and then calls
    :meth:`start`.
    """

    def __init__(self, name: str, domain: int) -> None:
        self.bell = threading.Condition()
        self._context = Context()
        self._context.init(args=[], domain_id=domain)
        self.node = Node(name, context=self._context, start_parameter_services=False)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._spin, name=name, daemon=True)

    def start(self) -> None:
        """Callbacks come from now on."""
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._thread.start()

    def __enter__(self: P) -> P:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the graph."""
        self._over.set()
        if self._thread.ident is None:  # it never began
            take_down(self.node)
        elif not leave(self.node, self._executor, self._thread, _LEAVE_S):
            self.node.get_logger().warning(
                f"a callback takes longer than {_LEAVE_S:g} s: not waited for"
            )

    def wait(
        self,
        true: Callable[[], object],
        timeout_s: float,
        check: Callable[[], None] = lambda: None,
    ) -> bool:
        """Wait until ``true``, asked under the bell; False after ``timeout_s``.

        ``check`` is called now and then, without the bell; it may raise.
        """
        until = time.monotonic() + timeout_s
        while (left := until - time.monotonic()) > 0:
            with self.bell:
                if self.bell.wait_for(true, min(_LOOK_S, left)):
                    return True
            check()
        with self.bell:
            return bool(true())

    def call(
        self,
        client: Client,
        request: Any,
        timeout_s: float,
        check: Callable[[], None] = lambda: None,
    ) -> Any:
        """The answer of a service. TimeoutError: there was none, with the service's name."""
        if not self.wait(client.service_is_ready, timeout_s, check):
            raise TimeoutError(f"{client.srv_name} did not appear within {timeout_s:g} s")
        future = client.call_async(request)
        future.add_done_callback(lambda _: self._ring())
        if not self.wait(future.done, timeout_s, check):
            client.remove_pending_request(future)
            raise TimeoutError(f"{client.srv_name} did not answer within {timeout_s:g} s")
        return future.result()

    def _ring(self) -> None:
        with self.bell:
            self.bell.notify_all()

    def _spin(self) -> None:
        while not self._over.is_set():
            try:
                self._executor.spin_once(timeout_sec=0.1)
            except ExternalShutdownException:
                return
            except ValueError as error:  # a malformed message says nothing about the graph
                self.node.get_logger().warning(str(error), throttle_duration_sec=1.0)
