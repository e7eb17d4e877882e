"""Sessions of policy vla, as a server uses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.engine import CLOCK, images
from vla_ros.core.types import Inference, Instruction, Observation, Timeline
from vla_ros.engine import EngineOptions
from vla_ros.policies.base import InvalidAction, Policy, PolicyRefused, PolicySpec
from vla_ros.policies.load import load_policy
from vla_ros.policies.sessions import Batch, SessionRequest, measure, open_session, step_together
from vla_ros.runtime.scheduler import BatchCosts

FRAMES = list(images(3, seed=1, still=0.0))


@pytest.fixture(scope="module")
def first() -> Policy:
    options = EngineOptions(checkpoint="random:small")
    return load_policy(PolicySpec("vla", engine=options, action_scale=(1.0,) * 6))


def asked(session: Policy, stamp: int, frame: int) -> SessionRequest:
    start = CLOCK.steady_ns()
    seen = Observation(stamp, stamp, start, FRAMES[frame])
    return SessionRequest(session, seen, Timeline(start).mark("queue", start))


def test_robots_are_answered_together_each_as_if_alone(first: Policy) -> None:
    robots, lone = [open_session(first) for _ in range(3)], [open_session(first) for _ in range(3)]
    for number in range(3):
        for each in (robots, lone):
            each[number].reset(Instruction(f"pick up object {number}", epoch=1))
    answers = step_together([asked(robot, 7, n) for n, robot in enumerate(robots)], CLOCK)
    for number, answer in enumerate(answers):
        alone = asked(lone[number], 7, number)
        wanted = lone[number].step(alone.observation, alone.timeline, CLOCK)
        assert isinstance(answer, Inference) and wanted is not None
        assert answer.tokens == wanted.tokens
        np.testing.assert_array_equal(answer.actions, wanted.actions)


def test_a_robot_without_an_instruction_costs_the_others_nothing(first: Policy) -> None:
    told, untold = open_session(first), open_session(first)
    told.reset(Instruction("go", epoch=1))
    refused, answer = step_together([asked(untold, 1, 0), asked(told, 1, 0)], CLOCK)
    assert isinstance(refused, InvalidAction) and "no instruction" in str(refused)
    assert isinstance(answer, Inference)


def test_a_frame_joins_at_the_next_turn(first: Policy) -> None:
    early, late = open_session(first), open_session(first)
    for robot in (early, late):
        robot.reset(Instruction("go", epoch=1))
    batch = Batch(CLOCK)
    batch.add(asked(early, 1, 0))
    assert batch.turn() == []
    batch.add(asked(late, 2, 1))
    order = []
    while len(batch):
        order += [session for session, _ in batch.turn()]
    assert order == [early, late]


def test_what_a_batch_costs_is_measured_for_the_scheduler(first: Policy) -> None:
    robots = [open_session(first) for _ in range(3)]
    for robot in robots:
        robot.reset(Instruction("go", epoch=1))
    found = measure(robots, asked(robots[0], 1, 0).observation, CLOCK, rounds=1)
    assert list(found) == [1, 2, 3]
    assert BatchCosts(found).largest == 3
    short = measure(robots, asked(robots[0], 1, 0).observation, CLOCK, rounds=1, budget_s=0.0)
    assert list(short) == [1], "one is always measured"
    with pytest.raises(InvalidAction, match="no instruction"):
        measure([open_session(first)], asked(robots[0], 1, 0).observation, CLOCK)


def test_what_does_not_fit_into_memory_is_not_measured(first: Policy, monkeypatch: Any) -> None:
    robots = [open_session(first) for _ in range(4)]
    for robot in robots:
        robot.reset(Instruction("go", epoch=1))
    turn = Batch.turn

    def narrow(batch: Batch) -> Any:
        if len(batch) > 2:
            raise MemoryError("no room")
        return turn(batch)

    monkeypatch.setattr(Batch, "turn", narrow)
    assert list(measure(robots, asked(robots[0], 1, 0).observation, CLOCK, rounds=1)) == [1, 2]


def test_a_policy_without_sessions_says_so() -> None:
    with pytest.raises(PolicyRefused, match="'zero' serves one robot"):
        open_session(load_policy(PolicySpec("zero")))
