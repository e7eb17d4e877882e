"""A test's own place in the ROS graph: topics in, topics out, services, lifecycle.

Callbacks run in a background thread from the start, so receive times mean something. Steady
times are nanoseconds of time.monotonic_ns().
"""

from __future__ import annotations

import atexit
import copy
import faulthandler
import itertools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from rclpy.action import ActionClient
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile

from support import wait
from support.wait import wait_until
from vla_ros.ros.bringup.lifecycle import QUERY_S, STATES
from vla_ros.ros.common.spin import leave

Message = TypeVar("Message")
Value = TypeVar("Value")
DEPTH = 200  # ten seconds of commands


def keeping_all(qos: QoSProfile | int) -> QoSProfile | int:
    """The same for a reader that may fall behind: what comes while this process has no processor
    waits for it. With the shipped depth of 10 half a second of commands is all that waits."""
    if isinstance(qos, int):
        return max(qos, DEPTH)
    deep = copy.copy(qos)
    deep.depth = max(qos.depth, DEPTH)
    return deep


class Inbox(Generic[Message]):
    """Everything received on one topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.subscription: Any = None
        self.messages: list[Message] = []
        self.times: list[int] = []  # steady, of receipt

    def add(self, message: Message) -> None:
        self.times.append(time.monotonic_ns())
        self.messages.append(message)

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def last(self) -> Message:
        return self.messages[-1]

    def clear(self) -> None:
        """Forget what came so far."""
        self.messages, self.times = [], []

    def wait(
        self, predicate: Callable[[Message], bool] = lambda _: True, timeout: float = 5.0
    ) -> Message:
        """The first message, already here or still to come, for which ``predicate`` is true."""
        found: list[Message] = []
        seen = 0

        def look() -> bool:
            nonlocal seen
            while seen < len(self.messages) and not found:
                if predicate(self.messages[seen]):
                    found.append(self.messages[seen])
                seen += 1
            return bool(found)

        wait_until(look, timeout, lambda: f"a matching message on {self.topic} ({len(self)} came)")
        return found[0]

    def wait_new(
        self, predicate: Callable[[Message], bool] = lambda _: True, timeout: float = 5.0
    ) -> Message:
        """Like :meth:`wait`, but only messages that come from now on count."""
        begin = len(self.messages)

        def look() -> list[Message]:
            return [m for m in self.messages[begin:] if predicate(m)]

        return wait_until(look, timeout, lambda: f"a new matching message on {self.topic}")[0]


SETTLE_S = 0.2


class RosPeer:
    """One node in the test's domain. Close it, or use the `ros` fixture."""

    def __init__(self, domain: int, name: str = "test_peer") -> None:
        self.domain = domain
        self.context = Context()
        self.context.init(args=[], domain_id=domain)
        self.node = Node(name, context=self.context, start_parameter_services=False)
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self._clients: dict[str, Any] = {}  # of services, by name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()
        # A process that ends under a thread that waits in Fast DDS is aborted.
        atexit.register(self.close)

    def close(self, timeout: float = 30.0) -> None:
        """Leave the graph; fails the test, with everything left whole, where a callback does not
        end within ``timeout`` s."""
        atexit.unregister(self.close)
        self._stop.set()
        if not leave(self.node, self._executor, self._thread, timeout):
            faulthandler.dump_traceback(sys.__stderr__)
            raise AssertionError(f"a callback of the test has not ended after {timeout:g} s")

    def inbox(self, kind: type[Message], topic: str, qos: QoSProfile | int = 100) -> Inbox[Message]:
        """Subscribe; returns the growing list of all that arrives."""
        box: Inbox[Message] = Inbox(topic)
        box.subscription = self.node.create_subscription(kind, topic, box.add, keeping_all(qos))
        self._executor.wake()
        return box

    def publisher(self, kind: type, topic: str, qos: QoSProfile | int = 10) -> Any:
        """A publisher; see :meth:`wait_for_subscriber` before the first message."""
        return self.node.create_publisher(kind, topic, qos)

    def wait_for_subscriber(self, publisher: Any, timeout: float = 10.0) -> None:
        """Wait until somebody listens. The reader may know its writer a moment later than the
        writer its reader, which nobody can see from here: what is said only once waits for that."""
        wait_until(
            lambda: publisher.get_subscription_count() > 0,
            timeout,
            f"a subscriber of {publisher.topic_name}",
        )
        time.sleep(SETTLE_S)

    def call(self, kind: Any, name: str, request: Any = None, timeout: float = 10.0) -> Any:
        """Call a service and return its response. One client a service: a server gives a client
        that it does not know yet 0.1 s to become known, and then answers in vain."""
        if name not in self._clients:
            self._clients[name] = self.node.create_client(kind, name)
        client = self._clients[name]
        wait_until(client.service_is_ready, timeout, f"service {name}")
        future = client.call_async(kind.Request() if request is None else request)
        self._executor.wake()
        try:
            wait_until(future.done, timeout, f"an answer of {name}")
        finally:
            client.remove_pending_request(future)
        return future.result()

    def action_client(self, kind: Any, name: str) -> ActionClient:
        """Made where callbacks run: rclpy (9.1.2) lets a node that spins see it half-made."""
        return self.in_executor(ActionClient, self.node, kind, name)

    def in_executor(self, function: Callable[..., Value], *args: Any) -> Value:
        """What ``function`` returns where callbacks run. An action client's requests go out there:
        rclpy (Jazzy, Kilted) knows a request a moment after it was sent, and drops an answer that
        the spinning thread takes before."""
        task = self._executor.create_task(function, *args)
        wait_until(task.done, 5.0, f"the executor to run {function}")
        return task.result()

    def change_state(self, node: str, transition: str, timeout: float = 60.0) -> bool:
        """Ask a lifecycle node for "configure", "activate", "deactivate", "cleanup", ...

        Just after a start a request may reach nobody: a node that says nothing is looked at, and
        asked again, as :mod:`vla_ros.ros.bringup.lifecycle` does.
        """
        from lifecycle_msgs.msg import Transition
        from lifecycle_msgs.srv import ChangeState, GetState

        number = getattr(Transition, f"TRANSITION_{transition.upper()}")
        request = ChangeState.Request(transition=Transition(id=number))
        if transition not in STATES:
            return bool(self.call(ChangeState, f"{node}/change_state", request, timeout).success)
        before, behind = STATES[transition]
        until = time.monotonic() + timeout * wait.patience
        for asked in itertools.count():
            try:
                answer = self.call(ChangeState, f"{node}/change_state", request, QUERY_S)
                if answer.success or not asked:
                    return bool(answer.success)
                # refused perhaps because the request before it was late and not lost
                return self.call(GetState, f"{node}/get_state").current_state.label == behind
            except AssertionError:
                label = ""
            while label not in (before, behind):  # "configuring", for as long as it takes
                assert time.monotonic() < until, f"{node} is {label}, was to {transition}"
                label = self.call(GetState, f"{node}/get_state").current_state.label
            if label == behind:
                return True
        raise AssertionError

    def bring_up(self, node: str, timeout: float = 60.0) -> None:
        """Configure and activate a lifecycle node; fails the test if it refuses."""
        assert self.change_state(node, "configure", timeout), f"{node} refused to configure"
        assert self.change_state(node, "activate", timeout), f"{node} refused to activate"

    def set_parameter(self, node: str, name: str, value: Any) -> tuple[bool, str]:
        """(accepted, reason)."""
        from rcl_interfaces.srv import SetParameters
        from rclpy.parameter import Parameter

        request = SetParameters.Request(
            parameters=[Parameter(name, value=value).to_parameter_msg()]
        )
        result = self.call(SetParameters, f"{node}/set_parameters", request).results[0]
        return bool(result.successful), str(result.reason)

    def _spin(self) -> None:
        while not self._stop.is_set():
            try:
                self._executor.spin_once(timeout_sec=0.05)
            except ExternalShutdownException:
                return
