"""The plan of a chunk: what will be published of it, said with its first command."""

import numpy as np
import pytest

from unit.runtime.control.bench import Bench
from vla_ros.core.action_space import ActionKind, end_effectors
from vla_ros.core.types import CommandKind, StalePolicy
from vla_ros.runtime.safety import Limits

PERIOD_S = 0.05


def moving(plans=True, chunk=4, **limits):
    bench = Bench(limits=Limits(**({"max_age_s": 2.0} | limits)), chunk=chunk)
    bench.control.plans = plans
    bench.control.activate()
    bench.control.set_instruction("reach")
    return bench


def rows(seed, length=4, size=0.03):
    return np.random.default_rng(seed).uniform(-size, size, (length, 7))


@pytest.mark.parametrize("jerk", [2.0, 0.1])
def test_what_is_planned_is_what_is_published_unless_something_comes_between(jerk):
    bench = moving(jerk=jerk, jump=0.3, clamp_limit=100)
    published, planned = [], []
    for number in range(3):
        bench.clock.advance(0.01)
        bench.answer(bench.frame(), rows(number, size=0.08))
        commands = [bench.tick()[0] for _ in range(4)]
        assert [c.kind for c in commands] == [CommandKind.POLICY] * 4
        assert [c.plan is not None for c in commands] == [True, False, False, False]
        assert [(c.chunk_index, c.chunk_length) for c in commands] == [(i, 4) for i in range(4)]
        planned.append(commands[0].plan[:, :6])
        published.append([c.action[:6] for c in commands])
    np.testing.assert_array_equal(planned, published)


def test_nobody_is_told_of_a_plan_who_did_not_ask():
    bench = moving(plans=False)
    bench.answer(bench.frame(), rows(1))
    assert [c.plan for _ in range(4) for c in bench.tick()] == [None] * 4


def test_a_plan_goes_no_further_than_its_evidence_lasts():
    bench = moving(max_age_s=0.22, chunk=8)
    bench.answer(bench.frame(), rows(1, 8))
    (command,) = bench.tick()  # 50 ms after the frame: three periods and a bit are left
    assert command.plan.shape == (4, 7)


def test_an_action_on_the_last_of_its_evidence_is_planned_alone():
    bench = moving(max_age_s=0.2)
    observation = bench.frame()
    bench.clock.advance(0.2)
    bench.answer(observation, rows(1))
    assert bench.tick(0.0)[0].plan.shape == (1, 7)


def test_after_an_interruption_what_is_left_is_told_anew():
    """A limit is changed and changed back while a chunk is executed."""
    bench = moving(chunk=8)
    bench.answer(bench.frame(), rows(1, 8))
    assert bench.tick()[0].plan.shape == (8, 7)
    wide, bench.control.limits = bench.control.limits, Limits(max_age_s=0.06)
    assert [c.kind for c in bench.tick()] == [CommandKind.STOP]
    bench.control.limits = wide
    commands = [bench.tick()[0] for _ in range(4)]
    told = [None if c.plan is None else len(c.plan) for c in commands]
    assert told == [None, None, 7, None], "of a chunk only what was executed is used up"


def test_poses_are_planned_from_where_the_robot_is():
    space = end_effectors(ActionKind.END_EFFECTOR_POSE)
    bounds = {"low": (-1.0,) * 6, "high": (1.0,) * 6}
    bench = moving(space=space, stale_policy=StalePolicy.HOLD, jump=0.05, **bounds)
    here = np.array([0.4, 0.0, 0.3, 0.0, 0.0, 0.0, 0.0])
    bench.control.measure(here, bench.clock.now, bench.moment())
    there = np.tile(here, (4, 1))
    there[:, 0] = 0.9
    bench.answer(bench.frame(), there)
    (command,) = bench.tick()
    assert command.plan[:, 0] == pytest.approx([0.5, 0.6, 0.7, 0.8])
