"""A person's commands at a control rate above the action rate, and the hand-over both ways."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from unit.runtime.control.bench import Bench
from vla_ros.core.action_space import ActionKind, joints
from vla_ros.core.types import CommandKind, StaleAction
from vla_ros.runtime.control.queue import Chunking
from vla_ros.runtime.control.state import JointOutputs
from vla_ros.runtime.control.takeover import TakeoverNumbers, Teleoperation
from vla_ros.runtime.safety import Limits

RATIOS = [1, 2.5, 5, 25]
ARM = joints(ActionKind.JOINT_POSITION, ("a", "b"))
DELTAS = joints(ActionKind.JOINT_DELTA, ("a", "b"))


def rates(ratio, space=None, **more):
    given = {"action_rate_hz": 20.0, "control_rate_hz": 20.0 * ratio, "max_age_s": 2.0, **more}
    if space is None:
        return Limits(**given)
    stale = StaleAction.HOLD if space.absolute else StaleAction.ZERO
    bounds = {"low": (-3.0, -3.0), "high": (3.0, 3.0), "stale_action": stale}
    return Limits(space=space, **bounds, **given)


def command(bench, values, meaning=TakeoverNumbers.ACTION):
    bench.control.take_over(Teleoperation(np.array(values, float), meaning, bench.clock.now))


def measure(bench, *positions):
    bench.control.measure(np.array(positions), bench.clock.now, bench.moment(), [0, 1])


def ticks(bench, count, ratio):
    return [c for _ in range(count) for c in bench.tick(0.05 / ratio)]


@pytest.mark.parametrize("ratio", RATIOS)
def test_a_persons_displacement_takes_an_action_period_and_sums_to_itself(ratio):
    bench = Bench(limits=rates(ratio)).running()
    command(bench, [-0.02, 0, 0, 0, 0, 0, 1.0])
    found = ticks(bench, round(2 * ratio), ratio)
    moving = [c for c in found if c.kind is CommandKind.TAKEOVER]
    assert len(moving) == -(-ratio // 1)
    assert sum(c.action[0] for c in found) == pytest.approx(-0.02)


@pytest.mark.parametrize("ratio", RATIOS)
def test_displacements_that_follow_each_other_early_lose_nothing(ratio):
    """By a device that is quicker than the actions."""
    bench, total = Bench(limits=rates(ratio)).running(), 0.0
    for _ in range(10):
        command(bench, [0.002, 0, 0, 0, 0, 0, 1.0])
        total += sum(c.action[0] for c in bench.tick(0.05 / ratio))
    total += sum(c.action[0] for c in ticks(bench, round(2 * ratio), ratio))
    assert total == pytest.approx(0.02)


@pytest.mark.parametrize("ratio", RATIOS)
def test_a_velocity_moves_as_far_in_a_second_at_any_rate(ratio):
    bench, moved = Bench(limits=rates(ratio)).running(), 0.0
    for _ in range(round(20 * ratio)):
        command(bench, [0.1, 0, 0, 0, 0, 0, 1.0], TakeoverNumbers.VELOCITY)
        moved += sum(c.action[0] for c in bench.tick(0.05 / ratio))
    assert moved == pytest.approx(0.1)


@pytest.mark.parametrize("ratio", RATIOS)
def test_a_leader_arms_position_is_reached_within_an_action_period(ratio):
    bench = Bench(limits=rates(ratio, ARM))
    bench.ready()
    measure(bench, 0.0, 0.0)
    command(bench, [0.1, -0.2], TakeoverNumbers.JOINTS)
    found = [c.action for c in ticks(bench, -(-ratio // 1).__int__() + 1, ratio)]
    np.testing.assert_allclose(found[-1], [0.1, -0.2], atol=1e-12)
    steps = np.abs(np.diff([[0.0, 0.0], *found], axis=0)).max()
    assert steps <= 0.2 * max(1.6 / ratio, 0.04) or ratio == 1


def test_the_policy_takes_the_robot_back_without_a_step():
    """At 250 Hz its first chunk begins 50 mrad from where the person left the arm."""
    ratio = 12.5
    limits = rates(ratio, ARM, takeover_timeout_s=0.1)
    bench = Bench(limits=limits, chunk=20, chunking=Chunking(blend_s=0.25))
    bench.ready()
    measure(bench, 0.0, 0.0)
    for step in range(20):
        command(bench, [0.01 * step, 0.0], TakeoverNumbers.JOINTS)
        ticks(bench, 5, ratio)
        measure(bench, 0.01 * step, 0.0)
    ticks(bench, 40, ratio)  # they let go
    assert bench.control.release()
    measure(bench, 0.19, 0.0)
    rows = np.stack((0.24 + 0.005 * np.arange(20), np.zeros(20)), 1)
    bench.answer(bench.frame(), rows)
    found = [c for c in ticks(bench, 250, ratio) if c.kind is CommandKind.POLICY]
    at = [0.19, *[c.action[0] for c in found]]
    assert max(abs(b - a) for a, b in pairwise(at)) < 0.002, "not at once"
    assert at[-1] == pytest.approx(0.24 + 0.005 * 19, abs=0.01)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("commanded", [True, False])
def test_displacements_of_joints_end_where_they_do_at_equal_rates(ratio, commanded):
    """From the measured joints, of an arm that stands still: from those at the action's begin."""
    bench = Bench(limits=rates(ratio, DELTAS), chunk=4)
    bench.loop.outputs = JointOutputs(positions=True, commanded=commanded)
    bench.ready()
    measure(bench, 0.0, 0.0)
    bench.answer(bench.frame(), np.tile([0.02, -0.01], (4, 1)))
    found = ticks(bench, round(4 * ratio), ratio)
    whole = 4 if commanded else 1
    np.testing.assert_allclose(
        found[-1].joint_positions, [0.02 * whole, -0.01 * whole], atol=0.0081
    )
    steps = np.abs(np.diff([c.joint_positions for c in found], axis=0))
    assert steps.max(initial=0.0) <= 0.02 * 1.5 / min(ratio, 2) + 1e-9
