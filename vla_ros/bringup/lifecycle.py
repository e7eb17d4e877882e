"""Bring lifecycle nodes up: configure, then activate, through their lifecycle services.

Uses a context of its own, so it neither disturbs nor needs the caller's rclpy.init.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

TRANSITIONS = {
    "configure": Transition.TRANSITION_CONFIGURE,
    "activate": Transition.TRANSITION_ACTIVATE,
    "deactivate": Transition.TRANSITION_DEACTIVATE,
}


class LifecycleClient:
    """Asks nodes for transitions. Used from one thread; close it, or use it with `with`."""

    def __init__(self, domain_id: int | None = None) -> None:
        self._context = Context()
        self._context.init(args=[], domain_id=domain_id)
        self._node = Node("vla_ros_up", context=self._context, start_parameter_services=False)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)

    def __enter__(self) -> LifecycleClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the ROS graph."""
        self._executor.shutdown(timeout_sec=0.5)
        self._node.destroy_node()
        self._context.try_shutdown()

    def state(self, node: str, timeout_s: float, alive: Callable[[], bool]) -> str:
        """The label of the node's state, such as "inactive".

        Raises:
            TimeoutError: nobody answered in time, or ``alive`` became false.
        """
        answer = self._call(GetState, f"{node}/get_state", GetState.Request(), timeout_s, alive)
        return str(answer.current_state.label)

    def change(
        self, node: str, transition: str, timeout_s: float, alive: Callable[[], bool]
    ) -> bool:
        """Ask for a transition; True if the node made it, False if it refused.

        Raises:
            TimeoutError: nobody answered in time, or ``alive`` became false.
        """
        number = TRANSITIONS[transition]
        request = ChangeState.Request(transition=Transition(id=number))
        answer = self._call(ChangeState, f"{node}/change_state", request, timeout_s, alive)
        return bool(answer.success)

    def _call(
        self, kind: Any, name: str, request: Any, timeout_s: float, alive: Callable[[], bool]
    ) -> Any:
        until = time.monotonic() + timeout_s
        client = self._node.create_client(kind, name)
        try:
            while not client.service_is_ready():
                self._check(until, alive, f"{name} did not appear")
                self._executor.spin_once(timeout_sec=0.05)
            future = client.call_async(request)
            while not future.done():
                self._check(until, alive, f"{name} did not answer")
                self._executor.spin_once(timeout_sec=0.05)
            return future.result()
        finally:
            self._node.destroy_client(client)

    @staticmethod
    def _check(until: float, alive: Callable[[], bool], problem: str) -> None:
        if not alive():
            raise TimeoutError("the node's process ended")
        if time.monotonic() > until:
            raise TimeoutError(f"{problem} in time")
