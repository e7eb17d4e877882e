"""Survey of a running graph for `vla-ros setup`: a node that listens for seconds and goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from rcl_interfaces.srv import GetParameters
from rclpy.action import get_action_names_and_types
from rclpy.qos import ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image, JointState

from vla_ros.core.clock import SECOND
from vla_ros.core.pixels import BadMessage, decompressed
from vla_ros.core.text import printable
from vla_ros.ros.common.images import pixels_of
from vla_ros.ros.common.listening import listen
from vla_ros.ros.common.peer import Peer, Topics, class_of
from vla_ros.ros.common.qos import LATCHED
from vla_ros.ros.common.seen_graph import (
    GRIPPERS,
    TAKEN,
    SeenCamera,
    SeenController,
    SeenGraph,
    SeenJoints,
)
from vla_ros.ros.common.serialized import read_compressed, read_image, read_text

_IMAGE, _COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
_JOINTS, _TEXT = "sensor_msgs/msg/JointState", "std_msgs/msg/String"
_MOST_TOPICS = 32  # that are listened to
_MOST_PIXELS = 2_304_000
_LOOK_S = 0.2
_ASK_S = 1.0  # a controller for its joints
#: Nodes of ours that command or only watch: their topics are no robot's.
_OURS = {"policy", "monitor", "recorder", "replay", "view", "rerun", "vla_ros_setup"}
#: Words in topics of joint states that are commands, where somebody publishes on them already.
_COMMANDS = ("command", "cmd", "goal", "target")


@dataclass(slots=True)
class _Heard:
    """Messages of one topic: how many, first and last receipt (monotonic, s), the last one."""

    kind: str
    count: int = 0
    first: float = 0.0
    last: float = 0.0
    received_ns: int = 0
    raw: bytes = b""
    names: dict[str, None] = field(default_factory=dict)

    def take(self) -> None:
        now = time.monotonic()
        self.first = self.first if self.count else now
        self.count, self.last, self.received_ns = self.count + 1, now, time.time_ns()

    @property
    def rate_hz(self) -> float:
        span = self.last - self.first
        return (self.count - 1) / span if self.count > 1 and span > 0 else 0.0


class Survey(Peer):
    """The survey of the graph of ``domain``: :meth:`look`, once."""

    def __init__(self, domain: int) -> None:
        super().__init__("vla_ros_setup", domain)
        self._topics = Topics(self.node)
        self._heard: dict[str, _Heard] = {}
        self._description = ""
        self.start()

    def look(self, seconds: float) -> SeenGraph:
        """The graph, after listening for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            new, _ = self._topics.changes()
            for topic, kind in new.items():
                self._listen(topic, kind)
            time.sleep(_LOOK_S)
        with self.bell:
            heard = dict(self._heard)
        return SeenGraph(
            cameras=tuple(self._cameras(heard)),
            joints=tuple(self._joints(heard)),
            controllers=(*self._controllers(heard), *self._grippers()),
            description=self._description,
            policies=tuple(
                sorted({n for n in self._publishers("/policy/action", ours=True) if "policy" in n})
            ),
        )

    def _listen(self, topic: str, kind: str) -> None:
        if len(self._heard) >= _MOST_TOPICS or topic in self._heard:
            return
        if kind == _TEXT and topic.endswith("robot_description"):
            self.node.create_subscription(class_of(kind), topic, self._describe, LATCHED, raw=True)
        elif kind in (_IMAGE, _COMPRESSED, _JOINTS) and self._publishers(topic):
            heard = self._heard[topic] = _Heard(kind)
            profile = self._topics.profile(topic)
            if kind == _JOINTS:
                listen(self.node, JointState, topic, self._joints_of(heard), profile,
                       refuse=lambda _: None)  # fmt: skip
            else:
                self.node.create_subscription(
                    Image if kind == _IMAGE else CompressedImage, topic, self._image_of(heard),
                    profile, raw=True,
                )  # fmt: skip

    def _describe(self, raw: bytes) -> None:
        with self.bell:
            self._description = read_text(raw)

    def _image_of(self, heard: _Heard) -> Callable[[bytes], None]:
        def take(raw: bytes) -> None:
            with self.bell:
                heard.take()
                heard.raw = raw

        return take

    def _joints_of(self, heard: _Heard) -> Callable[[JointState], None]:
        def take(message: JointState) -> None:
            with self.bell:
                heard.take()
                heard.names |= dict.fromkeys(map(printable, list(message.name)[:64]))

        return take

    # What was heard, and who is there.

    def _publishers(self, topic: str, ours: bool = False) -> tuple[str, ...]:
        """Names of the nodes that publish it; ``ours`` are none of a robot."""
        return _names(self.node.get_publishers_info_by_topic(topic), ours)

    def _cameras(self, heard: dict[str, _Heard]) -> Iterable[SeenCamera]:
        for topic, one in sorted(heard.items()):
            if one.kind not in (_IMAGE, _COMPRESSED):
                continue
            raw = one.kind == _IMAGE
            if not raw and not topic.endswith("/compressed"):
                continue  # the node finds compressed images there alone
            base = topic if raw else topic.removesuffix("/compressed")
            if not raw and base in heard:
                continue  # the raw ones are beside them
            offered = self.node.get_publishers_info_by_topic(topic)
            reliable = all(o.qos_profile.reliability == ReliabilityPolicy.RELIABLE for o in offered)
            yield _camera(one, base, raw, bool(offered) and reliable, self._publishers(topic))

    def _joints(self, heard: dict[str, _Heard]) -> Iterable[SeenJoints]:
        for topic, one in sorted(heard.items()):
            if one.kind == _JOINTS and one.names and not _commands(topic):
                yield SeenJoints(topic, tuple(one.names), one.rate_hz, self._publishers(topic))

    def _controllers(self, heard: dict[str, _Heard]) -> Iterable[SeenController]:
        for topic, kinds in sorted(self.node.get_topic_names_and_types()):
            for kind in kinds:
                readers = _names(self.node.get_subscriptions_info_by_topic(topic))
                if kind not in TAKEN or not readers:
                    continue
                if kind == _JOINTS and self._publishers(topic) and not _commands(topic):
                    continue  # joint states, read by a robot_state_publisher
                joints = self._joints_of_node(readers[0])
                yield SeenController(topic, kind, readers, joints)

    def _joints_of_node(self, name: str) -> tuple[str, ...]:
        """Joints of a controller of ros2_control, which has them as a parameter."""
        client = self.node.create_client(GetParameters, f"{name}/get_parameters")
        try:
            if not self.wait(client.service_is_ready, _LOOK_S):
                return ()
            request = GetParameters.Request(names=["joints"])
            answer = self.call(client, request, _ASK_S)
        except TimeoutError:
            return ()
        finally:
            self.node.destroy_client(client)
        return tuple(map(printable, answer.values[0].string_array_value)) if answer.values else ()

    def _grippers(self) -> Iterable[SeenController]:
        for name, kinds in sorted(get_action_names_and_types(self.node)):
            servers = self._publishers(f"{name}/_action/status")
            if servers and kinds and kinds[0] in GRIPPERS:
                yield SeenController(name, kinds[0], servers, self._joints_of_node(servers[0]))


