"""Chunks on the time line: what of a late one is executed, when the next is asked for."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from unit.runtime.control.bench import Bench
from vla_ros.core.action_space import ActionKind, end_effectors
from vla_ros.core.types import CommandKind, Executing, PolicyInfo
from vla_ros.runtime.control.queue import Chunking, Delays, Execution, blend
from vla_ros.runtime.safety import Limits

H = 8
PERIOD = 50_000_000
POLICY, HELD, STOP = CommandKind.POLICY, CommandKind.HELD, CommandKind.STOP


def chunk(number: int, length: int = H) -> np.ndarray:
    """Small deltas that tell which chunk and which of its actions they are."""
    rows = np.zeros((length, 7))
    rows[:, 0] = 0.001 * number
    rows[:, 1] = 0.0001 * np.arange(length)
    return rows


def told(command) -> tuple[int, int]:
    """Which chunk, which action: by the numbers, not by what the command says of itself."""
    return round(command.action[0] / 0.001), round(command.action[1] / 0.0001)


class Line:
    """A loop whose chunks come ``delay`` periods after their observation. One step: a frame, what
    has arrived, a command."""

    def __init__(self, delay=0, lockstep=False, max_age_s=3.0, fit=False, **how):
        limits = Limits(max_age_s=max_age_s)
        if lockstep:
            how["delay_frames"] = delay
        of_bench = {name: how.pop(name) for name in ("corrects", "corrector") if name in how}
        chunking = Chunking(**how)
        if fit:
            chunking = chunking.fitted(limits, PolicyInfo("p", chunk_length=H), delay * 0.05)
        self.bench = Bench(
            lockstep=lockstep,
            limits=limits,
            chunk=H,
            chunking=chunking,
            inference_s=delay * 0.05,
            **of_bench,
        )
        self.delay = 0 if lockstep else delay
        self.asked = []  # step, frame, epoch
        self.number = 0
        self.now = -1
        self.bench.control.activate()
        self.bench.control.set_instruction("reach")

    def step(self):
        """The command of one period, after the frame of its beginning."""
        self.now += 1
        before = len(self.bench.out.commands)
        self.bench.frame()
        self.note()
        while self.number < len(self.asked):
            step, observation, epoch = self.asked[self.number]
            if self.now < step + self.delay:
                break
            self.number += 1
            self.bench.answer(observation, chunk(self.number - 1), epoch)
        if not self.bench.lockstep:
            self.bench.control.tick()
        self.bench.clock.advance(0.05)
        return self.bench.out.commands[before:]

    def note(self):
        for observation, instruction in self.bench.out.submitted[len(self.asked) :]:
            self.asked.append((self.now, observation, instruction.epoch))

    def run(self, steps):
        """Kind, and for actions of the policy which chunk's which, of every step."""
        out = []
        for _ in range(steps):
            commands = self.step()
            out += [told(c) if c.kind is POLICY else c.kind for c in commands] or [None]
        return out


@pytest.mark.parametrize("delay", range(H + 1))
@pytest.mark.parametrize("lockstep", [False, True])
def test_a_late_chunk_begins_behind_what_was_executed_meanwhile(delay, lockstep):
    """Action i is meant for i periods after the observation."""
    line = Line(delay, lockstep, replan_interval=1)
    said = line.run(6 * H)
    first = said.index((0, 0))  # the robot stood still: nothing of the first chunk is past
    assert first == delay
    begun = set()
    for step, (before, after) in enumerate(pairwise(said), 1):
        if not isinstance(after, tuple):
            continue
        number, place = after
        if number in begun:
            assert place == before[1] + 1, "then one after the other"
            continue
        begun.add(number)
        asked = line.asked[number][0]
        executed = sum(isinstance(s, tuple) for s in said[asked:step])
        assert place == executed, f"chunk {number} begins at {place}"
        if number and 2 * delay < H:
            assert place == delay
    assert len(begun) > 2
    if 2 * delay < H:
        assert all(isinstance(s, tuple) for s in said[first:]), "it never stands still"
        for command in line.bench.out.commands:
            if command.kind is POLICY and told(command)[0]:
                due = command.stamp_ns + command.chunk_index * PERIOD
                assert command.published_ns == due


@pytest.mark.parametrize("lockstep", [False, True])
def test_sync_stands_still_looks_and_begins_at_the_beginning(lockstep):
    line = Line(3, lockstep, execution=Execution.SYNC, replan_interval=4)
    said = line.run(20)
    assert said[3:17] == [
        *[(0, i) for i in range(4)], *[HELD] * 3, *[(1, i) for i in range(4)], *[HELD] * 3,
    ]  # fmt: skip
    assert [step for step, *_ in line.asked] == [0, 7, 14]
    assert all(o.executing is None for _, o, _ in line.asked)


