"""What an evaluation makes of what it heard of an episode, in whatever order it came."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import EPISODE_OVER, Command, CommandKind, Inference, PolicyState, Timeline
from vla_ros.data.episodes.records import Job, Setup
from vla_ros.data.episodes.tally import EpisodeTally
from vla_ros.ros.listeners.demo_log import EpisodeChange
from vla_ros.ros.listeners.evaluation_log import EvalLog, ReceivedCommand
from vla_ros.runtime.monitor.seen import StatusSeen
from vla_ros.sim.episode import Mode

LOCKSTEP, REALTIME = Setup(), Setup(mode=Mode.REALTIME)
JOB = Job("plain", "reach_red_cube", 0, 0)
PERIOD = 50 * MS
RUNNING = StatusSeen(PolicyState.RUNNING, "running")
EPISODE = EpisodeChange(
    number=3,
    stamp_ns=SECOND,
    running=True,
    ended="",
    reason="",
    task=JOB.task,
    instruction="reach",
    initial_state=0,
    step=0,
    max_steps=120,
    control_steps=0,
    action_rate_hz=20.0,
    control_rate_hz=20.0,
)


def over(steps: int, applied: int, achieved_hz: float = 20.0, **changes: object) -> EpisodeChange:
    ended = replace(
        EPISODE,
        stamp_ns=SECOND + steps * PERIOD,
        running=False,
        ended="failure",
        reason="not solved within 120 steps",
        step=steps,
        control_steps=steps,
        applied=applied,
        achieved_rate_hz=achieved_hz,
    )
    return replace(ended, **changes)  # type: ignore[arg-type]


def heard(
    frame_ns: int, kind: CommandKind = CommandKind.POLICY, value: float = 0.0, at_ns: int = 0
) -> ReceivedCommand:
    action = np.full(7, value)
    command = Command(kind, action, 0, 1, 0, frame_ns, stamp_ns=frame_ns, latest_ns=frame_ns)
    return ReceivedCommand(command, at_ns)


def said(stamp_ns: int) -> Inference:
    took = Timeline(0).mark("decode", 5 * MS)
    return Inference(stamp_ns, np.zeros((1, 7)), took, (7, 8), 2, 0, (1, 1), (1, 0))


def log(setup: Setup, status: StatusSeen | None = RUNNING) -> EvalLog:
    out = EvalLog(setup, 3, status)
    out.add_episode(EPISODE)
    return out


# Lock-step


def test_in_lockstep_the_first_answer_to_every_frame_was_executed_in_order() -> None:
    frames = [SECOND + step * PERIOD for step in range(4)]
    it = log(LOCKSTEP, replace(RUNNING, decoding="speculative"))
    it.add_episode(over(3, 3))  # the end overtakes the commands
    it.add_command(heard(SECOND - PERIOD, value=9.0))  # of the episode before
    it.add_command(heard(frames[1], value=0.2))
    it.add_command(heard(frames[0], value=0.1))
    it.add_command(heard(frames[0], value=0.1))  # the frame came again, and so did its answer
    assert not it.complete()
    it.add_command(heard(frames[2], value=0.3))
    it.add_command(heard(frames[3], value=0.4))  # to the frame at the end: too late
    assert not it.complete()  # what was computed is not known yet
    for frame in frames:
        it.add_inference(said(frame))
    assert it.complete()
    record = it.record(JOB, 1.0)
    expected = EpisodeTally()
    for value, frame in zip((0.1, 0.2, 0.3), frames, strict=False):
        expected.command(heard(frame, value=value).command, frame)
    wanted = expected.record(JOB, success=False, reason="", max_steps=120, wall_s=0.15)
    assert record.action_digest == wanted.action_digest
    assert (record.steps, record.held, record.passes, record.frames) == (3, 0, 6, 3)
    assert (record.drafted, record.accepted) == ((3, 3), (3, 0))
    assert record.wall_s == pytest.approx(0.15)
    assert (record.inference_ms.count, record.inference_ms.p50) == (3, 5.0)
    assert (record.success, record.reason, record.error) == (False, "step limit", "")
    assert record.decoding == "speculative"


def test_every_inference_counts_also_those_that_no_command_names() -> None:
    """The commands of an ensemble name the oldest of the chunks that they rest on."""
    it = log(LOCKSTEP)
    frames = [SECOND + step * PERIOD for step in range(5)]
    for frame in frames[:4]:
        command = replace(heard(frame).command, stamp_ns=frames[0])
        it.add_command(ReceivedCommand(command, 0))
    for frame in frames:  # the last one is of the end: no step follows
        it.add_inference(replace(said(frame), actions=np.zeros((8, 7))))
    it.add_episode(over(4, 4))
    record = it.record(JOB, 1.0)
    assert (record.frames, record.inference_ms.count, record.inference_ms.p50) == (4, 4, 5.0)


def test_a_pipeline_s_last_word_is_of_no_use() -> None:
    """It speaks of the frame two before the one that it is shown."""
    it = log(LOCKSTEP, replace(RUNNING, pipeline_depth=3))
    frames = [SECOND + step * PERIOD for step in range(5)]
    for frame in frames:
        it.add_command(heard(frame, CommandKind.HELD))
    for frame in frames[:3]:
        it.add_inference(said(frame))
    it.add_episode(over(4, 0))
    assert it.record(JOB, 1.0).frames == 2


def test_commands_that_were_not_heard_are_no_secret() -> None:
    it = log(LOCKSTEP)
    it.add_command(heard(SECOND))
    it.add_episode(over(2, 2))
    assert not it.complete()
    assert it.record(JOB, 1.0).error == "2 actions were executed, 1 were heard"


# Real time


def clocked(status: StatusSeen | None = RUNNING) -> EvalLog:
    it = log(REALTIME, status)
    it.add_frame(SECOND - 5 * SECOND)  # of the episode before
    it.add_frame(SECOND - MS)  # the first frame, a moment before the bridge says so
    for step in range(1, 6):
        it.add_frame(SECOND + step * PERIOD)
    return it


def test_a_step_takes_the_newest_action_since_the_one_before() -> None:
    it = clocked()
    at = SECOND + 5 * MS
    it.add_command(heard(SECOND - 10 * SECOND, at_ns=SECOND - 2 * MS))  # before it began
    it.add_command(heard(SECOND, value=0.1, at_ns=at))
    it.add_command(heard(SECOND, value=0.2, at_ns=at + 10 * MS))  # replaces it
    it.add_command(heard(SECOND, CommandKind.HELD, at_ns=at + 20 * MS))  # replaces nothing
    it.add_command(heard(SECOND, CommandKind.HELD, at_ns=at + 2 * PERIOD))
    it.add_command(heard(SECOND + 3 * PERIOD, value=0.3, at_ns=at + 3 * PERIOD))
    it.add_episode(over(5, 2))
    assert it.complete()
    record = it.record(JOB, 9.0)
    assert record.age_ms.count == 2
    assert record.age_ms.quantile(0) == pytest.approx(50.0)
    assert record.age_ms.quantile(100) == pytest.approx(50.0)
    assert (record.steps, record.held) == (5, 3)
    assert record.wall_s == pytest.approx(0.25)
    assert record.rate_hz == pytest.approx(8.0)
    assert record.reason == "step limit"


def test_what_the_camera_shows_after_the_end_is_no_step() -> None:
    it = log(REALTIME)
    for step in range(3):
        it.add_frame(SECOND + step * PERIOD)
        it.add_command(heard(SECOND + step * PERIOD, at_ns=SECOND + step * PERIOD + MS))
    it.add_episode(over(2, 2))
    for step in range(3, 40):  # the still world, and a policy that goes on
        it.add_frame(SECOND + step * PERIOD)
        it.add_command(heard(SECOND + step * PERIOD, at_ns=SECOND + step * PERIOD + MS))
    record = it.record(JOB, 9.0)
    assert it.steps == record.steps == record.age_ms.count == 2
    assert it.step_of(SECOND + 2 * PERIOD) == 2
    assert it.step_of(SECOND + 3 * PERIOD) is None


def test_a_simulation_that_cannot_keep_up_is_named_also_where_the_task_was_solved() -> None:
    slow = "the simulation ran at 12.5 of 20 Hz"
    it = clocked()
    it.add_episode(over(5, 0, achieved_hz=12.5))
    assert it.record(JOB, 1.0).reason.endswith(f"; {slow}")
    it = clocked()
    it.add_command(heard(SECOND, at_ns=SECOND + MS))
    it.add_episode(over(5, 1, achieved_hz=12.5, ended="success", reason=""))
    record = it.record(JOB, 1.0)
    assert (record.success, record.reason) == (True, f"success; {slow}")
    assert record.steps / record.wall_s == pytest.approx(12.5)
    it = clocked()
    it.add_episode(over(5, 0, achieved_hz=19.5, ended="success", reason=""))
    assert it.record(JOB, 1.0).reason == "success"


# Control rates that differ from the action rate


def finer(steps: int, applied: int, **changes: object) -> EpisodeChange:
    """End of an episode of so many control steps at 100 Hz."""
    rates = {"control_rate_hz": 100.0, "achieved_rate_hz": 100.0, "control_steps": steps}
    stamp = SECOND + steps * 10 * MS
    return over(steps // 5, applied, **{**rates, "stamp_ns": stamp, **changes})


def test_a_record_counts_actions_whatever_the_control_rate_in_lockstep() -> None:
    it = log(LOCKSTEP)
    frames = [SECOND + step * 10 * MS for step in range(25)]
    for number, frame in enumerate(frames):
        kind = CommandKind.POLICY if number >= 10 else CommandKind.HELD
        it.add_command(replace(heard(frame, kind), received_ns=frame))
    for frame in frames[:-1]:
        it.add_inference(said(frame))
    it.add_episode(finer(25, 15))
    assert not it.complete()  # a frame without its answer
    it.add_inference(said(frames[-1]))
    assert it.complete()
    record = it.record(JOB, 9.0)
    assert (record.steps, record.max_steps, record.held) == (5, 120, 2)
    assert record.age_ms.count == 15
    assert record.wall_s == pytest.approx(0.25)
    assert record.rate_hz == pytest.approx(3 / 0.25)
    assert record.error == ""
    assert it.step_of(SECOND + 70 * MS) == 7


def test_a_record_counts_actions_whatever_the_control_rate_in_real_time() -> None:
    it = log(REALTIME)
    for step in range(26):
        stamp = SECOND + step * 10 * MS
        it.add_frame(stamp)
        if step >= 10:
            it.add_command(heard(stamp, at_ns=stamp + MS))
    it.add_episode(finer(25, 15, reason="", ended="success"))
    assert it.complete()
    record = it.record(JOB, 9.0)
    assert (record.steps, record.held, record.reason) == (5, 2, "success")
    assert record.rate_hz == pytest.approx(3 / 0.25)
    it = log(REALTIME)
    it.add_episode(finer(25, 15, achieved_rate_hz=60.0))
    assert it.record(JOB, 1.0).reason.endswith("the simulation ran at 60.0 of 100 Hz")


def test_a_pipeline_is_as_many_actions_deep() -> None:
    it = log(LOCKSTEP, replace(RUNNING, pipeline_depth=3, control_rate_hz=100.0))
    for step in range(25):
        it.add_command(heard(SECOND + step * 10 * MS, CommandKind.HELD))
    for action in range(5):
        it.add_inference(said(SECOND + action * PERIOD))
    it.add_episode(finer(25, 0))
    assert it.record(JOB, 1.0).frames == 3  # of the last two nothing could follow


# What ails the policy


def test_the_policy_s_state_counts_as_of_the_end_and_its_counters_as_of_afterwards() -> None:
    before = replace(RUNNING, actions_clamped=7)
    it = clocked(before)
    it.add_status(StatusSeen(PolicyState.HOLD, "observation age 612 ms", actions_clamped=8))
    rest = StatusSeen(PolicyState.WAITING, f"{EPISODE_OVER}: step limit", actions_clamped=9)
    it.add_status(rest)  # the policy heard of the end before we did
    it.add_episode(over(5, 0))
    it.add_status(StatusSeen(PolicyState.WAITING, "waits", actions_clamped=10))
    record = it.record(JOB, 1.0)
    assert record.reason == "step limit, policy HOLD: observation age 612 ms"
    assert record.clamped == 3


@pytest.mark.parametrize("setup", [LOCKSTEP, REALTIME], ids=["lockstep", "realtime"])
def test_what_breaks_is_a_failure_with_its_reason(setup: Setup) -> None:
    it = log(setup)
    record = it.record(JOB, 2.5, "policy was ended by SIGKILL")
    assert (record.success, record.steps, record.wall_s) == (False, 0, 2.5)
    assert record.reason == record.error == "policy was ended by SIGKILL"
    record = EvalLog(setup, 0, None).record(JOB, 0.0, "the bridge refused: no such task")
    assert record.reason == record.error == "the bridge refused: no such task"


def test_what_breaks_after_the_end_does_not_change_the_outcome() -> None:
    it = clocked()
    it.add_episode(over(5, 0, ended="success", reason=""))
    it.add_episode(over(9, 0))  # nothing that follows counts
    record = it.record(JOB, 1.0, "policy/reset did not answer")
    assert (record.success, record.reason) == (True, "success")
    assert record.error == "policy/reset did not answer"


def test_a_lost_worker_and_an_end_by_the_simulation_are_errors() -> None:
    it = clocked(RUNNING)
    it.add_status(replace(RUNNING, worker_restarts=2))
    it.add_episode(over(5, 0))
    assert it.record(JOB, 1.0).error == "the policy's worker was lost 2 times"
    it = clocked()
    it.add_episode(over(5, 0, reason="the simulation ended"))
    assert it.record(JOB, 1.0).error == "the simulation ended"


def test_progress_and_steps_as_they_are_seen() -> None:
    it = EvalLog(LOCKSTEP, 3, None)
    assert (it.steps, it.step_of(SECOND)) == (0, None)
    assert it.policy == "no policy was heard"
    before = it.progress
    it.add_episode(EPISODE)
    assert it.progress != before
    for step in range(3):
        it.add_frame(SECOND + step * PERIOD)
    assert it.steps == 2
    assert it.step_of(SECOND + 2 * PERIOD) == 2
    assert it.step_of(SECOND - 1) is None
