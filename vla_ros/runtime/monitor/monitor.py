"""A policy judged from outside: measured facts in, one report and one Diagnostic a subject out.

Levels follow shared practice of ROS drivers: ERROR when the robot must not be trusted to move,
WARN when it will soon come to that, STALE when nothing was received. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vla_ros.core.clock import MS, SECOND, Clock, Distribution, Moment
from vla_ros.core.types import PolicyState
from vla_ros.runtime.monitor.camera import CameraWatch
from vla_ros.runtime.monitor.commands import CommandWatch, CommandWriters, WriterWatch, running
from vla_ros.runtime.monitor.seen import (
    CommandSeen,
    Diagnostic,
    EventTally,
    GraphReport,
    LatencySeen,
    Level,
    MonitorConfig,
    PublisherSeen,
    StatusSeen,
    worst,
)
from vla_ros.runtime.safety import slower_than_real_time

PERCENTILES = ("p50", "p95", "p99", "max")
UNSEEN = "no command with an observation in the window"
#: States that a healthy policy is in before, between and after its tasks, or while a person leads.
#: Of a refused configuration and its reason the policy node itself logs.
EXPECTED = frozenset(
    {
        PolicyState.UNCONFIGURED,
        PolicyState.INACTIVE,
        PolicyState.WAITING,
        PolicyState.RUNNING,
        PolicyState.TAKEOVER,
    }
)
STATE_LEVELS = {
    PolicyState.UNCONFIGURED: Level.WARN,
    PolicyState.INACTIVE: Level.OK,
    PolicyState.WAITING: Level.WARN,
    PolicyState.RUNNING: Level.OK,
    PolicyState.HOLD: Level.ERROR,
    PolicyState.FAULT: Level.ERROR,
    PolicyState.TAKEOVER: Level.WARN,
}


@dataclass(frozen=True, slots=True)
class MonitorFacts:
    """The facts to judge, at one instant of the steady clock."""

    config: MonitorConfig
    steady_ns: int
    report: GraphReport
    camera: CameraWatch
    commands: CommandWatch
    writers: CommandWriters
    outputs: Mapping[str, tuple[str, ...]]  # topic -> the nodes that publish on it
    status: StatusSeen | None
    status_age_s: float
    running_s: float  # for how long the status has been RUNNING; 0: it is not
    policy_gone: bool  # as the middleware reports
    since_s: float  # the monitor's own start
    active_s: float  # for how long the policy has been active; 0: it is not
    latency: LatencySeen | None
    graphs_captured: int = 0  # in service, lately

    @property
    def coming_up(self) -> bool:
        """True while nothing was heard of the policy, and it may still be starting."""
        return self.status is None and self.since_s <= self.config.status_timeout_s

    @property
    def policy_idle(self) -> bool:
        """True of a policy that is not active: it commands nothing, and reads no camera."""
        return self.status is None or self.status.state <= PolicyState.INACTIVE

    @property
    def policy_silent(self) -> bool:
        """True of a policy whose status came once and comes no more."""
        overdue = self.status_age_s > self.config.status_timeout_s
        return self.status is not None and (self.policy_gone or overdue)


class _Findings:
    """Findings about one subject; the worst leads the message."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: list[tuple[Level, str]] = []
        self._faults = 0

    def add(self, level: Level, text: str, *, expected: bool = False) -> None:
        """Add a finding. ``expected``: a healthy graph comes through it, and no log tells of it."""
        self._found.append((level, text))
        self._faults += not expected

    def conclude(self, fine: str, values: list[tuple[str, str]]) -> Diagnostic:
        level = worst(found for found, _ in self._found)
        first = [text for found, text in self._found if found is level]
        rest = [text for found, text in self._found if found not in (level, Level.OK)]
        message = "; ".join(first + rest) or fine
        expected = bool(self._found) and not self._faults
        return Diagnostic(self._name, level, message, tuple(values), expected)


def diagnose(facts: MonitorFacts) -> tuple[Diagnostic, ...]:
    """Diagnostics of all subjects, always in the same order."""
    return (
        policy(facts),
        observation_age(facts),
        camera(facts),
        action_rate(facts),
        latency(facts),
        action_topic(facts),
        outputs(facts),
    )


