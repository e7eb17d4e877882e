"""Follows the episodes of a bridge and the policy that acts in them.

Callbacks run in a thread of their own, see :mod:`vla_ros.observe.listener`; what a subclass
does with what is heard happens there, under the bell.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from sensor_msgs.msg import Image

from vla_ros import core
from vla_ros.monitoring import StatusSeen
from vla_ros.msg import ActionChunk, ActionCommand, EpisodeStatus, PolicyStatus
from vla_ros.nodes.common import qos
from vla_ros.nodes.common.compat import listener
from vla_ros.nodes.common.convert import image_of
from vla_ros.nodes.common.serialized import header_stamp, read_image
from vla_ros.nodes.monitor.convert import status_seen
from vla_ros.observe.convert import episode_of, inference_of
from vla_ros.observe.episode import Episode
from vla_ros.observe.listener import Listener, deep
from vla_ros.timing import Moment, moment

if TYPE_CHECKING:
    from rclpy.subscription import MessageInfo  # Jazzy and Humble lack it

MAX_PIXELS = 1920 * 1200  # of a picture that is kept

Keep = Callable[[core.Image], None]


class EpisodeWatcher(Listener, ABC):
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

    # ------------------------------------------------------------------ what a subclass does

    @abstractmethod
    def hear_episode(self, episode: Episode, arrival: Moment) -> None:
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

    # ------------------------------------------------------------------ what is heard

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
