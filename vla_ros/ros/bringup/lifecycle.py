"""Client of lifecycle nodes: configure, then activate, through their services.

    python -m vla_ros.ros.bringup.lifecycle /policy    # as the launch files do

Uses a context of its own, so it neither disturbs nor needs the caller's rclpy.init.

A server responds only to clients that it has discovered. One that gets a request before it has
discovered the client, as on a busy machine just after a start, carries it out and its response is
lost. So the state of a node that does not respond is queried, and the request sent again.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from vla_ros.core.console import log_line
from vla_ros.core.signals import ignore, set_on_signal
from vla_ros.core.types import PolicyState
from vla_ros.msg import PolicyStatus
from vla_ros.ros.bringup.environment import prepare
from vla_ros.ros.common import qos
from vla_ros.ros.common.ending import end_with_parent

TRANSITIONS = {
    "configure": Transition.TRANSITION_CONFIGURE,
    "activate": Transition.TRANSITION_ACTIVATE,
    "deactivate": Transition.TRANSITION_DEACTIVATE,
}
#: transition -> the state that it is made in, and the one that it leads to
STATES = {
    "configure": ("unconfigured", "inactive"),
    "activate": ("inactive", "active"),
    "deactivate": ("active", "inactive"),
}
LONGEST_S = 3600.0  # `load_timeout_s` ends it before
QUERY_S = 3.0  # without a response; loading takes longer, and then the state is "configuring"


class LifecycleClient:
    """Client of the lifecycle services. Used from one thread; close it, or use it with `with`."""

    def __init__(self, domain_id: int | None = None) -> None:
        self._context = Context()
        self._context.init(args=[], domain_id=domain_id)
        self._node = Node("vla_ros_up", context=self._context, start_parameter_services=False)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._clients: dict[str, Any] = {}

    def __enter__(self) -> LifecycleClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the ROS graph."""
        self._executor.shutdown(timeout_sec=0.5)
        self._node.destroy_node()
        self._context.try_shutdown()

    def running(
        self, names: Collection[str], seconds: float, interrupted: Callable[[], bool]
    ) -> set[str]:
        """Those of these full names of nodes that are discovered within so long. It ends early
        once all of them are."""
        until, found = time.monotonic() + seconds, set[str]()
        while time.monotonic() < until and found != set(names) and not interrupted():
            self._executor.spin_once(timeout_sec=0.05)
            listed = self._node.get_node_names_and_namespaces()
            found = {f"{space.rstrip('/')}/{name}" for name, space in listed} & set(names)
        return found

    def twice(self, names: Collection[str]) -> list[str]:
        """Those of these full names that two nodes have, as far as they are discovered."""
        listed = self._node.get_node_names_and_namespaces()
        found = [f"{space.rstrip('/')}/{name}" for name, space in listed]
        return sorted({name for name in names if found.count(name) > 1})

    def status(self, policy: str, seconds: float) -> str:
        """State and reason of a policy node that does not run within so long; "": it runs, or
        reports nothing."""
        seen: list[PolicyStatus] = []
        topic = self._node.create_subscription(
            PolicyStatus, f"{policy}/status", seen.append, qos.STATUS
        )
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._executor.spin_once(timeout_sec=0.05)
            if seen and seen[-1].state == PolicyStatus.STATE_RUNNING:
                break
        self._node.destroy_subscription(topic)
        if not seen or seen[-1].state == PolicyStatus.STATE_RUNNING:
            return ""
        return f"{policy} is {PolicyState(seen[-1].state).name}: {seen[-1].reason}"

    def state(self, node: str, timeout_s: float, alive: Callable[[], bool]) -> str:
        """Label of the node's state, such as "inactive".

        Raises:
            TimeoutError: no response in time, or ``alive`` became false.
        """
        until = time.monotonic() + timeout_s
        client = self._client(GetState, f"{node}/get_state", until, alive)
        while True:
            answer = client.call_async(GetState.Request())
            if self._answered(answer, client, until, alive):
                return str(answer.result().current_state.label)
            client.remove_pending_request(answer)

    def change(
        self, node: str, transition: str, timeout_s: float, alive: Callable[[], bool]
    ) -> bool:
        """Request a transition; True if the node made it, False if it refused.

        Raises:
            TimeoutError: no response in time, or ``alive`` became false.
        """
        until = time.monotonic() + timeout_s
        before, behind = STATES[transition]
        client = self._client(ChangeState, f"{node}/change_state", until, alive)
        request = ChangeState.Request(transition=Transition(id=TRANSITIONS[transition]))
        answer, requests = client.call_async(request), 1
        while not self._answered(answer, client, until, alive):
            label = self.state(node, until - time.monotonic(), alive)
            if label == behind:
                return True
            # A refusal may be on its way, and a request that is sent twice loads twice.
            if label == before and not self._answered(answer, client, until, alive):
                answer, requests = client.call_async(request), requests + 1
        if answer.result().success or requests == 1:
            return bool(answer.result().success)
        # The first request was late, not lost: the second was refused while that one runs.
        while (label := self.state(node, until - time.monotonic(), alive)) not in (before, behind):
            self._check(until, alive, f"{node} is still {label}")
            self._executor.spin_once(timeout_sec=0.05)
        return label == behind

    def _client(self, kind: Any, name: str, until: float, alive: Callable[[], bool]) -> Any:
        """Client of a service, one for all calls: a new one would have to be discovered anew."""
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = self._node.create_client(kind, name)
        while not client.service_is_ready():
            self._check(until, alive, f"{name} did not appear")
            self._executor.spin_once(timeout_sec=0.05)
        return client

    def _answered(self, answer: Any, client: Any, until: float, alive: Callable[[], bool]) -> bool:
        """Wait for a response; False when it is time to query whether one was lost."""
        query = time.monotonic() + QUERY_S
        while not answer.done():
            if time.monotonic() > query:
                return False
            self._check(until, alive, f"{client.srv_name} did not answer")
            self._executor.spin_once(timeout_sec=0.05)
        return True

    @staticmethod
    def _check(until: float, alive: Callable[[], bool], problem: str) -> None:
        if not alive():
            raise TimeoutError("the node's process ended")
        if time.monotonic() > until:
            raise TimeoutError(f"{problem} in time")


def main(node: str) -> int:
    """Bring a node up, or until a signal. Returns 1, after one line on stderr, where it refused or
    did not respond."""
    end_with_parent()
    stop = threading.Event()
    set_on_signal(stop)
    prepare()
    with LifecycleClient() as client:
        for transition in ("configure", "activate"):
            try:
                done = client.change(node, transition, LONGEST_S, lambda: not stop.is_set())
            except TimeoutError as error:
                if stop.is_set():  # Ctrl-C of the launch, which is no failure
                    return 0
                log_line(f"{node}: {transition}: {error}")
                return 1
            if not done:
                log_line(f"{node} refused to {transition}")
                return 1
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1])
    ignore()
    sys.exit(status)