def policy(facts: MonitorFacts) -> Diagnostic:
    """Diagnostic of the policy: its state, and that it still reports one."""
    found, status = _Findings("policy"), facts.status
    if status is None:
        text = "no status heard: is the policy node running?"
        found.add(Level.STALE, text, expected=facts.coming_up)
        return found.conclude("", [])
    name = status.state.name
    text = f"{name}: {status.reason}" if status.reason else name
    found.add(STATE_LEVELS[status.state], text, expected=status.state in EXPECTED)
    # Nobody is in danger from a policy that was not active.
    idle = facts.policy_idle
    level = Level.WARN if idle else Level.ERROR
    if facts.policy_gone:
        text = f"the node is gone, or its process stands still; was {name}"
        found.add(level, text, expected=idle)
    elif facts.status_age_s > facts.config.status_timeout_s:
        found.add(level, f"silent for {facts.status_age_s:.1f} s, was {name}")
    if facts.graphs_captured:
        found.add(
            Level.WARN,
            f"{facts.graphs_captured} CUDA graphs captured in service, each while the robot waited",
        )
    values = [
        ("state", name),
        ("policy", status.policy),
        ("decoding", status.decoding),
        ("checkpoint", status.checkpoint),
        ("device", f"{status.device} {status.dtype}"),
        ("worker restarts", str(status.worker_restarts)),
        ("frames dropped", str(status.frames_dropped)),
        ("last drop", status.last_drop),
        ("graphs captured in service", str(status.graphs_captured)),
    ]
    return found.conclude(name, values)


def observation_age(facts: MonitorFacts) -> Diagnostic:
    """Diagnostic of the age of the commands' observations, against max_age."""
    found, report = _Findings("observation age"), facts.report
    limit = facts.commands.max_age_ns(facts.status) / MS
    age = report.age_at_publish
    stale = facts.commands.stale.recent(facts.steady_ns)
    if stale:
        found.add(Level.ERROR, f"{stale} commands on observations older than {limit:.0f} ms")
    if age.count == 0 and running(facts.status):
        begins = facts.running_s <= facts.config.command_timeout_s
        found.add(Level.STALE, UNSEEN, expected=begins)
    if limit and not stale and age.p95 > 0.8 * limit:
        found.add(Level.WARN, f"p95 {age.p95:.0f} ms is close to the limit of {limit:.0f} ms")
    values = [
        ("max_age", _ms(limit) if limit else "not known"),
        *_percentiles("at publish", age),
        *_percentiles("at arrival", report.age_at_arrival),
        *_percentiles("staleness", report.staleness),
        *_percentiles("correction", report.correction_age),
        ("stale published", str(report.stale_published)),
    ]
    behind = f", staleness p99 {report.staleness.p99:.0f} ms" if report.staleness.count else ""
    seen = f"p50 {age.p50:.0f} ms, p99 {age.p99:.0f} ms{behind}" if age.count else UNSEEN
    return found.conclude(seen, values)


def camera(facts: MonitorFacts) -> Diagnostic:
    """Diagnostic of the camera: silence, frozen or jumbled stamps, clocks that differ or drift."""
    found, watch, steady = _Findings("camera"), facts.camera, facts.steady_ns
    silent, frozen = watch.silent_s(steady), watch.frozen_s(steady)
    timeout = facts.config.camera_timeout_s
    # While nothing moves, a silent camera harms nobody.
    moving = facts.status is not None and facts.status.state > PolicyState.WAITING
    if facts.status is not None and facts.status.between_episodes:
        pass  # there is nothing to be seen
    elif silent > timeout and facts.policy_silent:
        text = "not known: the policy, which reports what it sees, is silent"
        found.add(Level.STALE, text, expected=facts.policy_idle)
    elif silent > timeout:
        where = f" on {watch.topic}" if watch.topic else ""
        known = f"no image for {silent:.1f} s{where}" if watch.frames else "no image yet"
        # A simulation renders its first image a while after the policy waits for it.
        patience = timeout if watch.frames else facts.config.status_timeout_s
        expected = facts.policy_idle or facts.active_s <= patience
        found.add(Level.ERROR if moving else Level.WARN, known, expected=expected)
    elif frozen > timeout:
        found.add(Level.ERROR, f"stamps stand still for {frozen:.1f} s while images arrive")
    if repeated := watch.repeated.recent(steady):
        found.add(Level.WARN, f"{repeated} images with a repeated stamp")
    if jumbled := watch.out_of_order.recent(steady):
        found.add(Level.WARN, f"{jumbled} images with a stamp older than the one before")
    room = _room_ms(facts)
    if room is not None and room <= 0.0 and running(facts.status):
        rate = facts.report.camera_rate_hz
        limit = facts.commands.max_age_ns(facts.status) / MS
        found.add(
            Level.WARN,
            f"{rate:.1f} Hz: an image every {1e3 / rate:.0f} ms is too few for max_age"
            f" {limit:.0f} ms",
        )
    _clocks(facts, found)
    drift = watch.offset.drift_ms_per_min()
    values = [
        ("topic", watch.topic),
        ("rate", f"{facts.report.camera_rate_hz:.2f} Hz"),
        ("images", str(watch.frames)),
        ("repeated stamps", str(watch.repeated.total)),
        ("out of order", str(watch.out_of_order.total)),
        ("stamps in the future", str(watch.ahead.total)),
        ("clock offset", _ms(facts.report.clock_offset_ms)),
        ("clock drift", f"{drift:.2f} ms/min"),
        ("clock jumps", str(watch.offset.jumps.total)),
        ("clock resets", str(watch.clock_resets)),
    ]
    return found.conclude(f"{facts.report.camera_rate_hz:.1f} Hz", values)


