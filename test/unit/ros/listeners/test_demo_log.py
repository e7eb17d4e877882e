"""The demo's figures: of the episode alone, whatever order its topics arrived in."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from vla_ros.core.clock import MS, SECOND, Moment
from vla_ros.core.types import EPISODE_OVER, CommandKind, Inference, PolicyState, Timeline
from vla_ros.ros.listeners.demo_log import EpisodeChange, EpisodeFigures, EpisodeLog
from vla_ros.runtime.monitor.seen import CommandSeen, Level, PublisherSeen, StatusSeen

START = 1_000 * SECOND
PERIOD = SECOND // 20
EPISODE = EpisodeChange(
    number=1,
    stamp_ns=START,
    running=True,
    ended="",
    reason="",
    task="pick_red_cube",
    instruction="put it there",
    initial_state=0,
    step=0,
    max_steps=300,
    control_steps=0,
)
RUNNING = StatusSeen(PolicyState.RUNNING, control_rate_hz=20.0, max_age_ms=300.0)
PUBLISHERS = (PublisherSeen("/policy", b"p"),)


def at(tick: float) -> Moment:
    """Steady time counts from another origin than stamps."""
    return Moment(START + round(tick * PERIOD), 5 * SECOND + round(tick * PERIOD))


def command(tick: int, kind: CommandKind = CommandKind.POLICY, age_ms: float = 40.0) -> CommandSeen:
    published = START + tick * PERIOD
    return CommandSeen(tick + 100, kind, published, published - round(age_ms * MS), publisher=b"p")


def scene(log: EpisodeLog) -> list[Callable[[], None]]:
    """An episode of 40 periods: warm-up before, old commands after."""
    calls = [
        lambda: log.add_status(replace(RUNNING, worker_restarts=2), at(-5)),
        lambda: log.add_episode(replace(EPISODE, running=False), at(-4)),
        lambda: log.add_episode(EPISODE, at(0)),
    ]
    stops = [command(i, CommandKind.STOP, age_ms=900.0) for i in range(-4, 2)]
    acts = [command(i) for i in range(2, 41)]
    late = [command(i, age_ms=2_000.0) for i in range(41, 50)]
    for seen in (*stops, *acts, *late):
        calls.append(lambda seen=seen: log.add_command(seen, at(seen.sequence - 100 + 0.05)))
    for i in range(-3, 45):
        calls.append(lambda i=i: log.add_frame(START + i * PERIOD, at(i + 0.1)))
    end = replace(
        EPISODE, running=False, ended="success", step=40, control_steps=40, stamp_ns=at(40.5).now_ns
    )
    calls.append(lambda: log.add_episode(end, at(40.5)))
    return calls


def check(measured: EpisodeFigures) -> None:
    report = measured.report
    assert measured.episode is not None
    assert measured.episode.ended == "success"
    assert report.actions == report.commands == 39
    assert report.stale_published == report.missed_deadlines == report.lost_commands == 0
    assert report.age_at_publish.p50 == pytest.approx(40.0)
    assert report.age_at_publish.max == pytest.approx(40.0)
    assert report.command_rate_hz == pytest.approx(20.0)
    assert report.camera_rate_hz == pytest.approx(20.0)
    assert measured.wall_s == pytest.approx(38.45 * PERIOD / SECOND)
    assert measured.worker_restarts == 0
    assert report.level is Level.OK, report.problems


def test_only_the_episode_counts() -> None:
    log = EpisodeLog(lockstep=False)
    for call in scene(log):
        call()
    check(log.measure(PUBLISHERS, at(60)))


def test_the_end_may_be_read_before_the_commands_that_led_there() -> None:
    log = EpisodeLog(lockstep=False)
    calls = scene(log)
    for call in (*calls[:3], calls[-1], *calls[3:-1]):
        call()
    check(log.measure(PUBLISHERS, at(60)))


def test_topics_that_overtake_each_other_change_no_figure() -> None:
    for seed in range(5):
        log = EpisodeLog(lockstep=False)
        calls = scene(log)
        commands, others = calls[3:52], [*calls[:3], *calls[52:]]
        merged = list(others)
        picks = sorted(random.Random(seed).choices(range(len(merged)), k=len(commands)))
        for offset, (index, call) in enumerate(zip(picks, commands, strict=True)):
            merged.insert(index + offset, call)
        for call in merged:
            call()
        check(log.measure(PUBLISHERS, at(60)))


def test_held_and_stale_commands_of_the_episode_are_counted() -> None:
    log = EpisodeLog(lockstep=False)
    log.add_status(RUNNING, at(-1))
    log.add_episode(EPISODE, at(0))
    log.add_command(command(1), at(1))
    log.add_command(command(2, CommandKind.HELD), at(2))
    log.add_command(command(3, age_ms=301.0), at(3))
    log.add_status(replace(RUNNING, worker_restarts=1), at(4))
    report = log.measure(PUBLISHERS, at(5)).report
    assert (report.missed_deadlines, report.stale_published, report.actions) == (1, 1, 2)
    assert log.measure(PUBLISHERS, at(5)).worker_restarts == 1


def test_news_of_the_rest_that_overtake_the_end_change_no_figure() -> None:
    rest = replace(RUNNING, state=PolicyState.WAITING, reason=f"{EPISODE_OVER}: success")
    problems = []
    for rests in (False, True):
        log = EpisodeLog(lockstep=False)
        log.add_status(RUNNING, at(-1))
        log.add_episode(EPISODE, at(0))
        for i in range(1, 11):
            log.add_command(command(i, CommandKind.HELD if i % 2 else CommandKind.POLICY), at(i))
        if rests:
            log.add_status(rest, at(10.5))
        end = replace(EPISODE, running=False, ended="success", stamp_ns=at(10.4).now_ns)
        log.add_episode(end, at(10.6))
        measured = log.measure(PUBLISHERS, at(60))
        problems.append(measured.report.problems)
        assert measured.status == RUNNING
    assert problems[0] == problems[1] and "periods without an action" in problems[0][0]


def test_another_episode_begins_anew() -> None:
    log = EpisodeLog(lockstep=False)
    for call in scene(log):
        call()
    log.add_episode(replace(EPISODE, number=2, running=True, stamp_ns=at(60).now_ns), at(60))
    assert log.measure(PUBLISHERS, at(61)).report.actions == 0
    log.add_command(command(62), at(62))
    assert log.measure(PUBLISHERS, at(63)).report.actions == 1


def test_an_episode_in_which_every_action_was_blocked_is_measured_from_its_first_frame() -> None:
    log = EpisodeLog(lockstep=False)
    log.add_status(replace(RUNNING, state=PolicyState.WAITING, actions_blocked=5), at(-1))
    log.add_episode(EPISODE, at(0))
    for i in range(-3, 45):
        log.add_frame(START + i * PERIOD, at(i + 0.1))
    said = "its observation is 652 ms old, max_age is 500 ms"
    blocked = replace(RUNNING, state=PolicyState.WAITING, actions_blocked=25, last_block=said)
    log.add_status(blocked, at(20))
    end = replace(
        EPISODE, running=False, ended="failure", step=40, control_steps=40, stamp_ns=at(40).now_ns
    )
    log.add_episode(end, at(40))
    # It rests by then, which is no part of the episode, but its counts are.
    log.add_status(replace(blocked, actions_blocked=45, reason=EPISODE_OVER), at(41))
    log.add_status(replace(blocked, actions_blocked=99), at(60))  # of what came afterwards
    measured = log.measure(PUBLISHERS, at(70))
    assert (measured.blocked, measured.last_block) == (40, said)
    assert measured.wall_s == pytest.approx(39.9 * PERIOD / SECOND)
    assert measured.report.camera_rate_hz == pytest.approx(20.0)
    assert (measured.report.actions, measured.report.commands) == (0, 0)
    assert measured.passes is None


@pytest.mark.parametrize("begun", [True, False])
def test_an_episode_of_which_nothing_was_seen_has_no_figures(begun: bool) -> None:
    log = EpisodeLog(lockstep=True)
    if begun:
        log.add_episode(EPISODE, at(0))
        log.add_command(command(1, CommandKind.STOP), at(1))
    measured = log.measure(PUBLISHERS, at(2))
    assert measured.report.commands == 0
    assert measured.wall_s is None
    assert measured.blocked is None
    assert measured.worker_restarts is None


def answer(tick: float, passes: int, actions: int = 1) -> Inference:
    return Inference(
        START + round(tick * PERIOD), np.zeros((actions, 7)), Timeline(0), target_passes=passes
    )


def test_passes_are_those_of_the_episode_s_own_frames_and_shared_by_what_they_serve() -> None:
    log = EpisodeLog(lockstep=False)
    for call in scene(log):
        call()
    log.add_inference(answer(-2, 100))  # of the episode before
    log.add_inference(answer(3, 2))
    log.add_inference(answer(4, 5))
    log.add_inference(answer(50, 100))  # of after its end
    assert log.measure(PUBLISHERS, at(60)).passes == pytest.approx(3.5)
    log.add_status(replace(RUNNING, pipeline_depth=7), at(60))
    assert log.measure(PUBLISHERS, at(60)).passes == pytest.approx(0.5)


def test_one_pass_for_a_chunk_serves_every_action_of_it() -> None:
    log = EpisodeLog(lockstep=False)
    for call in scene(log):
        call()
    log.add_inference(answer(3, 1, actions=8))
    assert log.measure(PUBLISHERS, at(60)).passes == pytest.approx(1 / 8)
