"""The monitor's judgement, with a clock that moves only when told to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_ros.core.clock import MS, SECOND, ManualClock, moment
from vla_ros.core.types import STAGES, CommandKind, PolicyState
from vla_ros.runtime.monitor.camera import ClockOffset, SlidingMinimum
from vla_ros.runtime.monitor.commands import MAX_WRITERS
from vla_ros.runtime.monitor.monitor import Monitor
from vla_ros.runtime.monitor.seen import (
    CommandSeen,
    Diagnostic,
    Level,
    MonitorConfig,
    PublisherSeen,
    StagesSeen,
    StatusSeen,
    worst,
)

RUNNING = StatusSeen(PolicyState.RUNNING, control_rate_hz=20.0, max_age_ms=300.0)
PERIOD = 0.05


class Graph:
    """A camera and a policy that the test drives period by period."""

    def __init__(self, status: StatusSeen | None = RUNNING, **config: object) -> None:
        self.clock = ManualClock()
        self.monitor = Monitor(MonitorConfig(**config), self.clock)
        self.sequence = 0
        self.monitor.publishers((PublisherSeen("/policy", b"p"),))
        if status is not None:
            self.status(status)

    def status(self, status: StatusSeen = RUNNING) -> None:
        self.current = status
        self.monitor.status(status, moment(self.clock))

    def frame(self, delay_ms: float = 2.0, stamp_ns: int | None = None) -> None:
        stamp = self.clock.now - round(delay_ms * MS) if stamp_ns is None else stamp_ns
        self.monitor.camera(stamp, moment(self.clock))

    def command(
        self,
        kind: CommandKind = CommandKind.POLICY,
        age_ms: float = 80.0,
        stages: StagesSeen | None = None,
        publisher: bytes = b"p",
        transport_ms: float = 1.0,
        staleness_ms: float = 0.0,
        correction_ms: float = 0.0,
        observed_ns: int | None = None,
        chunk_index: int = 0,
    ) -> None:
        self.sequence += 1
        published = self.clock.now - round(transport_ms * MS)
        observed = published - round(age_ms * MS) if observed_ns is None else observed_ns
        rest = (age_ms,) + (0.0,) * (len(STAGES) - 1)
        seen = CommandSeen(
            sequence=self.sequence,
            kind=kind,
            published_ns=published,
            observed_ns=observed,
            chunk_index=chunk_index,
            stages=stages or StagesSeen(rest, age_ms),
            staleness_ms=staleness_ms,
            corrected_ns=published - round(correction_ms * MS) if correction_ms else 0,
            publisher=publisher,
        )
        self.monitor.command(seen, moment(self.clock))

    def run(self, periods: int, **command: object) -> None:
        for i in range(periods):
            if i % 20 == 19:  # once a second, as the policy does
                self.status(self.current)
            self.frame()
            self.command(**command)
            self.clock.advance(PERIOD)

    def diagnostic(self, subject: str) -> Diagnostic:
        found = {d.name: d for d in self.monitor.judge().diagnostics}
        return found[f"{subject}"]

    @property
    def report(self):
        return self.monitor.judge().report


def test_a_healthy_graph_is_ok_and_its_figures_are_those_that_were_sent() -> None:
    graph = Graph()
    graph.run(100, age_ms=80.0)
    report = graph.report
    assert report.level is Level.OK, report.problems
    assert report.problems == ()
    assert report.command_rate_hz == pytest.approx(20.0)
    assert report.action_rate_hz == pytest.approx(20.0)
    assert report.camera_rate_hz == pytest.approx(20.0)
    assert report.age_at_publish.p50 == pytest.approx(80.0)
    assert report.age_at_arrival.p99 == pytest.approx(81.0)
    assert report.transport.p50 == pytest.approx(80.0)
    assert report.clock_offset_ms == pytest.approx(2.0)
    assert (report.commands, report.actions) == (100, 100)
    assert (report.missed_deadlines, report.stale_published, report.lost_commands) == (0, 0, 0)
    assert report.action_publishers == ("/policy",)


def test_all_subjects_have_rep_107_names_of_their_own() -> None:
    names = [d.name for d in Graph().monitor.judge().diagnostics]
    assert names == [
        "policy",
        "observation age",
        "camera",
        "action rate",
        "latency",
        "action topic",
        "outputs",
    ]


@given(st.lists(st.floats(1.0, 1_000.0), min_size=1, max_size=60))
@settings(max_examples=50, deadline=None)
def test_stale_actions_are_those_older_than_max_age_when_published(ages: list[float]) -> None:
    graph = Graph()
    for age in ages:
        graph.run(1, age_ms=age)
    stale = sum(round(age * MS) > 300 * MS for age in ages)
    assert graph.report.stale_published == stale
    assert (graph.diagnostic("observation age").level is Level.ERROR) == (stale > 0)


def test_the_configured_limit_goes_before_that_of_the_status() -> None:
    graph = Graph(max_age_ms=50.0)
    graph.run(3, age_ms=80.0)
    assert graph.report.stale_published == 3


def test_held_commands_grow_old_without_being_stale_actions() -> None:
    graph = Graph()
    graph.run(5, kind=CommandKind.HELD, age_ms=900.0)
    assert graph.report.stale_published == 0
    assert graph.report.age_at_publish.p50 == pytest.approx(900.0)


def test_an_action_that_rests_on_nothing_is_stale() -> None:
    graph = Graph()
    arrival = moment(graph.clock)
    graph.monitor.command(CommandSeen(1, CommandKind.POLICY, arrival.now_ns), arrival)
    assert graph.report.stale_published == 1
    assert graph.report.age_at_publish.count == 0


def test_an_age_that_nobody_saw_is_not_zero() -> None:
    """In HOLD without a command "p50 0 ms" would read as fresh observation."""
    graph = Graph()
    graph.run(3, kind=CommandKind.POLICY, age_ms=80.0)
    assert graph.diagnostic("observation age").message.startswith("p50 80 ms, p99 80 ms")
    held = Graph(replace(RUNNING, state=PolicyState.HOLD))
    assert held.diagnostic("latency").message == "no inference in the window"
    said = held.diagnostic("observation age")
    assert (said.level, said.message) == (Level.OK, "no command with an observation in the window")
    assert dict(said.values)["at publish p50"] == "-"


def test_a_corrected_action_has_two_ages() -> None:
    graph = Graph()
    graph.run(50, age_ms=250.0)
    graph.run(50, age_ms=250.0, correction_ms=40.0)
    age, correction = graph.report.age_at_publish, graph.report.correction_age
    assert (age.count, correction.count) == (100, 50)
    assert correction.max == pytest.approx(40.0)
    assert ("correction p50", "40.00 ms") in graph.diagnostic("observation age").values


def test_staleness_is_that_of_new_actions() -> None:
    graph = Graph()
    graph.run(100, staleness_ms=30.0)
    graph.run(10, kind=CommandKind.HELD, staleness_ms=999.0)
    assert graph.report.staleness.p50 == pytest.approx(30.0)
    assert graph.report.staleness.max == pytest.approx(30.0)
    assert ("staleness p50", "30.00 ms") in graph.diagnostic("observation age").values


@given(st.lists(st.sampled_from(["action", "held", "silent", "lost"]), min_size=1, max_size=80))
@settings(max_examples=100, deadline=None)
def test_missed_deadlines_are_the_periods_in_running_without_a_new_action(
    periods: list[str],
) -> None:
    graph = Graph()
    graph.run(1)
    for what in periods:
        if what in ("action", "held"):
            kind = CommandKind.POLICY if what == "action" else CommandKind.HELD
            graph.run(1, kind=kind)
        else:
            graph.sequence += what == "lost"  # published, but it never arrived
            graph.clock.advance(PERIOD)
    graph.run(1)
    report = graph.report
    assert report.missed_deadlines == periods.count("held") + periods.count("silent")
    assert report.lost_commands == periods.count("lost")


@pytest.mark.parametrize(
    "state", [s for s in PolicyState if s is not PolicyState.RUNNING], ids=lambda s: s.name
)
def test_no_deadline_is_missed_outside_running(state: PolicyState) -> None:
    graph = Graph(replace(RUNNING, state=state))
    graph.run(3, kind=CommandKind.HELD)
    graph.clock.advance(2.0)
    graph.run(3, kind=CommandKind.HELD)
    assert graph.report.missed_deadlines == 0


def test_the_silence_of_a_hold_is_no_row_of_missed_deadlines() -> None:
    graph = Graph()
    graph.run(10)
    graph.status(replace(RUNNING, state=PolicyState.HOLD))
    graph.run(20, kind=CommandKind.STOP)
    graph.clock.advance(5.0)
    graph.status()  # the latched status overtakes the first command
    graph.run(10)
    assert graph.report.missed_deadlines == 0
    assert graph.report.period_error.max == pytest.approx(0.0, abs=1e-6)


def test_a_clock_that_is_set_forward_misses_no_deadline() -> None:
    graph = Graph()
    graph.run(10)
    graph.clock.now += 3600 * SECOND
    graph.run(10)
    assert graph.report.missed_deadlines == 0


def test_simulated_time_counts_deadlines_in_simulated_time() -> None:
    graph = Graph(sim_time=True)
    graph.run(10)
    graph.clock.steady += 30 * SECOND  # the simulator took a break
    graph.run(10)
    graph.status()
    assert graph.report.missed_deadlines == 0
    graph.clock.now += 2 * round(PERIOD * SECOND)
    graph.run(1)
    assert graph.report.missed_deadlines == 2


def test_period_jitter_over_half_a_period_warns() -> None:
    graph = Graph()
    for i in range(40):
        graph.frame()
        graph.command()
        graph.clock.advance(0.02 if i % 2 else 0.08)
    assert graph.report.period_error.p50 == pytest.approx(30.0)
    assert "jitter" in graph.diagnostic("action rate").message


def test_many_missed_deadlines_warn_and_few_do_not() -> None:
    graph = Graph()
    graph.run(99)
    graph.run(1, kind=CommandKind.HELD)
    assert graph.diagnostic("action rate").level is Level.OK
    graph.run(20, kind=CommandKind.HELD)
    diagnostic = graph.diagnostic("action rate")
    assert diagnostic.level is Level.WARN
    assert "21 of 120 periods without an action" in diagnostic.message


def test_running_without_commands_is_an_error_within_the_timeout() -> None:
    graph = Graph(command_timeout_s=0.5)
    graph.run(5)
    graph.clock.advance(0.44)
    assert graph.diagnostic("action rate").level is Level.OK
    graph.clock.advance(0.1)
    diagnostic = graph.diagnostic("action rate")
    assert diagnostic.level is Level.ERROR
    assert "RUNNING, but no command for 0.6" in diagnostic.message


def test_a_leap_of_the_numbers_is_no_loss_of_as_many_commands() -> None:
    """One broken message must not fill a counter that a report cannot carry."""
    graph = Graph()
    graph.run(3)
    graph.sequence += 2**63
    graph.run(3)
    assert graph.report.lost_commands == 0
    assert (
        "sequence numbers repeated, went back or leapt" in graph.diagnostic("action rate").message
    )


def test_the_pause_between_two_episodes_is_no_silence_of_a_running_policy() -> None:
    graph = Graph(command_timeout_s=0.5)
    graph.run(5)
    graph.status(replace(RUNNING, state=PolicyState.WAITING, reason="the episode is over: success"))
    graph.clock.advance(3.0)
    graph.status()
    assert graph.diagnostic("action rate").level is Level.OK
    graph.clock.advance(0.6)
    graph.status()
    assert "no command for 0.6" in graph.diagnostic("action rate").message


@pytest.mark.parametrize(
    ("state", "level"),
    [
        (PolicyState.INACTIVE, Level.OK),
        (PolicyState.WAITING, Level.WARN),
        (PolicyState.RUNNING, Level.OK),
        (PolicyState.HOLD, Level.ERROR),
        (PolicyState.FAULT, Level.ERROR),
    ],
)
def test_states_have_the_levels_of_the_definition(state: PolicyState, level: Level) -> None:
    graph = Graph(StatusSeen(state, reason="because"))
    diagnostic = graph.diagnostic("policy")
    assert diagnostic.level is level
    assert diagnostic.message == f"{state.name}: because" or level is Level.OK


def test_graphs_captured_in_service_warn_as_long_as_the_window() -> None:
    graph = Graph(replace(RUNNING, graphs_captured=3))  # before anybody looked
    graph.run(20)
    assert graph.diagnostic("policy").level is Level.OK
    assert ("graphs captured in service", "3") in graph.diagnostic("policy").values
    graph.status(replace(RUNNING, graphs_captured=5))
    said = graph.diagnostic("policy")
    assert said.level is Level.WARN
    assert "2 CUDA graphs captured in service, each while the robot waited" in said.message
    for _ in range(11):
        graph.run(20)
        graph.status(replace(RUNNING, graphs_captured=5))
    assert graph.diagnostic("policy").level is Level.OK
    graph.status(replace(RUNNING, graphs_captured=1))  # of a policy node that began anew
    assert "1 CUDA graphs captured" in graph.diagnostic("policy").message


def test_a_policy_that_says_nothing_any_more_is_an_error() -> None:
    graph = Graph()
    graph.clock.advance(3.5)
    diagnostic = graph.diagnostic("policy")
    assert diagnostic.level is Level.ERROR
    assert diagnostic.message.startswith("silent for 3.5 s, was RUNNING")


def test_a_policy_that_is_silent_while_it_loads_is_only_a_warning() -> None:
    graph = Graph(StatusSeen(PolicyState.UNCONFIGURED))
    graph.clock.advance(30.0)
    assert graph.diagnostic("policy").level is Level.WARN


def test_a_policy_never_heard_is_stale() -> None:
    assert Graph(status=None).diagnostic("policy").level is Level.STALE


def faults(graph: Graph) -> list[str]:
    """Subjects that a log has to tell of: those that a healthy graph does not come through."""
    return [d.name for d in graph.monitor.judge().diagnostics if d.level and not d.expected]


def test_what_a_healthy_graph_comes_through_is_expected_and_what_stays_so_is_not() -> None:
    """From before the policy's first status to its orderly end; each wait has its time."""
    graph = Graph(status=None)
    graph.monitor.publishers(())
    graph.clock.advance(2.9)
    assert faults(graph) == []
    graph.clock.advance(0.2)
    assert faults(graph) == ["policy"], "nobody is there"

    graph = Graph(StatusSeen(PolicyState.UNCONFIGURED, "loads its policy"))
    graph.clock.advance(2.0)
    graph.status(StatusSeen(PolicyState.WAITING, "waits for an instruction"))
    graph.clock.advance(2.9)
    assert faults(graph) == [], "the first image may take as long as that"
    graph.clock.advance(0.05)
    graph.status(graph.current)
    graph.clock.advance(0.2)
    assert faults(graph) == ["camera"]

    graph = Graph()
    graph.run(8)
    graph.clock.advance(4 * PERIOD)  # a machine that was busy while it began
    graph.run(2)
    assert graph.diagnostic("action rate").level is Level.WARN and faults(graph) == []
    graph.run(12)
    assert faults(graph) == ["action rate"], "within a second it should have found its pace"

    for state, found in ((PolicyState.INACTIVE, []), (PolicyState.RUNNING, ["policy"])):
        graph = Graph()
        graph.run(40)
        graph.status(replace(RUNNING, state=state))
        graph.monitor.publishers(())
        graph.monitor.policy_alive(False)
        assert [name for name in faults(graph) if name == "policy"] == found
    assert "action topic" in faults(graph)


