"""The plan of a chunk: what a trajectory's controller is to follow, sent with its first action."""

import numpy as np
import pytest

from support.motion_limits import Spline
from unit.runtime.control.bench import Bench
from vla_ros.core.action_space import ActionKind, joints
from vla_ros.core.types import CommandKind, PolicyState, StaleAction
from vla_ros.runtime.control.queue import Chunking, Execution
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
    return np.array([row for _, row, _ in command.plan.points])


def spline(command, before=(0.0, 0.0), rate=(0.0, 0.0)):
    """What a controller makes of a plan, by instants after its begin."""
    times = [0.0, *(seconds for seconds, _, _ in command.plan.points)]
    rates = [rate, *(velocity for _, _, velocity in command.plan.points)]
    return Spline(np.array(times), np.vstack([before, places(command)]), np.array(rates))


def every_ms(motion):
    return motion(np.append(np.arange(motion.at[0], motion.at[-1], 1e-3), motion.at[-1]))


def test_what_is_planned_is_what_is_published_unless_something_comes_between():
    bench = moving(jump=0.3, clamp_limit=100)
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
    times = [seconds for seconds, _, _ in command.plan.points]
    assert times == pytest.approx([0.05, 0.1, 0.15, 0.17])
    assert not command.plan.points[-1][2].any(), "it ends at rest"
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
    assert len(places(bench.tick()[0])) == 10, "and held as long as its observation is valid"
    wide = bench.loop.limits
    bench.loop.limits = Limits(
        space=SPACE, stale_action=StaleAction.HOLD, low=(-2.0,) * 2, high=(2.0,) * 2, max_age_s=0.06
    )
    assert [c.kind for c in bench.tick()] == [CommandKind.STOP]
    bench.loop.limits = wide
    for _ in range(3):
        measure(bench)
        (command,) = bench.tick()
    assert command.kind is CommandKind.POLICY and len(places(command)) == 9, "what was executed"
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
    where, rate, _ = spline(first)(np.array([gone_s]))
    assert rate[0] == pytest.approx([0.5, 0.5]), "at the limit"
    step = places(second)[0] - where[0]
    assert step == pytest.approx([0.025, 0.025])
    assert np.abs(every_ms(spline(second, where[0], rate[0]))[1]).max() <= 0.5 + 1e-9


def test_between_its_points_a_plan_is_no_faster_than_at_them():
    """From rest a cubic at the limit in the mean is half as fast again in the middle."""
    bench = moving(velocity=(0.5,) * 2, chunk=20)
    bench.answer(bench.frame(), np.ones((20, 2)))
    (command,) = bench.tick()
    rates = every_ms(spline(command))[1]
    assert rates.max() == pytest.approx(0.5)
    assert places(command)[0] == pytest.approx([0.5 * 0.05 * 2 / 3] * 2)
    assert command.plan.points[0][2] == pytest.approx([0.5, 0.5])


def test_the_points_are_at_the_action_rate_however_fast_the_robot_is_commanded():
    bench = moving(control_rate_hz=100.0, action_rate_hz=20.0, chunk=4, jump=0.3)
    bench.answer(bench.frame(), np.arange(1, 5)[:, None] * np.array([0.1, -0.1]))
    command = next(c for _ in range(5) for c in bench.tick(0.01) if c.plan is not None)
    assert [s for s, _, _ in command.plan.points][:4] == pytest.approx([0.05, 0.1, 0.15, 0.2])
    assert places(command)[:4, 0] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert command.plan.points[1][2] == pytest.approx([2.0, -2.0]), "rad/s"


def test_a_plan_in_the_middle_of_an_action_makes_the_rest_of_it_in_the_rest_of_its_time():
    """A chunk that comes late begins there."""
    how = Chunking(Execution.ASYNC, replan_interval=2)
    rates = {"control_rate_hz": 100.0, "action_rate_hz": 20.0}
    bench = moving(chunk=8, chunking=how, **rates)
    line = 0.1 * np.arange(1, 9)[:, None] * np.ones(2)
    bench.answer(bench.frame(), line)
    plans = []
    for number in range(20):
        measure(bench)
        if number == 7:
            observation = bench.frame()
        if number == 14:
            bench.answer(observation, line + 0.14)
        plans += [c for c in bench.tick(0.01) if c.plan is not None]
    _, second = plans
    left = 1.0 - second.action_phase
    assert left == pytest.approx(0.2)
    times = [seconds for seconds, _, _ in second.plan.points]
    assert times[:3] == pytest.approx([0.05 * left, 0.05 * (left + 1), 0.05 * (left + 2)])
    np.testing.assert_allclose(np.diff(places(second)[:6], axis=0), 0.1)


def test_an_acceleration_limit_lets_a_plan_end_at_rest():
    bench = moving(velocity=(0.4,) * 2, acceleration=(2.0,) * 2, max_age_s=0.6, chunk=20)
    bench.answer(bench.frame(), np.arange(1, 21)[:, None] * 0.02 * np.ones(2))
    (command,) = bench.tick()
    _, rates, changes = every_ms(spline(command))
    assert rates.max() == pytest.approx(0.4)
    assert np.abs(changes).max() <= 2.0 + 1e-6
    late = [
        s
        for s, _, _ in command.plan.points
        if command.plan.begin_ns + s * 1e9 > command.valid_until_ns
    ]
    assert len(late) == 1 and not command.plan.points[-1][2].any(), "only the deceleration"
    rest_s = command.plan.points[-1][0] - command.plan.points[-2][0]
    assert rest_s == pytest.approx(0.4 / 2.0)
