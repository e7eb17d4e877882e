"""Node that follows one episode from outside and measures it, for `vla-ros demo`.

It keeps what it receives and judges afterwards, by the stamps: topics overtake each other, and on a
busy machine the end of an episode may be read before its commands. The figures begin with the first
action of the episode and end with the episode.

Callbacks run in a thread of their own, see :mod:`vla_ros.ros.listeners.listener`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from vla_ros.core.clock import MS, SECOND, Moment, moment
from vla_ros.core.types import Inference
from vla_ros.msg import ActionCommand
from vla_ros.ros.listeners.demo_log import EpisodeChange, EpisodeFigures, EpisodeLog, Film
from vla_ros.ros.listeners.listener import EpisodeWatcher, Keep
from vla_ros.ros.nodes.monitor import node as convert
from vla_ros.runtime.monitor.seen import CommandSeen, StatusSeen

if TYPE_CHECKING:
    from rclpy.subscription import MessageInfo  # Jazzy and Humble lack it

_RATE_OVER = 40  # commands


@dataclass(frozen=True, slots=True)
class DemoProgress:
    """Figures for a line of progress. None: there was no command to measure."""

    episode: EpisodeChange | None
    status: StatusSeen | None
    age_ms: float | None  # observation age of the newest command when it was published
    rate_hz: float | None  # of the newest commands


class DemoWatcher(EpisodeWatcher):
    """Follower of one episode in the graph of ``domain``; use it with `with`."""

    def __init__(self, domain: int, lockstep: bool, film: Film | None = None) -> None:
        super().__init__("demo", domain, lockstep)
        self._log = EpisodeLog(lockstep)
        self._recent: deque[tuple[CommandSeen, int]] = deque(maxlen=_RATE_OVER)
        self._film = film
        self.start()

    @property
    def ended(self) -> bool:
        """True once the episode has ended. Messages that led there may still be on their way."""
        with self.bell:
            return self._log.episode is not None and bool(self._log.episode.ended)

    def counted(self) -> bool:
        """True once the policy has reported its counts since the end. Call it with the bell."""
        return self._log.counted

    def glance(self) -> DemoProgress:
        """Progress at this instant."""
        with self.bell:
            episode, status = self._log.episode, self.status
            recent = list(self._recent)
        age_ms = rate_hz = None
        if recent and recent[-1][0].observed_ns:
            age_ms = (recent[-1][0].published_ns - recent[-1][0].observed_ns) / MS
        if len(recent) > 1 and recent[-1][1] > recent[0][1]:
            rate_hz = (len(recent) - 1) * SECOND / (recent[-1][1] - recent[0][1])
        return DemoProgress(episode, status, age_ms, rate_hz)

    def measure(self) -> EpisodeFigures:
        """Figures of the episode, or of its part so far."""
        topic = self.node.resolve_topic_name("policy/action")
        listed = self.node.get_publishers_info_by_topic(topic)
        publishers = tuple(convert.publisher_seen(info) for info in listed)
        with self.bell:
            return self._log.measure(publishers, moment(self.clock))

    def on_episode(self, episode: EpisodeChange, arrival: Moment) -> None:
        before = self._log.episode
        self._log.add_episode(episode, arrival)
        if before is not None and before.number != episode.number and self._film is not None:
            self._film.clear()

    def on_status(self, status: StatusSeen, arrival: Moment) -> None:
        self._log.add_status(status, arrival)

    def on_command(self, message: ActionCommand, info: MessageInfo, arrival: Moment) -> None:
        gid = info.get("publisher_gid")
        seen = convert.command_seen(message, convert.gid_of(gid["data"]) if gid else b"")
        self._log.add_command(seen, arrival)
        self._recent.append((seen, arrival.steady_ns))

    def on_inference(self, inference: Inference) -> None:
        self._log.add_inference(inference)

    def on_image(self, stamp_ns: int, arrival: Moment) -> Keep | None:
        self._log.add_frame(stamp_ns, arrival)
        film, episode = self._film, self._log.episode
        if film is None or episode is None or episode.ended or not film.wants():
            return None
        return partial(film.add, stamp_ns)
