"""Messages that the monitor reads, and its reports: frozen views, free of ROS.

Stamps are nanoseconds of the ROS clock, steady times nanoseconds of the monotonic clock
(see :mod:`vla_ros.core.types`); durations are milliseconds, as in the messages they mirror.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from vla_ros.core.clock import SECOND, Distribution
from vla_ros.core.types import (
    EPISODE_OVER,
    INFERENCE_STAGES,
    SHADOW,
    STAGES,
    CommandKind,
    PolicyState,
)

NOTHING = Distribution()  # no samples


class Level(IntEnum):
    """Level of a diagnostic; the values are those of diagnostic_msgs/DiagnosticStatus."""

    OK = 0
    WARN = 1
    ERROR = 2
    STALE = 3  # nothing received: worse than a warning, not as bad as a known error


_SEVERITY = {Level.OK: 0, Level.WARN: 1, Level.STALE: 2, Level.ERROR: 3}


def worst(levels: Iterable[Level]) -> Level:
    """The most severe level; OK when there is none."""
    return max(levels, key=_SEVERITY.__getitem__, default=Level.OK)


@dataclass(frozen=True, slots=True)
class MonitorConfig:
    """Limits of the judgement. Raises ValueError with the reason for a value that cannot be.

    ``max_age_ms`` 0 means: take it from the policy's status. With ``sim_time`` the stamps are
    simulated time: clocks are shared by construction and are not compared with each other.
    """

    window_s: float = 10.0
    max_age_ms: float = 0.0
    camera_timeout_s: float = 1.0
    command_timeout_s: float = 1.0
    status_timeout_s: float = 3.0
    missed_fraction: float = 0.05
    drift_ms_per_min: float = 1.0
    sim_time: bool = False

    def __post_init__(self) -> None:
        for name in ("window_s", "camera_timeout_s", "command_timeout_s", "status_timeout_s"):
            value = getattr(self, name)
            if not 0.05 <= value <= 3600.0:
                raise ValueError(f"{name} must be 0.05 to 3600 s, not {value:g}")
        if not 0.0 <= self.max_age_ms <= 60_000.0:
            raise ValueError(
                "max_age_ms must be 0 (take it from the policy's status) to 60000, "
                f"not {self.max_age_ms:g}"
            )
        if not 0.0 <= self.missed_fraction <= 1.0:
            raise ValueError(f"missed_fraction must be 0 to 1, not {self.missed_fraction:g}")
        if not 0.0 < self.drift_ms_per_min <= 1000.0:
            raise ValueError(
                f"drift_ms_per_min must be above 0, at most 1000, not {self.drift_ms_per_min:g}"
            )


@dataclass(frozen=True, slots=True)
class StagesSeen:
    """Stage durations of one command in the order of STAGES, and the total, milliseconds."""

    durations_ms: tuple[float, ...] = (0.0,) * len(STAGES)
    total_ms: float = 0.0

    @property
    def inference_ms(self) -> float:
        """The model's part: preprocess + vision + prefill + decode."""
        named = zip(STAGES, self.durations_ms, strict=True)
        return sum(value for name, value in named if name in INFERENCE_STAGES)

    @property
    def sum_error_ms(self) -> float:
        """How far the stages are from adding up to the total."""
        return abs(sum(self.durations_ms) - self.total_ms)


@dataclass(frozen=True, slots=True)
class CommandSeen:
    """An ActionCommand. ``observed_ns`` 0: it rests on no observation; ``corrected_ns`` 0: no
    newer one corrected it.

    ``publisher`` is the GID of the writer it came from, empty where it is not known.
    """

    sequence: int
    kind: CommandKind
    published_ns: int
    observed_ns: int = 0
    chunk_index: int = 0
    stages: StagesSeen = StagesSeen()
    staleness_ms: float = 0.0
    corrected_ns: int = 0
    publisher: bytes = b""

    @property
    def action(self) -> tuple[int, int]:
        """Identity of the action that it makes a part of: all of its commands have the same."""
        return self.observed_ns, self.chunk_index


