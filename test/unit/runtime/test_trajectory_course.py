"""The course of a trajectory: what its controller makes of the points by its own clock, between
them too, is within the limits, and one plan goes over into the next without a step or a corner."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.motion_limits import Spline
from vla_ros.core.clock import SECOND
from vla_ros.runtime.door import TrajectoryCourse
from vla_ros.runtime.limiter import Leash, Reach

RUNS = int(os.environ.get("VLA_ROS_RUNS", "150"))
HERE = np.zeros(2)


def reach(period_s, velocity, acceleration=None, low=-1.0, high=1.0):
    """Limits of two joints for an action's period."""
    full = np.ones(2)
    change = np.inf if acceleration is None else acceleration * period_s**2
    free = np.full(2, np.inf)
    return Reach(
        low * full, high * full, velocity * period_s * full, change * full, free, free, free, True
    )


class Followed:
    """A course and everything that its controller executes of it."""

    def __init__(self, course, limits, period_ns, leash=None):
        self.course, self.limits, self.period_ns, self.leash = course, limits, period_ns, leash
        self.spline = None
        self.taken_up = []  # (instant, position and velocity of the plan before, of the new one)

    def takes(self, plan, begin_ns):
        """A plan from an instant on; what was before is executed until then."""
        begin = begin_ns / SECOND
        start, rate = self.where(begin)
        at, rows, rates = [np.array([begin])], [start[None]], [rate[None]]
        if self.spline is not None:
            kept = self.spline.at < begin - 1e-9
            at.insert(0, self.spline.at[kept])
            rows.insert(0, self.spline.positions[kept])
            rates.insert(0, self.spline.rates[kept])
        at.append(begin + np.array([s for s, _, _ in plan.points]))
        rows.append(np.array([row for _, row, _ in plan.points]))
        rates.append(np.array([v for _, _, v in plan.points]))
        self.spline = Spline(np.concatenate(at), np.concatenate(rows), np.concatenate(rates))

    def where(self, at):
        if self.spline is None:
            return HERE, np.zeros(2)
        if not self.spline.at[0] <= at < self.spline.at[-1]:  # not begun yet, or over
            return self.spline.positions[0 if at < self.spline.at[0] else -1], np.zeros(2)
        row, rate, _ = self.spline(np.array([at]))
        return row[0], rate[0]

    def judge(self, velocity, acceleration, low, high):
        """Held to the limits at 1 kHz and at every point."""
        spline = self.spline
        assert (np.diff(spline.at) > 0.0).all()
        assert not spline.rates[-1].any(), "it ends at rest"
        both = [spline.at, np.arange(spline.at[0], spline.at[-1], 1e-3)]
        both += [spline.at[1:] - 1e-7 * np.diff(spline.at)]
        at = np.sort(np.concatenate(both))
        row, rate, change = spline(at)
        assert np.abs(rate).max() <= velocity * (1 + 1e-6), worst(at, rate)
        assert row.max() <= high + 1e-6 and row.min() >= low - 1e-6, worst(at, row)
        if acceleration is not None:
            long = np.diff(spline.at, append=np.inf)
            seen = long[np.searchsorted(spline.at, at, side="right") - 1] > 1e-4  # of ns
            most = np.abs(change[seen]).max()
            assert most <= acceleration * (1 + 1e-3) + 1e-6, worst(at[seen], change[seen])


def worst(at, values):
    row, joint = np.unravel_index(np.abs(values).argmax(), values.shape)
    return f"{values[row, joint]:.6f} of joint {joint} at {at[row]:.4f} s"


rows = st.lists(st.tuples(st.floats(-1.5, 1.5), st.floats(-1.5, 1.5)), min_size=1, max_size=12)
smooth = st.tuples(st.floats(-0.05, 0.05), st.floats(0.0, 0.3), st.integers(1, 12))


@st.composite
def chunks(draw):
    """Of what is commanded: leaps, or a motion of small steps."""
    if draw(st.booleans()):
        return np.array(draw(rows))
    step, curved, count = draw(smooth)
    number = np.arange(1, count + 1)
    return np.stack([step * number + curved * step * number**2, -0.5 * step * number], axis=1)


@settings(max_examples=RUNS, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.data(),
    hz=st.sampled_from([5.0, 15.0, 20.0, 30.0, 50.0]),
    velocity=st.floats(0.1, 3.0),
    acceleration=st.none() | st.floats(0.5, 50.0),
    bound=st.floats(0.05, 1.2),
    lead=st.sampled_from([0.0, 0.02, 0.05]),
)
def test_no_number_is_above_the_limits_whatever_is_replaced_by_what_and_when(
    data, hz, velocity, acceleration, bound, lead
):
    period_ns = round(SECOND / hz)
    limits = reach(period_ns / SECOND, velocity, acceleration, -bound, bound)
    course = TrajectoryCourse()
    motion = Followed(course, limits, period_ns)
    now = SECOND
    for _ in range(data.draw(st.integers(1, 5))):
        chunk = data.draw(chunks())
        begin_ns = now + round(lead * SECOND)
        if data.draw(st.integers(0, 5)) == 0 and motion.spline is not None:
            begin_ns = now
            plan = course.stop(limits, now, period_ns, Leash(HERE, np.full(2, 9.0)))
        else:
            left_s = data.draw(st.floats(0.0, 0.7))
            first = course.at(begin_ns, period_ns, limits, Leash(HERE, np.full(2, 9.0)))
            plan = course.follow(
                chunk, limits, begin_ns, period_ns, left_s, Leash(HERE, np.full(2, 9.0))
            )
            if plan is not None:
                where, rate = motion.where(begin_ns / SECOND)
                assert first.at == pytest.approx(where, abs=1e-6)
                assert first.step / period_ns * SECOND == pytest.approx(rate, abs=1e-4)
        if plan is not None:
            motion.takes(plan, begin_ns)
            motion.judge(velocity, acceleration, -bound, bound)
        now += round(data.draw(st.floats(0.0, 0.4)) * SECOND)
