"""Joins what was seen into one report and the diagnostics. Not thread-safe."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vla_ros.monitoring.camera import CameraWatch
from vla_ros.monitoring.commands import CommandWatch, running
from vla_ros.monitoring.diagnosis import Facts, diagnose
from vla_ros.monitoring.seen import (
    CommandSeen,
    Diagnostic,
    GraphReport,
    LatencySeen,
    Level,
    MonitorConfig,
    PublisherSeen,
    StatusSeen,
    worst,
)
from vla_ros.monitoring.tally import EventTally
from vla_ros.monitoring.writers import Writers, WriterWatch
from vla_ros.timing import SECOND, Clock, Moment


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the monitor says at one instant."""

    report: GraphReport
    diagnostics: tuple[Diagnostic, ...]

    @property
    def levels(self) -> tuple[Level, ...]:
        return tuple(diagnostic.level for diagnostic in self.diagnostics)


class Monitor:
    """Judges a policy from outside, by what its topics say.

    Give every message to the method of its kind as it arrives, then ask :meth:`judge` as
    often as needed. Watchdogs (silence) run on the steady clock, ages on the stamps.
    """

    def __init__(self, config: MonitorConfig, clock: Clock) -> None:
        self.config = config
        self._clock = clock
        now = clock.steady_ns()
        self._camera = CameraWatch(config, now)
        self._commands = CommandWatch(config, now)
        self._writers = WriterWatch()
        self._latency: LatencySeen | None = None
        self._status: StatusSeen | None = None
        self._captured = EventTally(config.window_s)  # CUDA graphs, in service
        self._status_ns = now
        self._running_ns: int | None = None  # since when the status says so
        self._gone = False

    def set_limits(self, config: MonitorConfig) -> None:
        """Judge by other limits from now on; window and kind of time stay what they were."""
        if (config.window_s, config.sim_time) != (self.config.window_s, self.config.sim_time):
            raise ValueError("window_s and sim_time can only be given at start")
        self.config = config
        self._commands.config = config

    def camera(self, stamp_ns: int, arrival: Moment) -> None:
        """One camera image, by its ``header.stamp``."""
        self._camera.frame(stamp_ns, arrival)

    def command(self, seen: CommandSeen, arrival: Moment) -> None:
        """One ActionCommand."""
        self._writers.sent(seen.publisher, arrival.steady_ns)
        self._commands.command(seen, arrival, self._status)

    def status(self, seen: StatusSeen, arrival: Moment) -> None:
        """One PolicyStatus; tells T and, unless configured, max_age from now on."""
        # What was before this monitor is not new; another policy node begins again at 0.
        known = seen.graphs_captured if self._status is None else self._status.graphs_captured
        if known > seen.graphs_captured:
            known = 0
        if seen.graphs_captured > known:
            self._captured.add(arrival.steady_ns, seen.graphs_captured - known)
        self._status, self._status_ns = seen, arrival.steady_ns
        if not running(seen):
            self._running_ns = None
        elif self._running_ns is None:
            self._running_ns = arrival.steady_ns
        self._camera.set_period(seen.period_ns)

    def policy_alive(self, alive: bool) -> None:
        """What the middleware says of the process that writes the status."""
        self._gone = not alive

    def latency(self, seen: LatencySeen) -> None:
        """One Latency message: what the policy says of itself."""
        self._latency = seen

    def publishers(self, listed: tuple[PublisherSeen, ...]) -> None:
        """The writers of the action topic in the ROS graph."""
        self._writers.listed(listed)

    def judge(self) -> Judgement:
        """Report and diagnostics of this instant."""
        steady = self._clock.steady_ns()
        writers = self._writers.judge(steady)
        measured = self._measure(steady, writers)
        facts = Facts(
            config=self.config,
            steady_ns=steady,
            report=measured,
            camera=self._camera,
            commands=self._commands,
            writers=writers,
            status=self._status,
            status_age_s=(steady - self._status_ns) / SECOND,
            running_s=(steady - self._running_ns) / SECOND if self._running_ns is not None else 0.0,
            policy_gone=self._gone,
            latency=self._latency,
            graphs_captured=self._captured.recent(steady),
        )
        diagnostics = diagnose(facts)
        return Judgement(_conclude(measured, diagnostics), diagnostics)

    def _measure(self, steady: int, writers: Writers) -> GraphReport:
        commands, status = self._commands, self._status
        stages = commands.stages(steady)
        return GraphReport(
            window_s=self.config.window_s,
            command_rate_hz=commands.command_rate_hz(steady),
            action_rate_hz=commands.action_rate_hz(steady),
            camera_rate_hz=self._camera.rate_hz(steady),
            age_at_publish=commands.age_at_publish(steady),
            age_at_arrival=commands.age_at_arrival(steady),
            staleness=commands.staleness(steady),
            period_error=commands.period_error(steady),
            transport=stages["transport"],
            queue=stages["queue"],
            preprocess=stages["preprocess"],
            vision=stages["vision"],
            prefill=stages["prefill"],
            decode=stages["decode"],
            gate=stages["gate"],
            inference=commands.inference(steady),
            commands=commands.commands,
            actions=commands.actions,
            missed_deadlines=commands.missed.total,
            stale_published=commands.stale.total,
            lost_commands=commands.lost.total,
            pipeline_depth=status.pipeline_depth if status else 0,
            acceptance=status.acceptance if status else (),
            clock_offset_ms=self._camera.offset.smallest_ms(steady) or 0.0,
            action_publishers=writers.active,
        )


def _conclude(report: GraphReport, diagnostics: tuple[Diagnostic, ...]) -> GraphReport:
    """The report with the worst level and one line a problem."""
    problems = tuple(f"{d.name}: {d.message}" for d in diagnostics if d.level is not Level.OK)
    return replace(report, level=worst(d.level for d in diagnostics), problems=problems)