def _clocks(facts: MonitorFacts, found: _Findings) -> None:
    watch = facts.camera
    smallest = watch.offset.smallest_ms(facts.steady_ns)
    if smallest is not None and smallest < -watch.epsilon_ns / MS:
        count = watch.ahead.recent(facts.steady_ns)
        found.add(
            Level.ERROR,
            f"clocks not synchronized: {count} images stamped up to {-smallest:.1f} ms in the "
            "future; synchronize the camera's clock (chrony, PTP)",
        )
    if jumps := watch.offset.jumps.recent(facts.steady_ns):
        last = watch.offset.last_jump_ms
        found.add(
            Level.WARN, f"the camera's clock or ours was set {jumps} times, last by {last:+.1f} ms"
        )
    drift = watch.offset.drift_ms_per_min()
    if abs(drift) > facts.config.drift_ms_per_min:
        found.add(Level.WARN, f"camera clock drifts by {drift:+.1f} ms/min")


def action_rate(facts: MonitorFacts) -> Diagnostic:
    """Diagnostic of the rates of commands and actions: as often as promised, and without gaps."""
    found, report, status = _Findings("action rate"), facts.report, facts.status
    if status is not None and running(status):
        # Between two episodes there are none, and nothing is wrong with that.
        silent = min(facts.commands.silent_s(facts.steady_ns), facts.running_s)
        if silent > facts.config.command_timeout_s:
            found.add(Level.ERROR, f"RUNNING, but no command for {silent:.1f} s")
        missed = facts.commands.missed.recent(facts.steady_ns)
        due = missed + facts.commands.acted.recent(facts.steady_ns)
        begins = facts.running_s <= facts.config.command_timeout_s  # a second shows no pattern
        period_ms = status.period_ns / MS
        # One alone is no pattern, however short the window still is. For a log, nor are the first
        # of an episode of three seconds: it is told of more than may be of a whole window.
        whole = facts.config.window_s * 1e3 / period_ms if period_ms else 0.0
        few = missed <= facts.config.missed_fraction * whole
        if missed > max(1.0, facts.config.missed_fraction * due):
            text = f"{missed} of {due} periods without an action"
            found.add(Level.WARN, text, expected=begins or few)
        if not facts.config.sim_time and report.period_error.p99 > period_ms / 2:
            found.add(
                Level.WARN,
                f"period jitter p99 {report.period_error.p99:.1f} ms is over half a period",
                expected=begins,
            )
    if lost := facts.commands.lost.recent(facts.steady_ns):
        found.add(Level.WARN, f"{lost} commands lost on the way")
    if jumbled := facts.commands.jumbled.recent(facts.steady_ns):
        found.add(Level.WARN, f"{jumbled} sequence numbers repeated, went back or leapt")
    values = [
        ("asked", status.rates if status else "not known"),
        ("commands", f"{report.command_rate_hz:.2f} Hz"),
        ("new actions", f"{report.action_rate_hz:.2f} Hz"),
        ("missed deadlines", str(report.missed_deadlines)),
        ("lost commands", str(report.lost_commands)),
        *_percentiles("period error", report.period_error),
    ]
    seen = f"{report.action_rate_hz:.1f} new actions/s"
    if status is not None and status.two_rates:
        seen += f", {report.command_rate_hz:.1f} commands/s"
    return found.conclude(seen, values)


