"""Corrections of a chunk's actions that take time: asked about what, kept for what, and never of
another chunk. Against a stand-in that says each action plus a number of the frame."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from unit.runtime.control.bench import Bench
from vla_ros.core.types import CommandKind, Executing, Inference, Timeline
from vla_ros.runtime.control.corrections import Corrections
from vla_ros.runtime.control.queue import Chunking, Execution
from vla_ros.runtime.safety import Limits

H, MOST = 12, 8
POLICY = CommandKind.POLICY


def chunk(number, length=H):
    rows = np.zeros((length, 7))
    rows[:, 0] = 0.001 * number
    rows[:, 1] = 0.0001 * np.arange(length)
    return rows


class Second:
    """The second worker: answers what it was asked last, when it is told to."""

    def __init__(self):
        self.asked = []
        self.corrections = Corrections(lambda *question: self.asked.append(question), MOST)

    def says(self, which=-1, added=0.002):
        observation, _ = self.asked[which]
        about = observation.uncorrected
        self.corrections.answered(
            Inference(
                observation.stamp_ns,
                about.actions + np.array([0, 0, added, 0, 0, 0, 0]),
                Timeline(0),
                continues=Executing(about.stamp_ns, about.index, 0),
            )
        )
        return observation


@pytest.fixture
def second():
    return Second()


@pytest.fixture
def bench(second):
    return Bench(
        limits=Limits(max_age_s=3.0),
        chunk=H,
        chunking=Chunking(Execution.CORRECTED, replan_interval=8),
        corrects=MOST,
        corrector=second.corrections,
    ).ready()


def step(bench):
    """A frame, a tick; returns both."""
    seen = bench.frame()
    (command,) = bench.tick()
    return seen, command


def test_an_action_that_nobody_has_spoken_of_goes_out_as_its_chunk_has_it(bench, second):
    bench.answer(bench.frame(), chunk(1))
    for place in range(4):
        _, command = step(bench)
        assert (command.kind, command.chunk_index, command.corrected_ns) == (POLICY, place, 0)
        assert command.action[2] == 0.0


def test_the_newest_word_counts_and_names_its_frame(bench, second):
    first = bench.frame()
    bench.answer(first, chunk(1))
    assert not second.asked, "of its own frame there is nothing to correct"
    bench.tick()
    seen = bench.frame()
    assert second.says() == replace(seen, uncorrected=second.asked[-1][0].uncorrected)
    about = second.asked[-1][0].uncorrected
    assert (about.stamp_ns, about.index, len(about.actions)) == (first.stamp_ns, 1, MOST)
    (command,) = bench.tick()
    assert (command.stamp_ns, command.corrected_ns) == (first.stamp_ns, seen.stamp_ns)
    np.testing.assert_allclose(command.action[:3], [0.001, 0.0001, 0.002])
    _, late = step(bench)  # asked, not answered: what was said of it before holds
    assert (late.chunk_index, late.corrected_ns) == (2, seen.stamp_ns)
    np.testing.assert_allclose(late.action[2], 0.002)
    newer = bench.frame()
    second.says(added=0.003)
    (command,) = bench.tick()
    assert command.corrected_ns == newer.stamp_ns
    np.testing.assert_allclose(command.action[2], 0.003)


def test_a_word_on_one_chunk_says_nothing_of_another(bench, second):
    bench.answer(bench.frame(), chunk(1))
    for _ in range(8):
        step(bench)
    old = len(second.asked) - 1
    bench.answer(bench.frame(), chunk(2))
    second.says(old)
    (command,) = bench.tick()
    assert (round(command.action[0] / 0.001), command.corrected_ns) == (2, 0)
    assert command.action[2] == 0.0


def test_of_one_frame_and_two_chunks_each_answer_finds_its_own(bench, second):
    asked = bench.frame()
    bench.answer(asked, chunk(1))
    for _ in range(8):
        step(bench)
    late, _ = step(bench)
    assert bench.out.submitted[-1][0].stamp_ns == late.stamp_ns
    frame = bench.frame()
    before = len(second.asked) - 1
    bench.answer(late, chunk(2))  # takes over now: asked about before its first tick
    assert [q[0].stamp_ns for q in second.asked[before:]] == [frame.stamp_ns] * 2
    second.says(before, added=0.005)
    second.says(-1)
    (command,) = bench.tick()
    assert (round(command.action[0] / 0.001), command.corrected_ns) == (2, frame.stamp_ns)
    np.testing.assert_allclose(command.action[2], 0.002)
    second.says(before, added=0.005)  # of the chunk before: it corrects nothing of this one
    (command,) = bench.tick()
    assert (round(command.action[0] / 0.001), command.corrected_ns) == (2, 0)


def test_a_new_task_leaves_no_correction(bench, second):
    bench.answer(bench.frame(), chunk(1))
    bench.tick()
    bench.frame()
    second.says()
    bench.control.set_instruction("push")
    bench.answer(bench.frame(), chunk(3))
    (command,) = bench.tick()
    assert (command.kind, command.corrected_ns) == (POLICY, 0)


def test_what_is_said_of_actions_that_are_past_or_to_come_does_not_count(bench, second):
    bench.answer(bench.frame(), chunk(1))
    bench.tick()
    bench.frame()
    for _ in range(MOST):
        bench.tick()
    second.says()  # MOST + 1 periods late: it covered the actions until now
    (command,) = bench.tick()
    assert (command.chunk_index, command.corrected_ns) == (MOST + 1, 0)


def test_the_gate_judges_what_was_corrected(bench, second):
    """A correction beyond the limits is held to them like any action."""
    bench.answer(bench.frame(), chunk(1))
    bench.tick()
    bench.frame()
    second.says(added=5.0)
    (command,) = bench.tick()
    assert command.action[2] <= bench.loop.limits.high[2]
    assert bench.loop.counters.actions_clamped == 1
