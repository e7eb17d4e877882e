"""Node that follows a graph from outside, in a ROS context and a thread of its own.

Callbacks run in that thread; data that they share with the caller is under the bell.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription
from sensor_msgs.msg import Image

from vla_ros.core import types as core
from vla_ros.core.clock import SECOND, Moment, moment
from vla_ros.core.types import INFERENCE_STAGES, Inference, Timeline
from vla_ros.msg import ActionChunk, ActionCommand, EpisodeStatus, PolicyStatus
from vla_ros.ros.common import qos
from vla_ros.ros.common.compat import listener
from vla_ros.ros.common.convert import stamp_of
from vla_ros.ros.common.images import pixels_of
from vla_ros.ros.common.listening import ArrivalClock, listen
from vla_ros.ros.common.peer import Peer
from vla_ros.ros.common.serialized import header_stamp, read_image
from vla_ros.ros.listeners.demo_log import EpisodeChange
from vla_ros.ros.nodes.monitor.node import status_seen
from vla_ros.runtime.monitor.seen import StatusSeen

if TYPE_CHECKING:
    from rclpy.subscription import MessageInfo  # Jazzy and Humble lack it


# Messages of an episode as frozen types.


_ENDED = {EpisodeStatus.STATE_SUCCESS: "success", EpisodeStatus.STATE_FAILURE: "failure"}


def episode_of(message: EpisodeStatus) -> EpisodeChange:
    """Change of the bridge's episode."""
    return EpisodeChange(
        number=message.episode,
        stamp_ns=stamp_of(message.header.stamp),
        running=message.state == EpisodeStatus.STATE_RUNNING,
        ended=_ENDED.get(message.state, ""),
        reason=message.reason,
        task=message.task,
        instruction=message.instruction,
        initial_state=message.initial_state,
        step=message.step,
        max_steps=message.max_steps,
        control_steps=message.control_steps,
        action_rate_hz=message.action_rate_hz,
        control_rate_hz=message.control_rate_hz,
        achieved_rate_hz=message.achieved_rate_hz,
        applied=message.actions_applied,
    )


def inference_of(message: ActionChunk) -> Inference:
    """Inference of one frame; of its durations only the sum is known."""
    length = message.length or 1
    spent_s = message.inference_s if math.isfinite(message.inference_s) else 0.0
    return Inference(
        stamp_ns=stamp_of(message.observation_stamp),
        actions=np.asarray(message.actions, np.float64).reshape(length, -1),
        timeline=Timeline(0).mark(INFERENCE_STAGES[-1], round(spent_s * SECOND)),
        tokens=tuple(map(int, message.tokens)),
        target_passes=message.target_passes,
        draft_passes=message.draft_passes,
        drafted=tuple(map(int, message.drafted)),
        accepted=tuple(map(int, message.accepted)),
        conditioning_delay=message.conditioning_delay,
    )


MAX_PIXELS = 1920 * 1200  # of an image that is kept

Keep = Callable[[core.Image], None]


class EpisodeWatcher(Peer, ABC):
    """Follower of a bridge's episodes and of the policy that acts in them.

    A subclass may listen to more and then calls :meth:`start`; its ``on_`` methods are called in
    the thread of the callbacks, under the bell. ``simulated``: the stamps of the graph are
    simulated time. ``status`` is the policy's newest, or None.
    """

    def __init__(self, name: str, domain: int, simulated: bool) -> None:
        super().__init__(name, domain)
        self._subscriptions: list[Subscription] = []
        self.clock = ArrivalClock(self.node, simulated)
        self.status: StatusSeen | None = None
        deep = qos.copy  # queues in which no message is lost
        self.listen_raw(Image, "image", listener(self._on_image), deep(qos.IMAGE_SUB, 10))
        deeper = deep(qos.ACTION, 1000)
        self.listen(ActionCommand, "policy/action", self._on_command, deeper, with_info=True)
        self.listen(ActionChunk, "policy/action_chunk", self._on_chunk, deep(qos.REPORT, 1000))
        self.listen(PolicyStatus, "policy/status", self._on_status, deep(qos.LATCHED, 100))
        self.listen(EpisodeStatus, "bridge/episode", self._on_episode, deep(qos.LATCHED, 100))

    def listen(
        self,
        kind: Any,
        topic: str,
        callback: Callable[..., None],
        profile: QoSProfile,
        with_info: bool = False,
    ) -> None:
        """Subscribe, with a topic that :meth:`connected` counts."""
        found = listen(self.node, kind, topic, callback, profile, with_info=with_info)
        self._subscriptions.append(found)

    def listen_raw(
        self, kind: Any, topic: str, callback: Callable[..., None], profile: QoSProfile
    ) -> None:
        """Subscribe to serialized messages, with a topic that :meth:`connected` counts."""
        found = self.node.create_subscription(kind, topic, callback, profile, raw=True)
        self._subscriptions.append(found)

    def connected(self) -> bool:
        """True once every topic that it follows has its publisher, so that nothing is missed."""
        return not self.missing()

    def missing(self) -> str:
        """Names of the topics without a publisher."""
        topics = self._subscriptions
        return ", ".join(t.topic_name for t in topics if t.get_publisher_count() == 0)

    @abstractmethod
    def on_episode(self, episode: EpisodeChange, arrival: Moment) -> None:
        """Take a status of the bridge's episode."""

    @abstractmethod
    def on_status(self, status: StatusSeen, arrival: Moment) -> None:
        """Take a status of the policy; :attr:`status` is this already."""

    @abstractmethod
    def on_command(self, message: ActionCommand, info: MessageInfo, arrival: Moment) -> None:
        """Take a command."""

    @abstractmethod
    def on_inference(self, inference: core.Inference) -> None:
        """Take the answer to a frame."""

    @abstractmethod
    def on_image(self, stamp_ns: int, arrival: Moment) -> Keep | None:
        """Take the stamp of an image. Its pixels are decoded only for a function that is returned,
        which is called without the bell."""

    def _on_episode(self, message: EpisodeStatus) -> None:
        with self.bell:
            self.on_episode(episode_of(message), moment(self.clock))
            self.bell.notify_all()

    def _on_status(self, message: PolicyStatus) -> None:
        with self.bell:
            self.status = status_seen(message)
            self.on_status(self.status, moment(self.clock))
            self.bell.notify_all()

    def _on_command(self, message: ActionCommand, info: MessageInfo) -> None:
        arrival = self.clock.arrival(info)
        with self.bell:
            self.on_command(message, info, arrival)
            self.bell.notify_all()

    def _on_chunk(self, message: ActionChunk) -> None:
        inference = inference_of(message)
        with self.bell:
            self.on_inference(inference)
            self.bell.notify_all()

    def _on_image(self, raw: bytes, info: MessageInfo) -> None:
        stamp = header_stamp(raw)
        with self.bell:
            keep = self.on_image(stamp, self.clock.arrival(info))
        if keep is not None:
            keep(pixels_of(read_image(raw), MAX_PIXELS))