def _camera(
    one: _Heard, base: str, raw: bool, reliable: bool, publishers: tuple[str, ...]
) -> SeenCamera:
    found = SeenCamera(
        base, "raw" if raw else "compressed", rate_hz=one.rate_hz, reliable=reliable,
        publishers=publishers,
    )  # fmt: skip
    if not one.raw:
        return found
    message: Any = None
    try:
        message = read_image(one.raw) if raw else read_compressed(one.raw)
        image = pixels_of(message, _MOST_PIXELS) if raw else decompressed(message, _MOST_PIXELS)
        height, width = image.shape[:2]
    except BadMessage:
        image, height, width = None, getattr(message, "height", 0), getattr(message, "width", 0)
    encoding = getattr(message, "encoding", "") or getattr(message, "format", "")
    return SeenCamera(
        base, found.transport, width, height, printable(encoding, 40), one.rate_hz, reliable,
        publishers, (one.received_ns - getattr(message, "stamp_ns", 0)) / SECOND, image,
    )  # fmt: skip


def _names(infos: Iterable[Any], ours: bool = False) -> tuple[str, ...]:
    found = {
        f"{one.node_namespace.rstrip('/')}/{one.node_name}"
        for one in infos
        if ours or one.node_name not in _OURS
    }
    return tuple(sorted(printable(name, 100) for name in found))


def _commands(topic: str) -> bool:
    return any(word in topic.lower() for word in _COMMANDS)