@dataclass(frozen=True, slots=True)
class StatusSeen:
    """A PolicyStatus, as far as the judgement needs it. ``action_rate_hz`` 0: it is the control
    rate."""

    state: PolicyState
    reason: str = ""
    policy: str = ""
    decoding: str = ""
    checkpoint: str = ""
    device: str = ""
    dtype: str = ""
    action_rate_hz: float = 0.0
    control_rate_hz: float = 20.0
    max_age_ms: float = 0.0
    pipeline_depth: int = 1
    worker_restarts: int = 0
    frames_dropped: int = 0
    last_drop: str = ""
    acceptance: tuple[float, ...] = ()
    epoch: int = 0
    actions_clamped: int = 0
    actions_blocked: int = 0
    last_block: str = ""
    graphs_captured: int = 0
    outputs: tuple[str, ...] = ()

    @property
    def period_ns(self) -> int:
        """The control period; 0 when the status has none."""
        return _period_ns(self.control_rate_hz)

    @property
    def action_period_ns(self) -> int:
        """Time from one action to the next; 0 when the status has none."""
        return _period_ns(self.action_rate_hz) or self.period_ns

    @property
    def actions_a_period(self) -> float:
        """Share of an action that a control period makes, as of displacements; 1: all of it."""
        period_ns = self.action_period_ns
        return self.period_ns / period_ns if self.two_rates and period_ns else 1.0

    @property
    def two_rates(self) -> bool:
        """True where a command is not an action."""
        return self.action_rate_hz > 1e-9 and self.action_rate_hz != self.control_rate_hz

    @property
    def rates(self) -> str:
        """Rates of actions and of commands, for a person; one of them where they are equal."""
        if not self.two_rates:
            return f"{self.control_rate_hz:g} Hz"
        return f"actions {self.action_rate_hz:g} Hz, commands {self.control_rate_hz:g} Hz"

    @property
    def between_episodes(self) -> bool:
        """True after a simulation's episode, until the next one: there are no images."""
        return self.state is PolicyState.WAITING and self.reason.startswith(EPISODE_OVER)

    @property
    def shadow(self) -> bool:
        """True where nothing of the policy's moves the robot: its commands are on another topic."""
        return SHADOW in self.reason


def _period_ns(rate_hz: float) -> int:
    return round(SECOND / rate_hz) if rate_hz > 1e-9 else 0


@dataclass(frozen=True, slots=True)
class LatencySeen:
    """The policy's own measurement, milliseconds: p99 of its tick error and of the total."""

    tick_error_p99_ms: float = 0.0
    total_p99_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class PublisherSeen:
    """A writer of a topic, as the ROS graph lists it."""

    node: str  # full name, with namespace
    gid: bytes


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A DiagnosticStatus: REP 107 name, level, one line, and values. ``expected``: a healthy graph
    comes through it, such as the wait for an instruction; it is no news for a log."""

    name: str
    level: Level
    message: str
    values: tuple[tuple[str, str], ...] = ()
    expected: bool = False


@dataclass(frozen=True, slots=True)
class GraphReport:
    """Mirror of MonitorReport.msg without the header; see its comments. In ms."""

    window_s: float = 0.0
    command_rate_hz: float = 0.0
    action_rate_hz: float = 0.0
    camera_rate_hz: float = 0.0
    age_at_publish: Distribution = NOTHING
    age_at_arrival: Distribution = NOTHING
    staleness: Distribution = NOTHING
    correction_age: Distribution = NOTHING
    period_error: Distribution = NOTHING
    transport: Distribution = NOTHING
    queue: Distribution = NOTHING
    preprocess: Distribution = NOTHING
    vision: Distribution = NOTHING
    prefill: Distribution = NOTHING
    decode: Distribution = NOTHING
    gate: Distribution = NOTHING
    inference: Distribution = NOTHING
    commands: int = 0
    actions: int = 0
    missed_deadlines: int = 0
    stale_published: int = 0
    lost_commands: int = 0
    pipeline_depth: int = 0
    acceptance: tuple[float, ...] = ()
    clock_offset_ms: float = 0.0
    action_publishers: tuple[str, ...] = ()
    output_publishers: tuple[str, ...] = ()
    level: Level = Level.OK
    problems: tuple[str, ...] = field(default=())


class EventTally:
    """Counter of events: ``total`` since the start, :meth:`recent` in the last ``window_s``
    seconds."""

    def __init__(self, window_s: float, limit: int = 20_000) -> None:
        self.total = 0
        self._window_ns = round(window_s * SECOND)
        self._events: deque[tuple[int, int]] = deque(maxlen=limit)

    def add(self, steady_ns: int, count: int = 1) -> None:
        self.total += count
        self._events.append((steady_ns, count))

    def recent(self, steady_ns: int) -> int:
        """Events in the window that ends at ``steady_ns``."""
        while self._events and self._events[0][0] < steady_ns - self._window_ns:
            self._events.popleft()
        return sum(count for _, count in self._events)
