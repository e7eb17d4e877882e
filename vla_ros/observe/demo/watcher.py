"""A node that follows one episode from outside and measures it, for `vla-ros demo`.

It writes down what it receives and judges afterwards, by the stamps: topics overtake each
other, and on a busy machine the end of an episode may be read before its commands. The
figures begin with the first action of the episode and end with the episode.

Callbacks run in a thread of their own, see :mod:`vla_ros.observe.listener`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rclpy.serialization import deserialize_message
from rclpy.subscription import MessageInfo
from sensor_msgs.msg import Image

from vla_ros.monitoring import CommandSeen, StatusSeen
from vla_ros.msg import ActionCommand, EpisodeStatus, PolicyStatus
from vla_ros.nodes.common import qos
from vla_ros.nodes.common.convert import image_of, stamp_of
from vla_ros.nodes.monitor import convert
from vla_ros.observe.demo.log import Episode, EpisodeLog, Measured
from vla_ros.observe.film import Recorder
from vla_ros.observe.listener import Listener, deep
from vla_ros.timing import MS, SECOND, moment

MAX_PIXELS = 1920 * 1200
_RATE_OVER = 40  # commands


@dataclass(frozen=True, slots=True)
class Glance:
    """How things stand, for a line of progress."""

    episode: Episode | None
    status: StatusSeen | None
    age_ms: float  # observation age of the newest command when it was published
    rate_hz: float  # of the newest commands


class Watcher(Listener):
    """Joins the graph of ``domain``; use it with `with`."""

    def __init__(self, domain: int, lockstep: bool, recorder: Recorder | None = None) -> None:
        super().__init__("demo", domain, lockstep)
        self._log = EpisodeLog(lockstep)
        self._recent: deque[tuple[CommandSeen, int]] = deque(maxlen=_RATE_OVER)
        self._recorder = recorder
        self.listen(Image, "image", self._on_image, deep(qos.IMAGE_SUB, 10), raw=True)
        self.listen(ActionCommand, "policy/action", self._on_command, deep(qos.ACTION, 1000))
        self.listen(PolicyStatus, "policy/status", self._on_status, deep(qos.LATCHED, 100))
        self.listen(EpisodeStatus, "bridge/episode", self._on_episode, deep(qos.LATCHED, 100))
        self.start()

    @property
    def ended(self) -> bool:
        """The episode has come to its end. What led there may still be on its way."""
        with self.bell:
            return self._log.episode is not None and bool(self._log.episode.ended)

    def glance(self) -> Glance:
        """Of this instant."""
        with self.bell:
            episode, status = self._log.episode, self._log.status
            recent = list(self._recent)
        age_ms = rate_hz = 0.0
        if recent and recent[-1][0].observed_ns:
            age_ms = (recent[-1][0].published_ns - recent[-1][0].observed_ns) / MS
        if len(recent) > 1 and recent[-1][1] > recent[0][1]:
            rate_hz = (len(recent) - 1) * SECOND / (recent[-1][1] - recent[0][1])
        return Glance(episode, status, age_ms, rate_hz)

    def measure(self) -> Measured:
        """The episode's figures; of the part so far where it has not ended."""
        topic = self.node.resolve_topic_name("policy/action")
        listed = self.node.get_publishers_info_by_topic(topic)
        publishers = tuple(convert.publisher_seen(info) for info in listed)
        with self.bell:
            return self._log.measure(publishers, moment(self.clock))

    def _on_episode(self, message: EpisodeStatus) -> None:
        with self.bell:
            before = self._log.episode
            self._log.add_episode(episode_of(message), moment(self.clock))
            if before is not None and before.number != message.episode and self._recorder:
                self._recorder.clear()

    def _on_status(self, message: PolicyStatus) -> None:
        with self.bell:
            self._log.add_status(convert.status_seen(message), moment(self.clock))

    def _on_command(self, message: ActionCommand, info: MessageInfo) -> None:
        gid = info.get("publisher_gid")
        seen = convert.command_seen(message, convert.gid_of(gid["data"]) if gid else b"")
        arrival = self.clock.arrival(info)
        with self.bell:
            self._log.add_command(seen, arrival)
            self._recent.append((seen, arrival.steady_ns))

    def _on_image(self, raw: bytes, info: MessageInfo) -> None:
        stamp = convert.header_stamp(raw)
        with self.bell:
            self._log.add_frame(stamp, self.clock.arrival(info))
            episode = self._log.episode
        going_on = episode is not None and not episode.ended
        if self._recorder is not None and going_on and self._recorder.wants():
            self._recorder.add(stamp, image_of(deserialize_message(raw, Image), MAX_PIXELS))


def episode_of(message: EpisodeStatus) -> Episode:
    """What the message says."""
    return Episode(
        number=message.episode,
        stamp_ns=stamp_of(message.header.stamp),
        running=message.state == EpisodeStatus.STATE_RUNNING,
        ended={
            EpisodeStatus.STATE_SUCCESS: "success",
            EpisodeStatus.STATE_FAILURE: "failure",
        }.get(message.state, ""),
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
