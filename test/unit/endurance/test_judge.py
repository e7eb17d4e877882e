"""The judge of a soak: a clean run breaks no rule, and every planted fault breaks its own."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endurance.judge import RULES, Judge, JudgedCommand, JudgedStatus
from vla_ros.core.clock import MS
from vla_ros.core.types import CommandKind, PolicyState

A = 500 * MS
PERIOD = 50 * MS
START = 1_000_000 * MS
REACH, PUSH = 11, 22  # hashes of two instructions


def heard(number: int, **changes: object) -> JudgedCommand:
    """Command ``number`` of a run in which nothing is wrong."""
    stamp = START + number * PERIOD
    good = JudgedCommand(
        stamp=stamp,
        sequence=number,
        kind=CommandKind.POLICY,
        epoch=3,
        observation_stamp=stamp - 100 * MS,
        valid_until=stamp - 100 * MS + A,
        instruction_hash=REACH,
        action=(0.01, 0.0, 0.0, 0.0, 0.0, 0.1, 1.0),
    )
    return dataclasses.replace(good, **changes)


def told(at: int, **changes: object) -> JudgedStatus:
    """A status of the same run."""
    good = JudgedStatus(at, PolicyState.RUNNING, 3, REACH, A)
    return dataclasses.replace(good, **changes)


def judged(*commands: JudgedCommand, status: JudgedStatus | None = None) -> Judge:
    judge = Judge()
    judge.status(status or told(START - MS))
    for command in commands:
        judge.command(command)
    return judge


def broken(judge: Judge) -> set[str]:
    return {violation.rule for violation in judge.violations}


def test_a_clean_run_breaks_nothing():
    stop = heard(
        5, kind=CommandKind.STOP, action=(0.0,) * 6 + (1.0,), observation_stamp=0, valid_until=0
    )
    judge = judged(*(heard(n) for n in range(5)), stop, heard(6))
    assert not judge.violations
    assert judge.kinds == {CommandKind.POLICY: 6, CommandKind.STOP: 1}
    assert judge.ages == {100: 6}
    assert judge.gaps == 0


def test_a_person_s_command_rests_on_no_observation_and_has_no_age():
    judge = judged(heard(0), heard(1, kind=CommandKind.TAKEOVER, observation_stamp=0))
    judge.command(heard(2, kind=CommandKind.HELD, observation_stamp=0))
    judge.status(told(START + 3 * PERIOD))
    assert not judge.violations and judge.ages == {100: 1}


def test_with_acceleration_limits_a_stop_may_go_on_slower():
    def judged_stop(action, **changes):
        judge = judged(heard(0, action=(0.02, 0.0, -0.01, 0.0, 0.0, 0.0, 1.0)))
        judge.brakes = True
        judge.stopped(START)
        judge.command(
            heard(1, kind=CommandKind.STOP, action=(*action, 0.0, 0.0, 0.0, 1.0), **changes)
        )
        return broken(judge)

    assert not judged_stop((0.01, 0.0, -0.005))
    assert not judged_stop((0.0, 0.0, -0.005))
    for action in ((0.02, 0.0, -0.01), (0.01, 0.001, 0.0), (-0.01, 0.0, 0.0), (0.03, 0.0, 0.0)):
        assert judged_stop(action) == {"moving stop", "after stop"}, action
    assert not judged_stop((0.03, 0.0, 0.0), sequence=3), "the one before it was missed"


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ("old", heard(1, observation_stamp=START + PERIOD - A - 1)),
        ("old", heard(1, valid_until=START + PERIOD - 1)),
        ("old", heard(1, observation_stamp=START + PERIOD + 1)),
        ("old", heard(1, observation_stamp=0)),
        ("old", heard(1, kind=CommandKind.HELD, observation_stamp=START + PERIOD - A - 1)),
        ("not finite", heard(1, action=(math.nan,) + (0.0,) * 6)),
        ("not finite", heard(1, action=(0.0,) * 6 + (math.inf,))),
        ("old epoch", heard(1, epoch=2)),
        ("old epoch", heard(1, instruction_hash=PUSH)),
        ("moving stop", heard(1, kind=CommandKind.STOP)),
        ("sequence", heard(1, sequence=0)),
    ],
)
def test_each_fault_breaks_its_rule(rule, fault):
    judge = judged(heard(0), fault)
    judge.status(told(START + 2 * PERIOD))
    assert broken(judge) == {rule}
    assert rule in RULES


def test_a_command_of_the_old_sentence_after_the_status_of_the_new_one_is_found_in_either_order():
    change = told(START + PERIOD - MS, epoch=4, instruction_hash=PUSH)
    late = heard(1)  # published 1 ms after the change, still of epoch 3
    first = judged(heard(0))
    first.status(change)
    first.command(late)
    second = judged(heard(0), late)
    second.status(change)
    assert broken(first) == broken(second) == {"old epoch"}


def test_one_that_was_published_before_the_change_may_be_heard_behind_it():
    judge = judged(heard(0))
    judge.status(told(START + PERIOD + MS, epoch=4, instruction_hash=PUSH))
    judge.command(heard(1))
    assert not judge.violations


def test_after_a_deactivation_was_answered_there_is_silence_until_the_next_activation():
    judge = judged(heard(0))
    judge.deactivated(START + PERIOD - MS)
    judge.command(heard(1))
    assert broken(judge) == {"after deactivation"}
    calm = judged(heard(0))
    calm.deactivated(START + 2 * PERIOD)
    calm.command(heard(1))  # its last word, heard late
    calm.activating()
    calm.command(heard(3))
    assert not calm.violations


def test_after_a_stop_nothing_moves_until_somebody_says_so():
    still = heard(1, kind=CommandKind.STOP, action=(0.0,) * 7)
    judge = judged(heard(0))
    judge.stopped(START + MS)
    judge.command(still)
    assert not judge.violations
    judge.command(heard(2))
    assert broken(judge) == {"after stop"}
    calm = judged(heard(0))
    calm.stopped(START + MS)
    calm.resuming()
    calm.command(heard(2))
    assert not calm.violations


def test_a_limit_that_was_just_changed_counts_the_larger_one():
    judge = judged(heard(0))
    judge.status(told(START + MS, max_age=200 * MS))
    judge.command(heard(1, observation_stamp=START + PERIOD - 300 * MS))
    assert not judge.violations
    judge = judged(heard(0))
    judge.status(told(START + MS, max_age=200 * MS))
    for _ in range(64):
        judge.status(told(START + MS, max_age=200 * MS))
    judge.command(heard(1, observation_stamp=START + PERIOD - 300 * MS))
    judge.status(told(START + 2 * PERIOD, max_age=200 * MS))
    assert broken(judge) == {"old"}


def test_a_command_that_overtakes_the_status_that_allows_it_is_not_too_old():
    judge = judged(heard(0), heard(1, observation_stamp=START + PERIOD - A - 1, valid_until=10**18))
    judge.status(told(START + 2 * PERIOD, max_age=A + 300 * MS))
    assert not judge.violations


def test_a_hold_is_false_only_where_nobody_did_anything():
    judge = judged()
    judge.trouble()
    judge.status(told(START, state=PolicyState.HOLD, reason="camera"))
    judge.status(told(START + PERIOD))
    judge.calm()
    judge.status(told(START + 2 * PERIOD, state=PolicyState.HOLD, reason="age"))
    judge.status(told(START + 3 * PERIOD, state=PolicyState.HOLD, reason="the same one"))
    assert [hold.reason for hold in judge.false_holds()] == ["age"]
    assert len(judge.holds) == 2
    assert judge.states[PolicyState.HOLD] == 2 * PERIOD


def test_what_the_judge_missed_is_counted_and_is_no_violation():
    judge = judged(heard(0), heard(5))
    assert judge.gaps == 4
    assert not judge.violations


@given(st.lists(st.integers(1, 3), min_size=1, max_size=50))
def test_a_fault_is_one_violation_however_often_the_statuses_are_repeated(steps):
    judge = judged(heard(0))
    judge.status(told(START + MS, epoch=4, instruction_hash=PUSH))
    judge.command(heard(1))
    for number, step in enumerate(steps):
        judge.status(told(START + MS + number * step, epoch=4, instruction_hash=PUSH))
    assert len({(v.rule, v.at) for v in judge.violations}) == 1