def latency(facts: MonitorFacts) -> Diagnostic:
    """Diagnostic of latency: the stages, and the room that the model leaves to the others."""
    found, report = _Findings("latency"), facts.report
    room = _room_ms(facts)
    # Where the camera alone takes longer than that it is the camera that is too slow.
    if report.inference.count and room is not None and 0.0 < room < report.inference.p99:
        found.add(
            Level.WARN,
            f"inference p99 {report.inference.p99:.0f} ms; max_age leaves {room:.0f} ms for it",
        )
    if slow := _slower_than_real_time(facts):
        found.add(Level.WARN, slow)
    if errors := facts.commands.stage_errors.recent(facts.steady_ns):
        found.add(Level.WARN, f"{errors} actions whose stages do not add up to their total")
    values = _percentiles("inference", report.inference)
    for name in ("transport", "queue", "preprocess", "vision", "prefill", "decode", "gate"):
        stage: Distribution = getattr(report, name)
        spread = f"{stage.p50:.2f} / {stage.p99:.2f} ms" if stage.count else "-"
        values.append((f"{name} p50 / p99", spread))
    if facts.latency is not None:
        values.append(("tick error p99 (policy)", _ms(facts.latency.tick_error_p99_ms)))
        values.append(("total p99 (policy)", _ms(facts.latency.total_p99_ms)))
    if not report.inference.count:
        return found.conclude("no inference in the window", values)
    return found.conclude(f"inference p99 {report.inference.p99:.0f} ms", values)


def _slower_than_real_time(facts: MonitorFacts) -> str:
    """The line about a machine that is; "" in simulated time, which waits for it."""
    report, status = facts.report, facts.status
    if facts.config.sim_time or status is None:
        return ""
    return slower_than_real_time(report.inference, status.action_period_ns, report.missed_deadlines)


def _room_ms(facts: MonitorFacts) -> float | None:
    """L that max_age A allows: A >= Tc + (K-1)·T + L + T, so L <= A - Tc - K·T; T is the longer of
    the two periods. Unknown in simulated time: ages are the simulation's, inference takes ours."""
    limit = facts.commands.max_age_ns(facts.status) / MS
    rate = facts.report.camera_rate_hz
    if facts.status is None or not limit or rate <= 0 or facts.config.sim_time:
        return None
    period = max(facts.status.period_ns, facts.status.action_period_ns) / MS
    return limit - 1e3 / rate - max(facts.status.pipeline_depth, 1) * period


def action_topic(facts: MonitorFacts) -> Diagnostic:
    """Diagnostic of the action topic: exactly one node may publish commands."""
    found, active = _Findings("action topic"), facts.writers.active
    if len(active) > 1:
        found.add(Level.ERROR, f"{len(active)} publishers: {', '.join(active)}; stop all but one")
    elif not active:
        found.add(Level.WARN, "no publisher", expected=facts.policy_idle)
    if facts.writers.leftover:
        gone = ", ".join(facts.writers.leftover)
        found.add(Level.WARN, f"the graph still lists a silent second writer named {gone}")
    return found.conclude(", ".join(active), [("publishers", ", ".join(active))])


def outputs(facts: MonitorFacts) -> Diagnostic:
    """Diagnostic of the outputs: exactly one node may publish on each."""
    found = _Findings("outputs")
    values = [(topic, ", ".join(nodes)) for topic, nodes in facts.outputs.items()]
    for topic, nodes in values:
        count = len(facts.outputs[topic])
        if count > 1:
            found.add(Level.ERROR, f"{topic} has {count} publishers: {nodes}; stop all but one")
    return found.conclude(", ".join(facts.outputs) or "none beside the action topic", values)


def _ms(value: float) -> str:
    return f"{value:.2f} ms"


def _percentiles(name: str, d: Distribution) -> list[tuple[str, str]]:
    """Percentiles as values; a dash without samples: an age of 0 ms would be the best there is."""
    shown = (_ms(getattr(d, p)) if d.count else "-" for p in PERCENTILES)
    return [(f"{name} {p}", text) for p, text in zip(PERCENTILES, shown, strict=True)]


# The monitor


@dataclass(frozen=True, slots=True)
class Judgement:
    """Report and diagnostics of one instant."""

    report: GraphReport
    diagnostics: tuple[Diagnostic, ...]

    @property
    def levels(self) -> tuple[Level, ...]:
        return tuple(diagnostic.level for diagnostic in self.diagnostics)


