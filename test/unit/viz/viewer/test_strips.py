"""The lines of the charts, from commands."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from vla_ros.core.action_space import END_EFFECTOR_DELTA
from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import STAGES, CommandKind, PolicyState
from vla_ros.runtime.monitor.seen import CommandSeen, StagesSeen, StatusSeen
from vla_ros.viz.viewer.model import SECONDS, CommandShown, Strips

UNITS = ("m", "m", "m", "rad", "rad", "rad", "1")
STATUS = StatusSeen(
    PolicyState.RUNNING, control_rate_hz=20.0, max_age_ms=500.0, acceptance=(0.5,) * 7
)


NUMBERS = itertools.count()


def command(age_ms=100.0, action=(0.0,) * 7, kind=CommandKind.POLICY, observed=True, index=None):
    """``index``: of its action in its chunk; None: another action than all before."""
    stages = StagesSeen(tuple(map(float, range(len(STAGES)))), 100.0)
    published = 1000 * SECOND
    observed_ns = published - round(age_ms * MS) if observed else 0
    number = next(NUMBERS) if index is None else index
    seen = CommandSeen(1, kind, published, observed_ns, number, stages)
    return CommandShown(seen, tuple(action), END_EFFECTOR_DELTA.names, UNITS)


def strip(strips, name, now):
    return next(s for s in strips.strips(now) if s.name == name)


def test_a_point_shows_the_oldest_observation_since_the_last():
    strips = Strips()
    for age in (80.0, 300.0, 120.0):
        strips.add(command(age), SECOND)
    assert strips.sample(STATUS, SECOND)
    assert not strips.sample(STATUS, SECOND + SECOND // 10)
    assert strips.sample(STATUS, 2 * SECOND)
    age = strip(strips, "age", 2 * SECOND)
    assert age.y[0][0] == pytest.approx(300.0)
    assert math.isnan(age.y[0][1])  # nothing came: no line, not a zero
    assert age.y[1].tolist() == [500.0, 500.0]
    assert age.x.tolist() == [-1.0, 0.0]
    assert age.high > 500.0


def test_a_command_that_rests_on_nothing_has_no_age():
    strips = Strips()
    strips.add(command(kind=CommandKind.STOP, observed=False), SECOND)
    strips.sample(None, SECOND)
    assert math.isnan(strips.age_ms)


def test_rates_are_those_of_the_last_second():
    strips = Strips()
    for i in range(40):
        kind = CommandKind.POLICY if i % 2 else CommandKind.HELD
        strips.add(command(kind=kind), SECOND + i * SECOND // 20)
    now = SECOND + 39 * SECOND // 20
    strips.sample(STATUS, now)
    actions, commands, wanted = (line[-1] for line in strip(strips, "rate", now).y)
    assert (actions, wanted) == (pytest.approx(10, abs=1), 20.0)
    assert commands == pytest.approx(20, abs=1)


def test_rates_of_actions_and_of_commands_are_two_where_they_differ():
    """Five commands an action."""
    strips = Strips()
    status = replace(STATUS, action_rate_hz=20.0, control_rate_hz=100.0)
    for i in range(200):
        strips.add(command(index=i // 5), SECOND + i * SECOND // 100)
    now = SECOND + 199 * SECOND // 100
    strips.sample(status, now)
    rate = strip(strips, "rate", now)
    assert [line.label for line in rate.lines] == [
        "new actions", "commands", "action rate", "control rate",
    ]  # fmt: skip
    shown = [line[-1] for line in rate.y]
    assert shown == [pytest.approx(20, abs=1), pytest.approx(100, abs=1), 20.0, 100.0]
    strips.sample(STATUS, now + SECOND)  # configured anew, with one rate
    assert len(strip(strips, "rate", now + SECOND).lines) == 3


def test_500_commands_a_second_are_all_counted_and_make_five_points():
    strips = Strips()
    status = replace(STATUS, action_rate_hz=20.0, control_rate_hz=500.0)
    for i in range(1500):
        now = SECOND + i * SECOND // 500
        strips.add(command(age_ms=100.0 + i, index=i // 25), now)
        strips.sample(status, now)
    strips.sample(status, SECOND * 4)
    rate, age = strip(strips, "rate", now), strip(strips, "age", now)
    assert len(rate.x) == 16
    assert rate.y[1][-2] == pytest.approx(500, abs=1)
    assert age.y[0][-1] == pytest.approx(1599.0)  # the oldest since the last point


@pytest.mark.parametrize(("actions", "commands", "part"), [(20.0, 100.0, 0.2), (50.0, 20.0, 2.5)])
def test_a_displacement_of_a_command_is_a_share_of_its_part_of_the_bound(actions, commands, part):
    """Bounds are an action's, of which a command of five makes a fifth; targets are what they
    are."""
    status = replace(STATUS, action_rate_hz=actions, control_rate_hz=commands)
    row = (*(part * x for x in (0.05, -0.05, 0.0, 0.0, 0.0, 0.025)), 0.5)
    for displaces, by in ((True, 1.0), (False, part)):
        strips = Strips()
        strips.set_bounds((-0.1,) * 6, (0.05,) * 6)
        strips.add(replace(command(action=row), displaces=displaces), SECOND)
        strips.sample(status, SECOND)
        shown = [line[-1] for line in strip(strips, "action", SECOND).y[:7]]
        assert shown == pytest.approx([by, -0.5 * by, 0.0, 0.0, 0.0, 0.5 * by, 0.5])


def test_each_number_of_an_action_is_a_share_of_its_own_bound():
    strips = Strips()
    strips.set_bounds((-0.1, -0.1, -0.1, -1, -1, -1), (0.05, 0.1, 0.1, 1, 1, 2))
    strips.add(command(action=(0.05, -0.05, 0.0, 1.0, 0.5, 1.0, 1.0)), SECOND)
    strips.sample(STATUS, SECOND)
    shown = strip(strips, "action", SECOND)
    assert [line[0] for line in shown.y[:7]] == [1.0, -0.5, 0.0, 1.0, 0.5, 0.5, 1.0]
    assert [line.label for line in shown.lines] == [*END_EFFECTOR_DELTA.names, "bound", "-bound"]


def test_an_action_of_another_robot_makes_other_lines():
    strips = Strips()
    strips.add(command(), SECOND)
    strips.sample(STATUS, SECOND)
    other = command()
    strips.add(CommandShown(other.seen, (0.1, 0.2), ("j1", "j2"), ("rad", "rad")), 2 * SECOND)
    strips.sample(STATUS, 2 * SECOND)
    shown = strip(strips, "action", 2 * SECOND)
    assert [line.label for line in shown.lines][:2] == ["j1", "j2"]
    assert all(len(line) == len(shown.x) for line in shown.y)


def test_a_minute_is_kept_and_every_line_is_as_long_as_its_axis():
    strips = Strips()
    for i in range(SECONDS * 10):
        strips.add(command(), SECOND + i * SECOND // 5)
        strips.sample(STATUS if i % 3 else None, SECOND + i * SECOND // 5)
    for shown in strips.strips(SECOND + SECONDS * 2 * SECOND):
        assert len(shown.x) == SECONDS * 5
        assert len(shown.lines) == len(shown.y)
        assert all(line.shape == shown.x.shape and line.dtype == np.float64 for line in shown.y)
        assert shown.low < shown.high
