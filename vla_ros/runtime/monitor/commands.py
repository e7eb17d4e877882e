"""Watch of the action topic: rates, ages, deadlines, gaps, writers. Not thread-safe.

Deadlines are judged while the policy's status is RUNNING: a control period is missed when its
command finds no action (KIND_HELD) or when there was no command at all. An action may be made by
several commands: ages are every command's, stages and inference a new action's.
"""

from __future__ import annotations

from dataclasses import dataclass

from vla_ros.core.clock import MS, SECOND, Distribution, Moment, Window
from vla_ros.core.types import STAGES, CommandKind, PolicyState
from vla_ros.runtime.monitor.seen import (
    CommandSeen,
    EventTally,
    MonitorConfig,
    PublisherSeen,
    StagesSeen,
    StatusSeen,
)

STAGE_TOLERANCE_MS = 0.1
LARGEST_GAP = 1_000_000  # commands that can be lost between two; more is another numbering
MAX_WRITERS = 16  # remembered, so that strangers cannot fill the memory
RECENT_NS = 2 * SECOND  # a writer that was silent for longer may be gone
#: measured per command or per action, by the names of MonitorReport.msg
MEASURED = (
    "age_at_publish", "age_at_arrival", "staleness", "correction_age", "period_error", "inference",
    *STAGES,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Last:
    """The previous command of the same writer."""

    sequence: int
    published_ns: int
    steady_ns: int
    counts: bool  # sent in RUNNING, so that the next one is due a control period later


class CommandWatch:
    """Watch of the action topic, by :meth:`command`. Distributions are of the window only; those of
    stages and inference of new actions. ``actions`` counts new ones, ``acted`` all commands of the
    policy."""

    def __init__(self, config: MonitorConfig, steady_ns: int) -> None:
        self.config = config
        window = config.window_s
        self._all = Window(window)
        self._actions = Window(window)
        self._measured = {name: Window(window) for name in MEASURED}
        self.acted = EventTally(window)
        self.missed = EventTally(window)  # control periods without an action
        self.stale = EventTally(window)  # commands of the policy older than max_age when published
        self.lost = EventTally(window)  # gaps in the sequence
        self.jumbled = EventTally(window)  # sequence numbers that did not rise
        self.stage_errors = EventTally(window)  # stages that miss their total
        self._last: dict[bytes, _Last] = {}
        self._action: tuple[bytes, tuple[int, int]] | None = None  # the newest, and its writer
        self._last_ns = steady_ns
        self.commands = self.actions = 0

    def command(self, seen: CommandSeen, arrival: Moment, status: StatusSeen | None) -> None:
        """Take in a command; ``status`` is the policy's newest, with T and max_age."""
        steady = arrival.steady_ns
        self.commands += 1
        self._all.add(steady, 1.0)
        self._follow_sequence(seen, arrival, status)
        self._last_ns = steady
        if seen.observed_ns:
            age = seen.published_ns - seen.observed_ns
            self._measured["age_at_publish"].add(steady, age / MS)
            received = arrival.now_ns
            if self.config.sim_time:  # our /clock may lag; a receipt is after the publication
                received = max(received, seen.published_ns)
            self._measured["age_at_arrival"].add(steady, (received - seen.observed_ns) / MS)
        if seen.kind is CommandKind.POLICY:
            self._act(seen, steady, status)
        elif seen.kind is CommandKind.HELD and running(status):
            self.missed.add(steady)

    def _act(self, seen: CommandSeen, steady: int, status: StatusSeen | None) -> None:
        self.acted.add(steady)
        limit = self.max_age_ns(status)
        # An action that rests on no observation at all is older than any limit.
        if not seen.observed_ns or 0 < limit < seen.published_ns - seen.observed_ns:
            self.stale.add(steady)
        if seen.observed_ns:
            self._measured["staleness"].add(steady, seen.staleness_ms)
        if seen.corrected_ns:
            age = seen.published_ns - seen.corrected_ns
            self._measured["correction_age"].add(steady, age / MS)
        if (action := (seen.publisher, seen.action)) != self._action:
            self._action = action
            self._begin(seen.stages, steady)

    def _begin(self, stages: StagesSeen, steady: int) -> None:
        self.actions += 1
        self._actions.add(steady, 1.0)
        for stage, duration in zip(STAGES, stages.durations_ms, strict=True):
            self._measured[stage].add(steady, duration)
        self._measured["inference"].add(steady, stages.inference_ms)
        if stages.sum_error_ms > STAGE_TOLERANCE_MS:
            self.stage_errors.add(steady)

    def _follow_sequence(
        self, seen: CommandSeen, arrival: Moment, status: StatusSeen | None
    ) -> None:
        """Count gaps, period errors and silent periods since the writer's previous command."""
        last = self._last.get(seen.publisher)
        if last is None and len(self._last) >= MAX_WRITERS:
            self._last.pop(next(iter(self._last)))
        counts = running(status) and seen.kind is not CommandKind.STOP
        self._last[seen.publisher] = _Last(
            seen.sequence, seen.published_ns, arrival.steady_ns, counts
        )
        if last is None:
            return
        step = seen.sequence - last.sequence
        if not 0 < step <= LARGEST_GAP:
            self.jumbled.add(arrival.steady_ns)
            return
        if step > 1:
            self.lost.add(arrival.steady_ns, step - 1)
        period = status.period_ns if status else 0
        if not period or not (counts and last.counts):
            return
        steady_gap = arrival.steady_ns - last.steady_ns
        if step == 1:
            self._measured["period_error"].add(arrival.steady_ns, abs(steady_gap - period) / MS)
        # A late delivery stretches the one gap, a clock that was set the other.
        gap = seen.published_ns - last.published_ns
        if not self.config.sim_time:
            gap = min(gap, steady_gap)
        silent = round(gap / period) - step
        if silent > 0:
            self.missed.add(arrival.steady_ns, silent)

    def max_age_ns(self, status: StatusSeen | None) -> int:
        """A: the configured limit, or the one of the status; 0 while neither is known."""
        limit = self.config.max_age_ms or (status.max_age_ms if status else 0.0)
        return round(limit * MS)

    def command_rate_hz(self, steady_ns: int) -> float:
        return self._all.rate_hz(steady_ns)

    def action_rate_hz(self, steady_ns: int) -> float:
        return self._actions.rate_hz(steady_ns)

    def distributions(self, steady_ns: int) -> dict[str, Distribution]:
        """Distribution of each of :data:`MEASURED`."""
        return {name: window.distribution(steady_ns) for name, window in self._measured.items()}

    def silent_s(self, steady_ns: int) -> float:
        """Seconds since the last command, or since the start."""
        return (steady_ns - self._last_ns) / SECOND


def running(status: StatusSeen | None) -> bool:
    return status is not None and status.state is PolicyState.RUNNING


@dataclass(slots=True)
class _Sender:
    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class CommandWriters:
    """Writers of commands: ``active`` node names, and ``leftover`` names of dead namesakes."""

    active: tuple[str, ...] = ()
    leftover: tuple[str, ...] = ()


class WriterWatch:
    """Watch of the nodes that publish commands. Only one may.

    Two sources: the ROS graph, which names writers but forgets a killed one only after its lease
    (20 s), and the GIDs of the commands received, which are proof but nameless.
    """

    def __init__(self) -> None:
        self._listed: tuple[PublisherSeen, ...] = ()
        self._senders: dict[bytes, _Sender] = {}

    def listed(self, publishers: tuple[PublisherSeen, ...]) -> None:
        """Take in the action topic's writers by the ROS graph."""
        self._listed = publishers

    def sent(self, gid: bytes, steady_ns: int) -> None:
        """Note a command of the writer ``gid``; empty when it is unknown."""
        if not gid:
            return
        sender = self._senders.get(gid)
        if sender is not None and steady_ns - sender.last_ns <= RECENT_NS:
            sender.last_ns = steady_ns
            return
        if sender is None and len(self._senders) >= MAX_WRITERS:
            oldest = min(self._senders, key=lambda key: self._senders[key].last_ns)
            del self._senders[oldest]
        self._senders[gid] = _Sender(steady_ns, steady_ns)

    def judge(self, steady_ns: int) -> CommandWriters:
        """The writers of now by node name; an unknown one by its GID."""
        recent = {
            gid: sender
            for gid, sender in self._senders.items()
            if steady_ns - sender.last_ns <= RECENT_NS
        }
        names = {publisher.gid: publisher.node for publisher in self._listed}
        leftover = self._leftover(recent)
        active = [names[gid] for gid in names if gid not in leftover]
        active += [_stranger(gid) for gid in recent if gid not in names and _overlaps(gid, recent)]
        return CommandWriters(tuple(active), tuple(names[gid] for gid in leftover))

    def _leftover(self, recent: dict[bytes, _Sender]) -> tuple[bytes, ...]:
        """Listed writers that are silent while a namesake sends: killed processes."""
        sending = {p.node for p in self._listed if p.gid in recent}
        return tuple(p.gid for p in self._listed if p.gid not in recent and p.node in sending)


def _overlaps(gid: bytes, recent: dict[bytes, _Sender]) -> bool:
    """True if another writer sent while ``gid`` was sending, unlike a node that was restarted."""
    own = recent[gid]
    return any(
        max(own.first_ns, other.first_ns) <= min(own.last_ns, other.last_ns)
        for key, other in recent.items()
        if key != gid
    )


def _stranger(gid: bytes) -> str:
    return f"unknown writer {gid.hex()}"
