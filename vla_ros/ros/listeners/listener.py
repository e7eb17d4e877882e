"""A node that follows a graph from outside, in a ROS context and a thread of its own.

Callbacks run in that thread; what they share with the caller is under :attr:`GraphListener.bell`.
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
from vla_ros.ros.common.convert import image_of, stamp_of
from vla_ros.ros.common.listening import ArrivalClock, listen
from vla_ros.ros.common.peer import Peer
from vla_ros.ros.common.serialized import header_stamp, read_image
from vla_ros.ros.listeners.demo_log import EpisodeChange
from vla_ros.ros.nodes.monitor.node import status_seen
from vla_ros.runtime.monitor.seen import StatusSeen

if TYPE_CHECKING:
    from rclpy.subscription import MessageInfo  # Jazzy and Humble lack it


class GraphListener(Peer):
    """Joins the graph of ``domain``; use it with `with`.

    A subclass makes its subscriptions with :meth:`listen` and then calls :meth:`start`.
    ``simulated``: the stamps of the graph are simulated time.
    """

    def __init__(self, name: str, domain: int, simulated: bool) -> None:
        super().__init__(name, domain)
        self._subscriptions: list[Subscription] = []
        self.clock = ArrivalClock(self.node, simulated)

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

    def hear(
        self, kind: Any, topic: str, callback: Callable[..., None], profile: QoSProfile
    ) -> None:
        """As :meth:`listen`; the callback is given the bytes as they are."""
        found = self.node.create_subscription(kind, topic, callback, profile, raw=True)
        self._subscriptions.append(found)

    def connected(self) -> bool:
        """Every topic that it follows has its publisher, so that nothing will be missed."""
        return not self.missing()

    def missing(self) -> str:
        """The topics without a publisher."""
        topics = self._subscriptions
        return ", ".join(t.topic_name for t in topics if t.get_publisher_count() == 0)


def deep(profile: QoSProfile, depth: int) -> QoSProfile:
    """The same profile with a longer queue, for a reader that must miss nothing."""
    return QoSProfile(
        history=profile.history,
        depth=depth,
        reliability=profile.reliability,
        durability=profile.durability,
    )


# Messages of an episode as its frozen views.


_ENDED = {EpisodeStatus.STATE_SUCCESS: "success", EpisodeStatus.STATE_FAILURE: "failure"}


def episode_of(message: EpisodeStatus) -> EpisodeChange:
    """What the bridge says of its episode."""
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
        control_rate_hz=message.control_rate_hz,
        achieved_rate_hz=message.achieved_rate_hz,
        applied=message.actions_applied,
    )


def inference_of(message: ActionChunk) -> Inference:
    """What the policy said of one frame; of the time it took only the sum is known."""
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


# Follows the episodes of a bridge and the policy that acts in them.
#
# What a subclass does with what is heard happens in the thread of the callbacks, under the bell.


MAX_PIXELS = 1920 * 1200  # of an image that is kept

Keep = Callable[[core.Image], None]


class EpisodeWatcher(GraphListener, ABC):
    """A subclass may listen to more and then calls :meth:`start`.

    ``status`` is the policy's newest; None: nothing was heard of it.
    """

    def __init__(self, name: str, domain: int, simulated: bool) -> None:
        super().__init__(name, domain, simulated)
        self.status: StatusSeen | None = None
        self.hear(Image, "image", listener(self._on_image), deep(qos.IMAGE_SUB, 10))
        deeper = deep(qos.ACTION, 1000)
        self.listen(ActionCommand, "policy/action", self._on_command, deeper, with_info=True)
        self.listen(ActionChunk, "policy/action_chunk", self._on_chunk, deep(qos.REPORT, 1000))
        self.listen(PolicyStatus, "policy/status", self._on_status, deep(qos.LATCHED, 100))
        self.listen(EpisodeStatus, "bridge/episode", self._on_episode, deep(qos.LATCHED, 100))

    # What a subclass does

    @abstractmethod
    def hear_episode(self, episode: EpisodeChange, arrival: Moment) -> None:
        """The bridge says how its episode stands."""

    @abstractmethod
    def hear_status(self, status: StatusSeen, arrival: Moment) -> None:
        """The policy says how it stands; :attr:`status` is this already."""

    @abstractmethod
    def hear_command(self, message: ActionCommand, info: MessageInfo, arrival: Moment) -> None:
        """A command was published."""

    @abstractmethod
    def hear_inference(self, inference: core.Inference) -> None:
        """The policy answered a frame."""

    @abstractmethod
    def hear_image(self, stamp_ns: int, arrival: Moment) -> Keep | None:
        """A camera image. Its pixels are decoded only for a function that wants them, which is
        called without the bell."""

    # What is heard

    def _on_episode(self, message: EpisodeStatus) -> None:
        with self.bell:
            self.hear_episode(episode_of(message), moment(self.clock))
            self.bell.notify_all()

    def _on_status(self, message: PolicyStatus) -> None:
        with self.bell:
            self.status = status_seen(message)
            self.hear_status(self.status, moment(self.clock))
            self.bell.notify_all()

    def _on_command(self, message: ActionCommand, info: MessageInfo) -> None:
        arrival = self.clock.arrival(info)
        with self.bell:
            self.hear_command(message, info, arrival)
            self.bell.notify_all()

    def _on_chunk(self, message: ActionChunk) -> None:
        inference = inference_of(message)
        with self.bell:
            self.hear_inference(inference)
            self.bell.notify_all()

    def _on_image(self, raw: bytes, info: MessageInfo) -> None:
        stamp = header_stamp(raw)
        with self.bell:
            keep = self.hear_image(stamp, self.clock.arrival(info))
        if keep is not None:
            keep(image_of(read_image(raw), MAX_PIXELS))
