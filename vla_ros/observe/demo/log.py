"""What was received during an episode, and its figures. Free of ROS; not thread-safe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from vla_ros.core import CommandKind
from vla_ros.monitoring import (
    CommandSeen,
    GraphReport,
    Monitor,
    MonitorConfig,
    PublisherSeen,
    StatusSeen,
)
from vla_ros.timing import SECOND, ManualClock, Moment

LONGEST_EPISODE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Episode:
    """One EpisodeStatus. ``ended``: "success", "failure", or empty while it goes on.

    ``achieved_rate_hz``: control steps per second of wall time, to be ``control_rate_hz``.
    ``applied`` of the ``step`` steps executed a new action of the policy.
    """

    number: int
    stamp_ns: int
    running: bool
    ended: str
    reason: str
    task: str
    instruction: str
    initial_state: int
    step: int
    max_steps: int
    control_rate_hz: float = 0.0
    achieved_rate_hz: float = 0.0
    applied: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """One episode, from its first action to its end (or to now, while it goes on).

    ``wall_s`` is its length by the steady clock, ``worker_restarts`` those within it.
    """

    episode: Episode | None
    status: StatusSeen | None
    report: GraphReport
    wall_s: float = 0.0
    worker_restarts: int = 0


class EpisodeLog:
    """Add what is received in any order across topics, then :meth:`measure`."""

    def __init__(self, lockstep: bool) -> None:
        self._config = MonitorConfig(window_s=LONGEST_EPISODE_S, sim_time=lockstep)
        self._commands: list[tuple[CommandSeen, Moment]] = []
        self._frames: list[tuple[int, Moment]] = []
        self._statuses: list[tuple[StatusSeen, Moment]] = []
        self._begin_ns = 0  # stamp from which the newest episode runs
        self._begun = False
        self._end: Moment | None = None
        self.episode: Episode | None = None

    @property
    def status(self) -> StatusSeen | None:
        """The policy's newest."""
        return self._statuses[-1][0] if self._statuses else None

    def add_episode(self, episode: Episode, arrival: Moment) -> None:
        """A status of the bridge; another number begins another episode."""
        if self.episode is None or self.episode.number != episode.number:
            self._begin_ns, self._begun, self._end = 0, False, None
        if episode.running and not self._begun:
            self._begin_ns, self._begun = episode.stamp_ns, True
        if episode.ended and self._end is None:
            self._end = Moment(episode.stamp_ns, arrival.steady_ns)
        self.episode = episode

    def add_status(self, status: StatusSeen, arrival: Moment) -> None:
        """The policy's. That it rests once the episode is over is no part of the episode."""
        if status.between_episodes:
            return
        self._statuses.append((status, arrival))

    def add_command(self, command: CommandSeen, arrival: Moment) -> None:
        self._commands.append((command, arrival))

    def add_frame(self, stamp_ns: int, arrival: Moment) -> None:
        """One camera image, by its stamp."""
        self._frames.append((stamp_ns, arrival))

    def measure(self, publishers: tuple[PublisherSeen, ...], now: Moment) -> Measured:
        """Judge what belongs to the episode. ``publishers``: writers of the action topic."""
        end = self._end or now
        commands = self._commands_until(end)
        if not commands:
            return Measured(self.episode, self.status, GraphReport())
        begin = commands[0][1].steady_ns
        last = max(commands[-1][1].steady_ns, end.steady_ns)
        clock = ManualClock(steady=begin, now=end.now_ns)
        monitor = Monitor(self._config, clock)
        monitor.publishers(publishers)
        before = [s for s in self._statuses if s[1].steady_ns <= begin] or self._statuses[:1]
        during = [s for s in self._statuses if begin < s[1].steady_ns <= last]
        frames = [f for f in self._frames if begin <= f[1].steady_ns <= last]
        events: list[tuple[int, Callable[[], None]]] = []
        events += [(a.steady_ns, partial(monitor.status, s, a)) for s, a in before[-1:] + during]
        events += [(a.steady_ns, partial(monitor.command, c, a)) for c, a in commands]
        events += [(a.steady_ns, partial(monitor.camera, f, a)) for f, a in frames]
        for _, take in sorted(events, key=lambda event: event[0]):
            take()
        clock.steady = last
        restarts = [status.worker_restarts for status, _ in before[-1:] + during] or [0]
        return Measured(
            self.episode,
            self.status,
            monitor.judge().report,
            (last - begin) / SECOND,
            restarts[-1] - restarts[0],
        )

    def _commands_until(self, end: Moment) -> list[tuple[CommandSeen, Moment]]:
        """The episode's commands, from its first action on, by their stamps."""
        within = [c for c in self._commands if self._begin_ns <= c[0].published_ns <= end.now_ns]
        kinds = [command.kind for command, _ in within]
        if not self._begun or CommandKind.POLICY not in kinds:
            return []
        return within[kinds.index(CommandKind.POLICY) :]