def test_async_goes_on_with_the_old_chunk_while_the_new_one_is_late():
    line = Line(2, replan_interval=4)
    line.run(8)
    line.delay = 3  # slower than it ever was
    said = line.run(20)
    assert all(isinstance(s, tuple) for s in said)
    starts = [b for a, b in pairwise(said) if a[0] != b[0]]
    assert {place for _, place in starts[1:]} == {3}


def test_one_request_at_a_time_and_only_when_its_answer_is_wanted():
    line = Line(2, replan_interval=5)
    line.run(20)
    steps = [step for step, *_ in line.asked]
    assert steps[:4] == [0, 7, 12, 17], "S actions are executed of each"


def test_whole_chunks_are_asked_for_in_time():
    """S = 0: all that there is, but never without something to execute."""
    said = Line(3, lockstep=True).run(30)
    assert all(isinstance(s, tuple) for s in said[3:])
    assert said[3 : 3 + H] == [(0, i) for i in range(H)]
    assert said[3 + H : 3 + H + 5] == [(1, i) for i in range(3, H)]


def test_a_chunk_of_which_nothing_is_left_is_void_and_that_is_said():
    bench = Bench(
        limits=Limits(max_age_s=3.0), chunk=H, chunking=Chunking(replan_interval=1)
    ).ready()
    first = bench.frame()
    bench.answer(first, chunk(0))
    bench.tick(0.01)
    bench.clock.advance(0.01)
    late = bench.frame()
    for _ in range(2):
        bench.tick()
    bench.answer(late, chunk(1, 2))
    (command,) = bench.tick()
    assert told(command) == (0, 3), "the old one goes on"
    ((kind, text),) = bench.out.warnings
    assert kind == "late"
    assert text == ("a chunk of 2 actions came after 2 had been executed: nothing is left of it")


def test_single_actions_are_never_late():
    bench = Bench().ready()
    for _ in range(6):
        observation = bench.frame()
        for _ in range(3):
            bench.tick()
        bench.answer(observation)
        (command,) = bench.tick()
        assert command.kind is POLICY
    assert len(bench.out.submitted) == 6


# What the request says


def test_the_request_says_what_is_executed_meanwhile():
    line = Line(2, execution=Execution.ASYNC, replan_interval=4)
    line.run(9)
    (_, first, _), (at, second, _), *_ = line.asked
    assert first.executing is None, "the robot stood still"
    assert at == 6
    assert second.executing == Executing(first.stamp_ns, 4, 2)


def test_the_delay_is_the_largest_of_the_last_and_no_more_than_was_executed():
    delays = Delays(3, expected=5)
    assert (delays.lead, delays.executed) == (5, 5)
    for periods, executed in ((2, 2), (9, 4), (3, 3)):
        delays.add(periods, executed)
    assert (delays.lead, delays.executed) == (9, 4)
    delays.add(1, 1)
    delays.add(1, 2)
    assert (delays.lead, delays.executed) == (3, 3)
    delays.add(1, 2)
    assert (delays.lead, delays.executed) == (1, 1), "no more than the time allows"


def test_a_slow_first_answer_is_no_measure_of_the_delay():
    """It came while the robot stood still: warm-up, a cold cache."""
    line = Line(1, replan_interval=4)
    line.delay = 12
    line.run(13)
    line.delay = 1
    line.run(12)
    assert {o.executing.delay_steps for _, o, _ in line.asked[1:]} == {1}


@pytest.mark.parametrize("how", ["clamped", "instruction", "hold"])
def test_what_was_broken_off_is_not_continued(how):
    line = Line(2, execution=Execution.ASYNC, replan_interval=4)
    line.run(8)
    if how == "clamped":
        far = chunk(7)
        far[:, 0] = 0.2
        observation = line.asked[-1][1]
        assert observation.executing is not None
        line.bench.answer(observation, far)  # instead of what would have come
        line.number += 1
    elif how == "instruction":
        line.bench.control.set_instruction("push")
    else:
        line.bench.clock.advance(4.0)
        line.bench.control.tick()
        line.bench.control.tick()
        assert line.bench.state.name == "HOLD"
    count = len(line.asked)
    line.note()
    line.run(6)
    assert len(line.asked) > count
    assert line.asked[count][1].executing is None


# Who cannot


@pytest.mark.parametrize("execution", ["rtc", "rtc_trained"])
def test_a_policy_that_cannot_continue_a_chunk_is_refused_with_what_it_can(execution):
    with pytest.raises(
        ValueError,
        match=f"execution '{execution}': policy 'zero', decoding 'none', cannot continue a chunk:"
        " choose sync, async, ensemble$",
    ):
        Bench(chunking=Chunking(Execution(execution)))


