"""What the action topic says: rates, ages, deadlines, gaps. Not thread-safe.

Deadlines are judged while the policy says RUNNING: a period is missed when its command
carries no new action (KIND_HELD) or when there was no command at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from vla_ros.core import STAGES, CommandKind, PolicyState
from vla_ros.monitoring.seen import CommandSeen, MonitorConfig, StatusSeen
from vla_ros.monitoring.tally import EventTally
from vla_ros.timing import MS, SECOND, Distribution, Moment, Window

STAGE_TOLERANCE_MS = 0.1
LARGEST_GAP = 1_000_000  # commands that can be lost between two; more is another numbering
MAX_WRITERS = 16  # sequences remembered, so that strangers cannot fill the memory


@dataclass(frozen=True, slots=True)
class _Last:
    """The command before, of the same writer."""

    sequence: int
    published_ns: int
    steady_ns: int
    counts: bool  # sent in RUNNING, so that the next one is due a period later


class CommandWatch:
    """Follows the action topic, by :meth:`command`. Distributions look at the window only."""

    def __init__(self, config: MonitorConfig, steady_ns: int) -> None:
        self.config = config
        window = config.window_s
        self._all = Window(window)
        self._actions = Window(window)
        self._ages_published = Window(window)
        self._ages_arrived = Window(window)
        self._staleness = Window(window)
        self._period_errors = Window(window)
        self._inference = Window(window)
        self._stages = {stage: Window(window) for stage in STAGES}
        self.missed = EventTally(window)  # periods without a new action
        self.stale = EventTally(window)  # actions older than max_age when published
        self.lost = EventTally(window)  # gaps in the sequence
        self.jumbled = EventTally(window)  # sequence numbers that did not rise
        self.stage_errors = EventTally(window)  # stages that miss their total
        self._last: dict[bytes, _Last] = {}
        self._last_ns = steady_ns
        self.commands = self.actions = 0

    def command(self, seen: CommandSeen, arrival: Moment, status: StatusSeen | None) -> None:
        """One command; ``status`` is the policy's newest, which tells T and max_age."""
        steady = arrival.steady_ns
        self.commands += 1
        self._all.add(steady, 1.0)
        self._follow_sequence(seen, arrival, status)
        self._last_ns = steady
        if seen.observed_ns:
            age = seen.published_ns - seen.observed_ns
            self._ages_published.add(steady, age / MS)
            received = arrival.now_ns
            if self.config.sim_time:  # our /clock may lag; a receipt is after the publication
                received = max(received, seen.published_ns)
            self._ages_arrived.add(steady, (received - seen.observed_ns) / MS)
        if seen.kind is CommandKind.POLICY:
            self._new_action(seen, steady, status)
        elif seen.kind is CommandKind.HELD and running(status):
            self.missed.add(steady)

    def _new_action(self, seen: CommandSeen, steady: int, status: StatusSeen | None) -> None:
        self.actions += 1
        self._actions.add(steady, 1.0)
        limit = self.max_age_ns(status)
        # An action that rests on no observation at all is older than any limit.
        if not seen.observed_ns or 0 < limit < seen.published_ns - seen.observed_ns:
            self.stale.add(steady)
        if seen.observed_ns:
            self._staleness.add(steady, seen.staleness_ms)
        stages = seen.stages
        for stage, duration in zip(STAGES, stages.durations_ms, strict=True):
            self._stages[stage].add(steady, duration)
        self._inference.add(steady, stages.inference_ms)
        if stages.sum_error_ms > STAGE_TOLERANCE_MS:
            self.stage_errors.add(steady)

    def _follow_sequence(
        self, seen: CommandSeen, arrival: Moment, status: StatusSeen | None
    ) -> None:
        """Gaps, period errors and silent periods, against the command before of this writer."""
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
            self._period_errors.add(arrival.steady_ns, abs(steady_gap - period) / MS)
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

    def age_at_publish(self, steady_ns: int) -> Distribution:
        return self._ages_published.distribution(steady_ns)

    def age_at_arrival(self, steady_ns: int) -> Distribution:
        return self._ages_arrived.distribution(steady_ns)

    def staleness(self, steady_ns: int) -> Distribution:
        """Of new actions, how long after they were due they were published."""
        return self._staleness.distribution(steady_ns)

    def period_error(self, steady_ns: int) -> Distribution:
        return self._period_errors.distribution(steady_ns)

    def inference(self, steady_ns: int) -> Distribution:
        return self._inference.distribution(steady_ns)

    def stages(self, steady_ns: int) -> dict[str, Distribution]:
        """Every stage of STAGES, of new actions only."""
        return {name: window.distribution(steady_ns) for name, window in self._stages.items()}

    def silent_s(self, steady_ns: int) -> float:
        """Since the last command, or since the start."""
        return (steady_ns - self._last_ns) / SECOND

    def recent_actions(self, steady_ns: int) -> int:
        """New actions in the window."""
        return self._inference.distribution(steady_ns).count


def running(status: StatusSeen | None) -> bool:
    return status is not None and status.state is PolicyState.RUNNING