class Monitor:
    """Monitor of a policy from outside, by its topics.

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
        self._outputs: dict[str, tuple[str, ...]] = {}
        self._latency: LatencySeen | None = None
        self._status: StatusSeen | None = None
        self._captured = EventTally(config.window_s)  # CUDA graphs, in service
        self._status_ns = now
        self._began_ns = now
        self._active_ns: int | None = None  # since when the policy is active
        self._running_ns: int | None = None  # since when the status is RUNNING
        self._gone = False

    def set_limits(self, config: MonitorConfig) -> None:
        """Set other limits; window and kind of time stay what they were."""
        if (config.window_s, config.sim_time) != (self.config.window_s, self.config.sim_time):
            raise ValueError("window_s and sim_time can only be given at start")
        self.config = config
        self._commands.config = config

    def camera(self, stamp_ns: int, arrival: Moment, topic: str = "") -> None:
        """Take in an image of the policy's camera, by its ``header.stamp``. Another topic is
        another camera, of which nothing is known yet."""
        if topic != self._camera.topic and self._camera.frames:
            self._camera = CameraWatch(self.config, arrival.steady_ns)
            if self._status is not None:
                self._camera.set_period(self._status.action_period_ns)
        self._camera.topic = topic
        self._camera.frame(stamp_ns, arrival)

    def command(self, seen: CommandSeen, arrival: Moment) -> None:
        """Take in an ActionCommand."""
        self._writers.sent(seen.publisher, arrival.steady_ns)
        self._commands.command(seen, arrival, self._status)

    def status(self, seen: StatusSeen, arrival: Moment) -> None:
        """Take in a PolicyStatus; its periods and, unless configured, max_age count from now on."""
        # What was before this monitor is not new; another policy node begins again at 0.
        known = seen.graphs_captured if self._status is None else self._status.graphs_captured
        if known > seen.graphs_captured:
            known = 0
        if seen.graphs_captured > known:
            self._captured.add(arrival.steady_ns, seen.graphs_captured - known)
        self._status, self._status_ns = seen, arrival.steady_ns
        if seen.state <= PolicyState.INACTIVE:
            self._active_ns = None
        elif self._active_ns is None:
            self._active_ns = arrival.steady_ns
        if not running(seen):
            self._running_ns = None
        elif self._running_ns is None:
            self._running_ns = arrival.steady_ns
        self._camera.set_period(seen.action_period_ns)

    def policy_alive(self, alive: bool) -> None:
        """Note whether the process that writes the status lives, by the middleware."""
        self._gone = not alive

    def latency(self, seen: LatencySeen) -> None:
        """Take in a Latency message, the policy's own measurement."""
        self._latency = seen

    def publishers(self, listed: tuple[PublisherSeen, ...]) -> None:
        """Take in the writers of the action topic in the ROS graph."""
        self._writers.listed(listed)

    def outputs(self, listed: Mapping[str, tuple[PublisherSeen, ...]]) -> None:
        """Take in the writers of the policy's outputs in the ROS graph, by topic. Namesakes count
        as one: a killed process is listed for its lease, and two policies that live are found by
        their commands on the action topic."""
        self._outputs = {
            topic: tuple(dict.fromkeys(writer.node for writer in writers))
            for topic, writers in listed.items()
        }

    def judge(self) -> Judgement:
        """Report and diagnostics of this instant."""
        steady = self._clock.steady_ns()
        writers = self._writers.judge(steady)
        measured = self._measure(steady, writers)
        facts = MonitorFacts(
            config=self.config,
            steady_ns=steady,
            report=measured,
            camera=self._camera,
            commands=self._commands,
            writers=writers,
            outputs=self._outputs,
            status=self._status,
            status_age_s=(steady - self._status_ns) / SECOND,
            running_s=_since_s(self._running_ns, steady),
            policy_gone=self._gone,
            since_s=(steady - self._began_ns) / SECOND,
            active_s=_since_s(self._active_ns, steady),
            latency=self._latency,
            graphs_captured=self._captured.recent(steady),
        )
        diagnostics = diagnose(facts)
        report = replace(
            measured,
            level=worst(d.level for d in diagnostics),
            problems=tuple(f"{d.name}: {d.message}" for d in diagnostics if d.level),
        )
        return Judgement(report, diagnostics)

    def _measure(self, steady: int, writers: CommandWriters) -> GraphReport:
        commands, status = self._commands, self._status
        measured: dict[str, Any] = {**commands.distributions(steady)}
        return GraphReport(
            window_s=self.config.window_s,
            command_rate_hz=commands.command_rate_hz(steady),
            action_rate_hz=commands.action_rate_hz(steady),
            camera_rate_hz=self._camera.rate_hz(steady),
            **measured,
            commands=commands.commands,
            actions=commands.actions,
            missed_deadlines=commands.missed.total,
            stale_published=commands.stale.total,
            lost_commands=commands.lost.total,
            pipeline_depth=status.pipeline_depth if status else 0,
            acceptance=status.acceptance if status else (),
            clock_offset_ms=self._camera.offset.smallest_ms(steady) or 0.0,
            action_publishers=writers.active,
            output_publishers=tuple(" ".join((t, *nodes)) for t, nodes in self._outputs.items()),
        )


def _since_s(began_ns: int | None, steady_ns: int) -> float:
    """Seconds since then; 0: it has not begun."""
    return 0.0 if began_ns is None else (steady_ns - began_ns) / SECOND