def test_a_policy_without_a_corrector_is_refused_and_so_is_a_loop_that_cannot_ask_one():
    corrected = Chunking(Execution.CORRECTED)
    with pytest.raises(ValueError, match="execution 'corrected': policy 'zero' has no corrector"):
        Bench(chunking=corrected)
    with pytest.raises(ValueError, match="in lock-step is `vla-ros eval --no-ros`"):
        Bench(chunking=corrected, corrects=4)


def test_a_corrected_command_has_the_age_of_its_chunk_and_names_the_frame_that_corrected_it():
    seen = []

    class Halves:
        def ask(self, action, newest, instruction):
            pass

        def correct(self, action, newest):
            seen.append((action.index, newest.stamp_ns))
            rows = np.concatenate((action.action[None] * 0.5, action.following))
            return replace(action, rows=rows, corrected_ns=newest.stamp_ns)

    plain, bench = (Line(2, True, replan_interval=4), Line(
        2, True, execution=Execution.CORRECTED, corrects=4, corrector=Halves(),
        replan_interval=4,
    ))  # fmt: skip
    for line in (plain, bench):
        line.run(9)
    before, after = (
        [c for c in line.bench.out.commands if c.kind is CommandKind.POLICY]
        for line in (plain, bench)
    )
    assert [c.stamp_ns for c in after] == [c.stamp_ns for c in before]
    assert [c.chunk_index for c in after] == [i for i, _ in seen]
    assert [c.corrected_ns for c in after] == [stamp for _, stamp in seen]
    assert all(c.corrected_ns > c.stamp_ns for c in after)
    assert all(c.corrected_ns == 0 for c in before)
    np.testing.assert_allclose(after[0].action, before[0].action * 0.5)


def test_a_command_says_how_long_after_it_was_due_it_was_published():
    """Age minus due time. A chunk that waited for nothing has none; the first of a robot that
    stood still carries its delay to its end; a single action's is its age."""
    for how in (Execution.ASYNC, Execution.SYNC):
        line = Line(2, execution=how, replan_interval=4)
        line.run(30)
        late = {}
        for command in line.bench.out.commands:
            if command.kind is POLICY:
                age = command.published_ns - command.stamp_ns
                assert command.staleness_ns == age - command.chunk_index * PERIOD
                late.setdefault(told(command)[0], set()).add(command.staleness_ns // PERIOD)
            else:
                assert command.staleness_ns == 0
        rest = {2} if how is Execution.SYNC else {0}
        assert late.pop(0) == {2}
        assert set().union(*late.values()) == rest
    bench = Bench().running()
    (command,) = bench.out.commands
    assert command.staleness_ns == PERIOD == command.published_ns - command.stamp_ns


# All chunks together


def test_the_ensemble_is_the_weighted_mean_of_what_all_say_of_the_moment():
    """ACT's: w_i = exp(-m i), the oldest first; its age is that of the oldest."""
    decay = 0.3
    line = Line(1, True, execution=Execution.ENSEMBLE, ensemble_decay=decay)
    chunks = {}
    for _ in range(14):
        for command in line.step():
            if command.kind is not POLICY:
                continue
            parts = [
                (number, executed)
                for number, (step, *_) in enumerate(line.asked)
                if step + 1 <= line.now and (executed := sum(at >= step for at in chunks)) < H
            ]
            weights = np.exp(-decay * np.arange(len(parts)))
            rows = np.array([chunk(number)[place] for number, place in parts])
            assert np.allclose(command.action, weights @ rows / weights.sum(), atol=1e-12)
            oldest = line.asked[parts[0][0]][1]
            assert (command.stamp_ns, command.chunk_index) == (oldest.stamp_ns, parts[0][1])
            chunks[line.now] = len(parts)
    assert max(chunks.values()) >= 4
    assert len(line.asked) >= 7, "asked as often as the delay allows"


def test_an_ensemble_of_one_is_that_one_and_old_chunks_fall_out():
    limits_age = Limits(max_age_s=0.22)
    bench = Bench(
        limits=limits_age, chunk=H, lockstep=True, chunking=Chunking(Execution.ENSEMBLE)
    ).ready()
    for number in range(12):
        bench.answer(bench.frame(), chunk(number))
        command = bench.out.commands[-1]
        assert command.kind is POLICY
        assert bench.clock.now - command.stamp_ns == min(number, 4) * PERIOD
        if number == 0:
            assert (command.action == chunk(0)[0]).all()
        bench.clock.advance(0.05)


def test_orientations_are_averaged_on_the_sphere():
    space = end_effectors(ActionKind.END_EFFECTOR_POSE)
    rows = np.zeros((2, 1, 7))
    rows[0, 0, 3:6] = (np.pi - 0.1, 0, 0)
    rows[1, 0, 3:6] = (-np.pi + 0.1, 0, 0)  # the same but for 0.2 rad
    (mean,) = blend(list(rows), 0.0, space)
    assert abs(mean[3]) == pytest.approx(np.pi)