def test_frozen_stamps_are_an_error_after_the_timeout_and_stop_the_rate() -> None:
    graph = Graph(window_s=2.0)
    graph.run(20)
    stamp = graph.clock.now
    for _ in range(60):
        graph.frame(stamp_ns=stamp)
        graph.clock.advance(PERIOD)
    diagnostic = graph.diagnostic("camera")
    assert diagnostic.level is Level.ERROR
    assert "stamps stand still for 3.0 s while images arrive" in diagnostic.message
    assert dict(diagnostic.values)["repeated stamps"] == "59"
    assert graph.report.camera_rate_hz == 0.0


def test_a_single_repeated_stamp_warns() -> None:
    graph = Graph()
    graph.run(5)
    graph.frame(stamp_ns=graph.clock.now)
    graph.frame(stamp_ns=graph.clock.now)
    diagnostic = graph.diagnostic("camera")
    assert diagnostic.level is Level.WARN
    assert "1 images with a repeated stamp" in diagnostic.message


def test_a_world_that_waits_shows_its_frame_again() -> None:
    """A simulation in lock-step publishes a frame until its answer comes, and its clock stands."""
    graph = Graph(sim_time=True)
    graph.run(5)
    for _ in range(60):
        graph.frame(stamp_ns=graph.clock.now)
        graph.clock.steady += round(PERIOD * 1e9)
    diagnostic = graph.diagnostic("camera")
    assert dict(diagnostic.values)["repeated stamps"] == "0"
    assert "stamp" not in diagnostic.message
    stamp = graph.clock.now
    for _ in range(3):  # its clock goes on, and the camera does not
        graph.clock.advance(PERIOD)
        graph.frame(stamp_ns=stamp)
    assert "3 images with a repeated stamp" in graph.diagnostic("camera").message


