"""A node beside a running graph, in a ROS context and a thread of its own.

Callbacks run in that thread; what they share with the caller is under :attr:`Peer.bell`.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from rclpy.client import Client
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image

from vla_ros.core.video import VIDEOS
from vla_ros.ros.common.ending import step
from vla_ros.ros.common.spin import leave, take_down

P = TypeVar("P", bound="Peer")

_LEAVE_S = 5.0  # for a callback that runs while the node is to leave
_POLL_S = 0.1  # how often a wait looks for other reasons to end


class Peer:
    """Joins the graph of ``domain``; use it with `with`.

    A subclass makes its publishers and subscriptions on :attr:`node` and then calls
    :meth:`start`.
    """

    def __init__(self, name: str, domain: int) -> None:
        self.bell = threading.Condition()
        self._context = Context()
        with step(f"{name}: joining the ROS graph"):
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

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the graph."""
        self._over.set()
        with step(f"{self.node.get_name()}: leaving the ROS graph"):
            left = self._thread.ident is not None and leave(
                self.node, self._executor, self._thread, _LEAVE_S
            )
            if self._thread.ident is None:  # it never began
                take_down(self.node)
                left = True
        if not left:
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
                if self.bell.wait_for(true, min(_POLL_S, left)):
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


# For spectators of a whole graph: which topics come and go, and by which profile to subscribe.


_LIVE = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
_KEPT = QoSProfile(
    depth=10,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)


class Topics:
    """The topics of the graph, by one look after the other."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._known: dict[str, str] = {}

    def changes(self) -> tuple[dict[str, str], list[str]]:
        """Topics with their types that came since the last look, and those that went; a topic
        whose type has changed did both."""
        found = self._node.get_topic_names_and_types()
        there = {name: kinds[0] for name, kinds in found if kinds}
        gone = [name for name, kind in self._known.items() if there.get(name) != kind]
        new = {name: kind for name, kind in there.items() if self._known.get(name) != kind}
        self._known = there
        return new, gone

    def profile(self, topic: str) -> QoSProfile:
        """Profile that every publisher of the topic can serve, so that none waits for this reader;
        latched messages are asked for where all keep them."""
        offered = [one.qos_profile for one in self._node.get_publishers_info_by_topic(topic)]
        kept = DurabilityPolicy.TRANSIENT_LOCAL
        return _KEPT if offered and all(one.durability == kept for one in offered) else _LIVE


def class_of(kind: str) -> Any:
    """Message class of "sensor_msgs/msg/Image"; None where its package is not installed."""
    package, _, name = kind.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), name)
    except (ImportError, AttributeError):
        return None


# Where a camera's images are: raw, or compressed beside them as image_transport has it.


TRANSPORTS = ("raw", "compressed", *VIDEOS)


def image_topic(node: Node, base: str, transport: str) -> tuple[Any, str]:
    """Message type and topic of a camera.

    ``base:=X`` moves ``base/compressed`` to ``X/compressed`` too, as image_transport's own
    subscribers do; a remapping of ``base/compressed`` itself wins. ValueError: the package of its
    messages is not installed.
    """
    if transport == "raw":
        return Image, base
    kind = CompressedImage
    if transport in VIDEOS and (kind := class_of(VIDEOS[transport])) is None:
        package = VIDEOS[transport].partition("/")[0]
        raise ValueError(
            f"transport {transport} of {base} needs {package}, which is not installed here:"
            f" apt install ros-$ROS_DISTRO-{package.replace('_', '-')}"
        )
    name = f"{base}/{transport}"
    given = node.resolve_topic_name(name)
    if given != node.resolve_topic_name(name, only_expand=True):
        return kind, given
    return kind, f"{node.resolve_topic_name(base)}/{transport}"
