"""What the simulated robot executes, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.sim import CountingEnvironment
from vla_ros.core.types import Command, CommandKind
from vla_ros.sim.commands import CommandCounts, CommandInbox, environment_action

SPEC = CountingEnvironment().spec
START = 1_000_000_000
MS = 1_000_000


def command(sequence=0, kind=CommandKind.POLICY, action=(0.05, 0, 0, 0, 0, 0, 1), **changes):
    stamps = {"published_ns": START + (sequence + 1) * MS, "stamp_ns": START, "latest_ns": START}
    return Command(kind, np.array(action, float), sequence, 0, 0, **(stamps | changes))


@pytest.fixture
def inbox():
    inbox = CommandInbox()
    inbox.begin(START, lockstep=False)
    return inbox


def test_physical_units_become_the_environments():
    action = environment_action(
        command(action=(0.05, -0.025, 0, 0.5, 0, -0.25, 1.0)), gripper=0.0, spec=SPEC
    )
    assert action.tolist() == [1.0, -0.5, 0.0, 1.0, 0.0, -0.5, -1.0]
    assert environment_action(command(action=(0,) * 7), 1.0, SPEC)[6] == 1.0  # closed


@given(st.lists(st.floats(-1e6, 1e6), min_size=7, max_size=7))
def test_the_environment_sees_nothing_beyond_its_bounds(values):
    action = environment_action(command(action=values), 0.5, SPEC)
    assert np.abs(action).max() <= 1.0


@pytest.mark.parametrize("kind", [None, CommandKind.HELD, CommandKind.STOP])
def test_without_a_new_action_the_arm_stands_and_the_gripper_stays(kind):
    given_command = command(kind=kind, action=(0.05,) * 6 + (0.0,)) if kind is not None else None
    action = environment_action(given_command, gripper=1.0, spec=SPEC)
    assert action.tolist() == [0, 0, 0, 0, 0, 0, -1]


def test_a_command_is_executed_once(inbox):
    inbox.offer(command(), START)
    assert inbox.take(START) is not None
    assert inbox.take(START) is None
    assert inbox.offer(command(), START) == "it came before"
    assert inbox.take(START) is None
    assert inbox.counters == CommandCounts(rejected=1)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (command(action=(0.0,) * 6), "shape"),
        (command(action=(0, 0, np.nan, 0, 0, 0, 0)), "not finite"),
        (command(action=(0, 0, 0, 0, 0, 0, np.inf)), "not finite"),
        (command(stamp_ns=START - 1), "earlier episode"),
        (command(stamp_ns=0, latest_ns=0, published_ns=START - 1), "earlier episode"),
        (command(valid_until_ns=START + 1), "expired 10 ms ago"),
    ],
)
def test_what_is_refused(inbox, bad, why):
    assert why in inbox.offer(bad, START + 10 * MS)
    assert inbox.take(START + 10 * MS) is None
    assert inbox.counters == CommandCounts(rejected=1)
    assert why in inbox.last_rejection


def test_a_command_may_expire_while_it_waits(inbox):
    assert inbox.offer(command(valid_until_ns=START + 5 * MS), START) == ""
    assert inbox.take(START + 6 * MS) is None
    assert inbox.counters.rejected == 1


def test_the_newer_of_two_counts_and_the_loss_is_counted(inbox):
    inbox.offer(command(1), START)
    inbox.offer(command(2), START)
    taken = inbox.take(START)
    assert taken is not None
    assert taken.sequence == 2
    assert inbox.counters == CommandCounts(superseded=1)
    assert inbox.offer(command(1), START) == "a newer one came before it"


def test_held_says_nothing_new_and_stop_says_stop(inbox):
    inbox.offer(command(1), START)
    inbox.offer(command(2, CommandKind.HELD), START)
    assert inbox.take(START).sequence == 1
    inbox.offer(command(3), START)
    inbox.offer(command(4, CommandKind.STOP), START)
    assert inbox.take(START).kind is CommandKind.STOP
    assert inbox.counters.superseded == 1


def test_lockstep_takes_the_answer_to_the_frame_shown_and_one_only():
    inbox = CommandInbox()
    inbox.begin(START, lockstep=True)
    inbox.await_answer(START + 50 * MS)
    assert "does not answer" in inbox.offer(command(1, latest_ns=START), START)
    assert not inbox.answered
    assert inbox.offer(command(2, latest_ns=START + 50 * MS), START) == ""
    assert inbox.answered
    assert "does not answer" in inbox.offer(command(3, latest_ns=START + 50 * MS), START)
    assert inbox.take(START).sequence == 2


def test_a_stop_is_an_answer_too():
    inbox = CommandInbox()
    inbox.begin(START, lockstep=True)
    inbox.await_answer(START)
    inbox.offer(command(kind=CommandKind.STOP, stamp_ns=0), START)
    assert inbox.answered


def test_outside_an_episode_nothing_counts(inbox):
    inbox.end()
    assert inbox.offer(command(), START) == ""
    assert inbox.take(START) is None
    assert inbox.counters == CommandCounts()
