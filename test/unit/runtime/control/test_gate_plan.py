"""The plan of a chunk: what a trajectory's controller is to follow, sent with its first action."""

import numpy as np
import pytest

from unit.runtime.control.bench import Bench
from vla_ros.core.action_space import ActionKind, joints
from vla_ros.core.types import CommandKind, PolicyState, StaleAction
from vla_ros.runtime.control.queue import Chunking
from vla_ros.runtime.control.state import JointOutputs
from vla_ros.runtime.safety import Limits

SPACE = joints(ActionKind.JOINT_POSITION, ("a", "b"))
LEAD_S = 0.02


def moving(chunk=4, outputs=None, chunking=Chunking(), **limits):
    given = {
        "space": SPACE,
        "stale_action": StaleAction.HOLD,
        "low": (-2.0,) * 2,
        "high": (2.0,) * 2,
        "max_age_s": 2.0,
    }
    bench = Bench(limits=Limits(**(given | limits)), chunk=chunk, chunking=chunking)
    bench.loop.outputs = outputs or JointOutputs(plans=True, lead_s=LEAD_S)
    bench.control.activate()
    bench.control.set_instruction("reach")
    measure(bench)
    return bench


def measure(bench, *where):
    bench.control.measure(np.array(where or (0.0, 0.0)), bench.clock.now, bench.moment())


def rows(seed, length=4, size=0.03):
    return np.random.default_rng(seed).uniform(-size, size, (length, 2))


def places(command):
    return np.array([row for _, row in command.plan.points])


@pytest.mark.parametrize("jerk", [2.0, 0.1])
def test_what_is_planned_is_what_is_published_unless_something_comes_between(jerk):
    bench = moving(jerk=jerk, jump=0.3, clamp_limit=100)
    published, planned = [], []
    for number in range(3):
        bench.clock.advance(0.01)
        measure(bench)
        bench.answer(bench.frame(), rows(number, size=0.08))
        commands = [bench.tick()[0] for _ in range(4)]
        assert [c.kind for c in commands] == [CommandKind.POLICY] * 4
        assert [c.plan is not None for c in commands] == [True, False, False, False]
        assert [(c.chunk_index, c.chunk_length) for c in commands] == [(i, 4) for i in range(4)]
        planned.append(places(commands[0])[:4])
        published.append([c.action for c in commands])
    np.testing.assert_allclose(planned, published, atol=1e-12)


def test_nobody_gets_a_plan_who_did_not_ask():
    bench = moving(outputs=JointOutputs(positions=True))
    bench.answer(bench.frame(), rows(1))
    assert [c.plan for _ in range(4) for c in bench.tick()] == [None] * 4


def test_a_plan_goes_no_further_than_its_observation_is_valid():
    bench = moving(max_age_s=0.24, chunk=8)
    bench.answer(bench.frame(), rows(1, 8))
    (command,) = bench.tick()  # 50 ms after the frame: three periods and a bit are left
    times = [seconds for seconds, _ in command.plan.points]
    assert times == pytest.approx([0.05, 0.1, 0.15, 0.17])
    assert command.plan.begin_ns + round(times[-1] * 1e9) == command.valid_until_ns


def test_an_action_of_which_nothing_would_be_left_is_blocked_with_the_reason():
    """Not: RUNNING, counting, and no trajectory."""
    outputs = JointOutputs(plans=True, lead_s=0.4)
    bench = moving(max_age_s=0.42, outputs=outputs)
    for _ in range(12):
        measure(bench)
        bench.answer(bench.frame(), rows(1))
        bench.tick()
    assert bench.out.commands == [] and bench.state is not PolicyState.RUNNING
    assert bench.loop.counters.actions_published == 0
    assert "trajectory_lead_s 0.4 leaves nothing" in bench.loop.counters.last_block


def test_after_an_interruption_what_is_left_is_planned_anew():
    bench = moving(chunk=8)
    bench.answer(bench.frame(), rows(1, 8))
    assert len(places(bench.tick()[0])) == 9, "and held as long as its observation is valid"
    wide = bench.loop.limits
    bench.loop.limits = Limits(
        space=SPACE, stale_action=StaleAction.HOLD, low=(-2.0,) * 2, high=(2.0,) * 2, max_age_s=0.06
    )
    assert [c.kind for c in bench.tick()] == [CommandKind.STOP]
    bench.loop.limits = wide
    for _ in range(3):
        measure(bench)
        (command,) = bench.tick()
    assert command.kind is CommandKind.POLICY and len(places(command)) == 8, "what was executed"
    assert bench.tick()[0].plan is None


def test_late_ticks_do_not_throw_a_plan_back():
    """The controller's clock goes on: the next chunk begins where the plan is by then."""
    how = Chunking(replan_interval=2)
    bench = moving(velocity=(0.5,) * 2, chunk=20, leash_s=5.0, chunking=how)
    line = np.arange(1, 21)[:, None] * 0.025 * np.ones(2)
    bench.answer(bench.frame(), line)
    (first,) = bench.tick()
    bench.clock.advance(0.25)  # five periods
    measure(bench, 0.1, 0.1)
    bench.answer(bench.frame(), line + 0.15)
    (second,) = [c for _ in range(12) for c in bench.tick() if c.plan is not None][:1]
    gone_s = (second.plan.begin_ns - first.plan.begin_ns) / 1e9
    where = np.interp(
        gone_s, [0.0, *[s for s, _ in first.plan.points]], [0.0, *places(first)[:, 0]]
    )
    step = places(second)[0, 0] - where
    assert 0.0 < step <= 0.025 + 1e-9


def test_an_acceleration_limit_lets_a_plan_end_at_rest():
    bench = moving(velocity=(0.4,) * 2, acceleration=(2.0,) * 2, max_age_s=0.6, chunk=20)
    bench.answer(bench.frame(), np.arange(1, 21)[:, None] * 0.02 * np.ones(2))
    (command,) = bench.tick()
    times = [seconds for seconds, _ in command.plan.points]
    speeds = np.diff(places(command)[:, 0], prepend=0.0) / np.diff(times, prepend=0.0)
    assert speeds.max() == pytest.approx(0.4)
    assert np.abs(np.diff(speeds, prepend=0.0, append=0.0)).max() <= 0.1 + 1e-9
    late = [
        s
        for s, _ in command.plan.points
        if command.plan.begin_ns + s * 1e9 > command.valid_until_ns
    ]
    assert len(late) == 3, "only the deceleration lies beyond"