def test_a_bag_that_begins_again_counts_once() -> None:
    graph = Graph()
    start = graph.clock.now
    for loop in range(3):
        for i in range(10):
            graph.frame(stamp_ns=start + i * SECOND // 20 - 60 * SECOND)
            graph.clock.advance(PERIOD)
        assert dict(graph.diagnostic("camera").values)["out of order"] == str(loop)


def test_simulated_time_that_goes_back_makes_no_frame_out_of_order() -> None:
    graph = Graph(sim_time=True)
    graph.run(10)
    graph.clock.now -= 100 * SECOND
    graph.run(10)
    values = dict(graph.diagnostic("camera").values)
    assert values["out of order"] == "0"
    assert values["clock resets"] == "1"


def test_stamps_in_the_future_say_that_the_clocks_are_not_synchronized() -> None:
    graph = Graph()
    for _ in range(20):
        graph.frame(delay_ms=-40.0)
        graph.clock.advance(PERIOD)
    diagnostic = graph.diagnostic("camera")
    assert diagnostic.level is Level.ERROR
    assert "20 images stamped up to 40.0 ms in the future" in diagnostic.message
    assert graph.report.clock_offset_ms == pytest.approx(-40.0)


@pytest.mark.parametrize(
    ("rate", "delay_ms", "ahead"), [(20.0, -4.9, 0), (20.0, -5.1, 1), (100.0, -2.6, 1)]
)
def test_epsilon_is_5_ms_or_a_quarter_period(rate: float, delay_ms: float, ahead: int) -> None:
    graph = Graph(replace(RUNNING, control_rate_hz=rate))
    graph.frame(delay_ms=delay_ms)
    assert dict(graph.diagnostic("camera").values)["stamps in the future"] == str(ahead)


def test_clocks_are_not_compared_in_simulated_time() -> None:
    graph = Graph(sim_time=True)
    for _ in range(5):
        graph.frame(delay_ms=-50.0)  # the image overtook /clock
        graph.clock.advance(PERIOD)
    assert graph.diagnostic("camera").level is Level.OK


@given(
    drift=st.floats(-30.0, 30.0).filter(lambda d: abs(d) >= 2.0 or d == 0.0),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=20, deadline=None)
def test_drift_is_measured_through_the_noise_of_transport(drift: float, seed: int) -> None:
    """Receipt noise of 0 to 20 ms, as on a busy machine, must not look like a drift."""
    noise = np.random.default_rng(seed).exponential(3.0, 4 * 60 * 10)
    offset = ClockOffset(window_s=10.0, jump_ms=15.0)
    for i, late in enumerate(noise):
        steady = i * SECOND // 10
        offset.add(steady, round((2.0 + drift * i / 600 + min(late, 20.0)) * MS))
    assert offset.jumps.total == 0
    assert offset.drift_ms_per_min() == pytest.approx(drift, abs=0.5)


def test_a_step_in_the_load_is_no_drift() -> None:
    offset = ClockOffset(window_s=10.0, jump_ms=15.0)
    for i in range(3000):
        offset.add(i * SECOND // 10, (2 if i < 1500 else 9) * MS)
    assert offset.drift_ms_per_min() == 0.0


def test_a_jump_flushes_the_history() -> None:
    offset = ClockOffset(window_s=10.0, jump_ms=5.0)
    for i in range(3000):
        offset.add(i * SECOND // 10, (2 if i < 2500 else 900) * MS)
    assert offset.jumps.total == 1
    assert offset.drift_ms_per_min() == 0.0


def test_drift_over_the_limit_warns() -> None:
    graph = Graph()
    for i in range(2000):
        graph.frame(delay_ms=2.0 + 3.0 * i / 600)
        graph.clock.advance(0.1)
    diagnostic = graph.diagnostic("camera")
    assert diagnostic.level is Level.WARN
    assert "drifts by +3.0 ms/min" in diagnostic.message


@given(st.lists(st.tuples(st.integers(0, 400), st.floats(-1e3, 1e3)), min_size=1))
@settings(max_examples=100, deadline=None)
def test_sliding_minimum_is_the_minimum_of_the_window(samples: list[tuple[int, float]]) -> None:
    sliding, now, kept = SlidingMinimum(1.0), 0, []
    for step_ms, value in samples:
        now += step_ms * MS
        sliding.add(now, value)
        kept.append((now, value))
        assert sliding.value(now) == min(v for t, v in kept if t >= now - SECOND)
    assert sliding.value(now + 2 * SECOND) is None


@pytest.mark.parametrize("state", list(PolicyState), ids=lambda s: s.name)
def test_a_silent_camera_is_an_error_while_something_may_move(state: PolicyState) -> None:
    graph = Graph(replace(RUNNING, state=state), camera_timeout_s=0.5)
    graph.run(5)
    graph.clock.advance(0.6)
    moving = state >= PolicyState.RUNNING
    assert graph.diagnostic("camera").level is (Level.ERROR if moving else Level.WARN)


@pytest.mark.parametrize("seen", [True, False])
def test_between_two_episodes_a_silent_camera_is_no_finding(seen: bool) -> None:
    graph = Graph(camera_timeout_s=0.5)
    graph.run(20 if seen else 0)
    graph.status(replace(RUNNING, state=PolicyState.WAITING, reason="the episode is over: success"))
    graph.clock.advance(2.0)
    assert graph.diagnostic("camera").level is Level.OK
    graph.status(replace(RUNNING, state=PolicyState.WAITING, reason="waits for a fresh frame"))
    assert graph.diagnostic("camera").level is Level.WARN


def test_the_second_publisher_is_named_from_the_graph() -> None:
    graph = Graph()
    graph.monitor.publishers((PublisherSeen("/policy", b"p"), PublisherSeen("/teleop", b"t")))
    graph.run(5)
    diagnostic = graph.diagnostic("action topic")
    assert diagnostic.level is Level.ERROR
    assert "/policy" in diagnostic.message
    assert "/teleop" in diagnostic.message
    assert graph.report.action_publishers == ("/policy", "/teleop")


def test_a_sender_that_the_graph_does_not_list_is_found_by_its_gid() -> None:
    graph = Graph()
    for _ in range(5):
        graph.run(1)
        graph.run(1, publisher=b"\xab\xcd")
    diagnostic = graph.diagnostic("action topic")
    assert diagnostic.level is Level.ERROR
    assert "abcd" in diagnostic.message


def test_sequences_are_those_of_each_writer() -> None:
    graph = Graph()
    graph.run(1)
    graph.sequence = 1000
    graph.run(1, publisher=b"t")
    graph.sequence = 1
    graph.run(1)
    assert graph.report.lost_commands == 0


def test_a_restarted_policy_is_no_second_publisher() -> None:
    graph = Graph()
    graph.run(5)
    graph.sequence = 0
    graph.monitor.publishers((PublisherSeen("/policy", b"q"),))
    graph.run(5, publisher=b"q")
    assert graph.diagnostic("action topic").level is Level.OK
    assert graph.report.lost_commands == 0


def test_a_killed_namesake_that_the_graph_still_lists_is_only_a_warning() -> None:
    graph = Graph()
    graph.run(5)
    graph.clock.advance(2.5)
    graph.monitor.publishers((PublisherSeen("/policy", b"p"), PublisherSeen("/policy", b"q")))
    graph.run(5, publisher=b"q")
    assert graph.diagnostic("action topic").level is Level.WARN


def listed(topic: str, *nodes: str) -> dict[str, tuple[PublisherSeen, ...]]:
    return {topic: tuple(PublisherSeen(node, bytes([i])) for i, node in enumerate(nodes))}


def test_a_second_writer_of_an_output_is_named_with_the_topic() -> None:
    graph = Graph()
    graph.monitor.outputs(
        listed("/servo/twist", "/policy", "/joy") | listed("/policy/gripper", "/policy")
    )
    graph.run(5)
    diagnostic = graph.diagnostic("outputs")
    assert diagnostic.level is Level.ERROR
    assert diagnostic.message == "/servo/twist has 2 publishers: /policy, /joy; stop all but one"
    assert dict(diagnostic.values) == {
        "/servo/twist": "/policy, /joy",
        "/policy/gripper": "/policy",
    }
    assert graph.report.output_publishers == (
        "/servo/twist /policy /joy",
        "/policy/gripper /policy",
    )
    assert f"outputs: {diagnostic.message}" in graph.report.problems
    graph.monitor.outputs(listed("/servo/twist", "/policy"))
    assert graph.diagnostic("outputs").level is Level.OK


def test_a_restarted_policy_is_no_second_writer_of_its_outputs() -> None:
    """The killed one is listed for seconds under the same name; two that both live are found by
    their commands on the action topic."""
    graph = Graph()
    graph.monitor.outputs(listed("/policy/twist", "/policy", "/policy"))
    assert graph.diagnostic("outputs").level is Level.OK
    assert graph.report.output_publishers == ("/policy/twist /policy",)
    graph.monitor.outputs({})
    assert graph.diagnostic("outputs").message == "none beside the action topic"


def test_strangers_cannot_fill_the_memory() -> None:
    graph = Graph()
    for i in range(200):
        graph.run(1, publisher=i.to_bytes(2, "big"))
    assert len(graph.monitor._commands._last) <= MAX_WRITERS
    assert len(graph.monitor._writers._senders) <= MAX_WRITERS


def test_frozen_stamps_are_an_error_beside_a_coarse_clock_too() -> None:
    """/clock goes on only with every third image."""
    graph = Graph(sim_time=True)
    graph.run(20)
    stamp = graph.clock.now
    for number in range(60):
        graph.frame(stamp_ns=stamp)
        graph.clock.steady += round(PERIOD * 1e9)
        graph.clock.now += round(3 * PERIOD * 1e9) if number % 3 == 2 else 0
    diagnostic = graph.diagnostic("camera")
    assert diagnostic.level is Level.ERROR
    assert "stamps stand still" in diagnostic.message


def test_a_frame_that_comes_again_once_clock_is_there_is_no_repeated_stamp() -> None:
    """In lock-step the first frames may be there before /clock is found."""
    graph = Graph(sim_time=True)
    stamp, begins = graph.clock.now, graph.clock.now
    for now in (0, 0, begins, begins):
        graph.clock.now = now
        graph.frame(stamp_ns=stamp)
        graph.clock.steady += round(PERIOD * 1e9)
    assert "repeated" not in graph.diagnostic("camera").message


def test_the_first_periods_of_an_episode_are_no_news() -> None:
    """Five of 35 without an action; 5 % of a window of 10 s are ten, and the eleventh is logged."""
    graph = Graph()
    graph.run(30)
    graph.run(5, kind=CommandKind.HELD)
    some = graph.diagnostic("action rate")
    assert (some.level, some.expected) == (Level.WARN, True)
    graph.run(5, kind=CommandKind.HELD)
    assert graph.diagnostic("action rate").expected
    graph.run(1, kind=CommandKind.HELD)
    many = graph.diagnostic("action rate")
    assert "11 of 41 periods without an action" in many.message and not many.expected


def test_a_repeated_sequence_warns() -> None:
    graph = Graph()
    graph.run(5)
    graph.sequence -= 1
    graph.run(1)
    assert "sequence numbers repeated" in graph.diagnostic("action rate").message


def test_stages_that_do_not_add_up_warn() -> None:
    graph = Graph()
    graph.run(3)
    assert graph.diagnostic("latency").level is Level.OK
    graph.run(1, stages=StagesSeen((1.0,) * len(STAGES), 7.2))
    assert "1 actions whose stages do not add up" in graph.diagnostic("latency").message


def test_inference_is_the_models_part_of_the_stages() -> None:
    stages = StagesSeen(tuple(10.0 * 2**i for i in range(len(STAGES))), 1270.0)
    assert stages.inference_ms == 40.0 + 80.0 + 160.0 + 320.0


def test_inference_that_max_age_leaves_no_room_for_warns() -> None:
    """A = 300, Tc = 50, K·T = 50: 200 ms are left."""
    graph = Graph()
    graph.run(20, stages=StagesSeen((0.0, 0.0, 0.0, 190.0, 0.0, 0.0, 0.0), 190.0))
    assert graph.diagnostic("latency").level is Level.OK
    graph.run(20, stages=StagesSeen((0.0, 0.0, 0.0, 210.0, 0.0, 0.0, 0.0), 210.0))
    diagnostic = graph.diagnostic("latency")
    assert diagnostic.level is Level.WARN
    assert "max_age leaves 200 ms" in diagnostic.message


def test_a_camera_too_slow_for_max_age_is_the_cameras_trouble_and_not_the_models() -> None:
    """Tc = 3 s beside A = 0.3 s: whatever inference takes, nothing can be left for it."""
    graph = Graph(camera_timeout_s=10.0)
    for _ in range(4):
        graph.frame()
        graph.command(stages=StagesSeen((0.0,) * len(STAGES), 0.0))
        graph.clock.advance(3.0)
    assert graph.diagnostic("latency").level is Level.OK
    assert graph.diagnostic("latency").message == "inference p99 0 ms"
    diagnostic = graph.diagnostic("camera")
    assert diagnostic.level is Level.WARN
    assert diagnostic.message.startswith(
        "0.3 Hz: an image every 3000 ms is too few for max_age 300 ms"
    )


def test_simulated_time_is_not_compared_with_measured_inference() -> None:
    """A world that waits, or is slow: images come seldom by our clock and not by its own."""
    graph = Graph(camera_timeout_s=10.0, sim_time=True)
    for _ in range(4):
        graph.frame()
        graph.command(stages=StagesSeen((0.0, 0.0, 0.0, 400.0, 0.0, 0.0, 0.0), 400.0))
        graph.clock.advance(3.0)
    assert "max_age" not in graph.diagnostic("latency").message
    assert "max_age" not in graph.diagnostic("camera").message


def test_problems_leave_with_the_window() -> None:
    graph = Graph(window_s=2.0)
    graph.run(5)
    graph.run(1, age_ms=500.0)
    assert graph.report.level is Level.ERROR
    graph.run(60)
    report = graph.report
    assert report.level is Level.OK, report.problems
    assert report.stale_published == 1  # the total since the start stays


def test_the_worst_level_is_the_most_severe_one() -> None:
    assert worst([]) is Level.OK
    assert worst([Level.STALE, Level.WARN]) is Level.STALE
    assert worst([Level.STALE, Level.ERROR, Level.OK]) is Level.ERROR


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window_s", 0.0),
        ("window_s", float("nan")),
        ("camera_timeout_s", -1.0),
        ("max_age_ms", -1.0),
        ("missed_fraction", 1.5),
        ("drift_ms_per_min", 0.0),
    ],
)
def test_a_limit_that_cannot_be_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        MonitorConfig(**{name: value})


# Two rates


TWO_RATES = replace(RUNNING, action_rate_hz=20.0, control_rate_hz=100.0)


def two_rates(
    seconds: float, status: StatusSeen = TWO_RATES, missing: int = 0, **command: object
) -> Graph:
    """Chunks of ten actions, each made by as many commands as the rates say; of the commands of
    every action so many, ``missing``, find none."""
    graph = Graph(status)
    period, ratio = 1 / status.control_rate_hz, status.action_rate_hz / status.control_rate_hz
    begun = graph.clock.now
    for tick in range(round(seconds * status.control_rate_hz)):
        action, phase = divmod(tick * ratio + 1e-9, 1.0)
        chunk, index = divmod(int(action), 10)
        if tick % round(status.control_rate_hz) == 0:
            graph.status(status)
        if phase < ratio:
            graph.frame()
        held = round(phase / ratio) < missing
        observed = begun + round(chunk * 10 / status.action_rate_hz * SECOND) - 60 * MS
        kind = CommandKind.HELD if held else CommandKind.POLICY
        graph.command(kind, observed_ns=observed, chunk_index=index, **command)
        graph.clock.advance(period)
    return graph


def test_commands_of_one_action_are_one_new_action() -> None:
    graph = two_rates(10.0, replace(TWO_RATES, max_age_ms=700.0))
    report = graph.report
    assert report.level is Level.OK, report.problems
    assert report.command_rate_hz == pytest.approx(100.0)
    assert report.action_rate_hz == pytest.approx(20.0, rel=0.01)
    assert report.camera_rate_hz == pytest.approx(20.0, rel=0.01)
    assert (report.commands, report.actions, report.missed_deadlines) == (1000, 200, 0)
    assert report.age_at_publish.count == report.staleness.count == 1000  # every command's
    assert report.inference.count == 200
    assert report.period_error.p99 < 0.01
    diagnostic = graph.diagnostic("action rate")
    assert diagnostic.message == "20.0 new actions/s, 100.0 commands/s"
    assert dict(diagnostic.values)["asked"] == "actions 20 Hz, commands 100 Hz"


def test_fewer_commands_than_actions_miss_nothing() -> None:
    """50 to 20: every command is another action, three of five actions are passed on the way."""
    slow = replace(TWO_RATES, action_rate_hz=50.0, control_rate_hz=20.0, max_age_ms=700.0)
    graph = two_rates(5.0, slow)
    report = graph.report
    assert report.level is Level.OK, report.problems
    assert report.action_rate_hz == pytest.approx(20.0)
    assert report.missed_deadlines == 0
    values = dict(graph.diagnostic("action rate").values)
    assert values["asked"] == "actions 50 Hz, commands 20 Hz"


def test_equal_rates_are_one_rate() -> None:
    for known in (0.0, 20.0):
        graph = Graph(replace(RUNNING, action_rate_hz=known))
        graph.run(20)
        diagnostic = graph.diagnostic("action rate")
        assert diagnostic.message == "20.0 new actions/s"
        assert dict(diagnostic.values)["asked"] == "20 Hz"


def test_deadlines_are_counted_in_control_periods_of_those_that_there_were() -> None:
    """One command of five finds no action: a fifth of the periods, not five fifths of the
    actions."""
    graph = two_rates(5.0, replace(TWO_RATES, max_age_ms=700.0), missing=1)
    assert graph.report.missed_deadlines == 100
    diagnostic = graph.diagnostic("action rate")
    assert diagnostic.level is Level.WARN
    assert "100 of 500 periods without an action" in diagnostic.message


def test_jitter_is_judged_by_the_control_period() -> None:
    graph = Graph(TWO_RATES)
    for i in range(200):
        graph.command(observed_ns=graph.clock.now - 80 * MS)
        graph.clock.advance(0.002 if i % 2 else 0.018)
    assert "period jitter p99 8.0 ms" in graph.diagnostic("action rate").message


def test_an_action_grows_older_with_each_of_its_commands() -> None:
    """Those that are too old count, whichever of the action's they are."""
    graph = Graph(TWO_RATES)
    observed = graph.clock.now - 275 * MS
    for _ in range(5):
        graph.command(observed_ns=observed, transport_ms=0.0)
        graph.clock.advance(0.01)
    assert graph.report.stale_published == 2  # 295 and 285 ms are not, 305 and 315 are
    said = graph.diagnostic("observation age")
    assert "2 commands on observations older than 300 ms" in said.message


def test_the_room_for_inference_is_counted_in_actions() -> None:
    """A = 300, Tc = 50, K·T = 50 at 20 actions a second: 200 ms, not 240, are left."""
    stages = StagesSeen((0.0, 0.0, 0.0, 210.0, 0.0, 0.0, 0.0), 210.0)
    graph = two_rates(2.0, replace(TWO_RATES, max_age_ms=300.0), stages=stages)
    assert "max_age leaves 200 ms" in graph.diagnostic("latency").message
    slow = replace(TWO_RATES, action_rate_hz=50.0, control_rate_hz=20.0)
    graph = two_rates(2.0, slow, stages=stages)
    assert "max_age leaves 200 ms" in graph.diagnostic("latency").message


def test_a_camera_may_be_ahead_by_a_quarter_of_an_action() -> None:
    """At 100 commands a second a clock that is 4 ms ahead is no other than at 20."""
    graph = Graph(TWO_RATES)
    for _ in range(20):
        graph.frame(delay_ms=-4.0)
        graph.clock.advance(PERIOD)
    assert "clocks not synchronized" not in graph.diagnostic("camera").message
    graph.frame(delay_ms=-6.0)
    assert "clocks not synchronized" in graph.diagnostic("camera").message


def _slow(inference_ms: float, missing: bool = True, **config: object) -> str:
    graph = Graph(**config)
    stages = StagesSeen((10.0, 0.0, 0.0, inference_ms, 0.0, 0.0, 0.0), inference_ms + 10.0)
    for index in range(20):
        graph.run(1, stages=stages, chunk_index=0 if missing else index)
        if missing:
            graph.run(1, kind=CommandKind.HELD)
    return graph.diagnostic("latency").message


def test_a_machine_slower_than_real_time_is_named() -> None:
    assert (
        "this machine is slower than real time: inference takes 92 ms at the median, an action"
        " lasts 50 ms; dtype auto, another decoding or less beside it may help"
    ) in _slow(92.0)
    assert "real time" not in _slow(40.0), "late for another reason"
    assert "real time" not in _slow(92.0, missing=False), "a chunk lasts longer"
    assert "real time" not in _slow(92.0, sim_time=True), "the world waits"
