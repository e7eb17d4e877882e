"""ros2_control's joint_trajectory_controller as far as a stream of chunks meets it.

A model of one that commands positions, held to what the real one commanded
(``test_controller_model.py``). Each cycle commands what is due a cycle later. A cycle takes up the
last trajectory that came since the one before: it begins at its stamp, or with a stamp of zero in
that cycle. Positions without velocities are joined by straight lines, or (``upsampling``,
`positions_upsampling.enable`) by a cubic spline that begins and ends at rest. After the last point
its position is held.

``replacement`` is `allow_trajectory_replacement`, from 6.10 on: the motion before goes on until the
stamp, a cycle behind, and the trajectory is joined to it there, by a quintic. Without it (Humble,
Jazzy, Kilted) another trajectory ends the motion at once and leads to its first point, from what
was commanded last (``from_desired``, `interpolate_from_desired_state`), else from where the arm is,
at rest. Either way the first cycle begins at the position of a cycle later: it goes the way of two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from trajectory_msgs.msg import JointTrajectory

from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import Floats
from vla_ros.ros.common.convert import stamp_of

STILL = float(np.finfo(np.float32).eps)  # rad/s: what the last point may have


@dataclass(frozen=True)
class Point:
    """Where the joints are to be, ``at_ns``; None: it was not given."""

    at_ns: int
    positions: Floats
    velocities: Floats | None = None
    accelerations: Floats | None = None


@dataclass
class Motion:
    """A trajectory whose points are counted from ``begin_ns``, 0: from the cycle that takes it up.
    ``before``, an instant of the clock, leads to the first of them; None: it was not taken up."""

    begin_ns: int
    points: list[Point]
    before: Point | None = None

    def take_up(self, before: Point, now_ns: int) -> None:
        first, none = self.points[0], np.zeros_like(before.positions)
        if before.velocities is None and first.velocities is not None:
            before = replace(before, velocities=none)
        if before.accelerations is None and first.accelerations is not None:
            before = replace(before, accelerations=none)
        self.before, self.begin_ns = before, self.begin_ns or now_ns

    def at(self, now_ns: int) -> Point:
        """What it wants at an instant."""
        assert self.before is not None
        since = now_ns - self.begin_ns
        after = next((i for i, p in enumerate(self.points) if p.at_ns > since), None)
        if after is None:
            last, none = self.points[-1], np.zeros_like(self.points[-1].positions)
            return Point(now_ns, last.positions, none, none)
        first = replace(self.before, at_ns=self.before.at_ns - self.begin_ns)
        a, b = self.points[after - 1] if after else first, self.points[after]
        return replace(_between(a, b, since), at_ns=now_ns)


def _between(a: Point, b: Point, now_ns: int) -> Point:
    """Of the degree that both have values for: a quintic, a cubic or a straight line."""
    long, t = (b.at_ns - a.at_ns) / SECOND, (now_ns - a.at_ns) / SECOND
    given = [(x.positions, x.velocities, x.accelerations) for x in (a, b)]
    orders = min(sum(value is not None for value in values) for values in given)
    ends = [values[:orders] for values in given]
    rows = [_powers(time, order, 2 * orders) for time in (0.0, long) for order in range(orders)]
    factors = np.linalg.solve(np.array(rows), np.array([*ends[0], *ends[1]], float))
    return Point(now_ns, *(_powers(t, order, 2 * orders) @ factors for order in range(3)))


def _powers(t: float, order: int, count: int) -> Floats:
    """The derivatives of that order of 1, t, t^2, ..."""
    return np.array([math.perm(k, order) * t ** max(k - order, 0) for k in range(count)], float)


class JointTrajectoryController:
    """:meth:`receive` is its topic, :meth:`update` its control cycle, every ``period_ns``.

    ``lag_s``: the arm follows its command as a first order does; 0: it is there a cycle later.
    ``policy_hz``: of `positions_upsampling`, the rate of points that have no times.
    """

    def __init__(
        self, names: list[str], start: Floats, *, replacement: bool = True,
        from_desired: bool = True, upsampling: bool = False, policy_hz: float = 0.0,
        period_ns: int = 2 * MS, lag_s: float = 0.0,
    ) -> None:  # fmt: skip
        self._names, self._period_ns, self._lag_s = names, period_ns, lag_s
        self._replacement, self._from_desired = replacement, from_desired
        self._upsampling, self._policy_hz = upsampling, policy_hz
        self.position = self.measured = np.array(start, float)
        self.refused: list[str] = []
        self._motion = Motion(0, [Point(0, self.position)])
        self._came: Motion | None = None  # since the last cycle
        self._last: Point | None = None  # commanded
        self._now_ns = 0  # in the motion's time, at the last cycle

    # What comes in

    def receive(self, message: JointTrajectory, now_ns: int) -> bool:
        """Whether it was taken; else ``refused`` has why."""
        points = [
            Point(
                _since_start(p),
                np.array(p.positions),
                np.array(p.velocities) if p.velocities else None,
            )
            for p in message.points
        ]
        if self._upsampling and points and all(p.velocities is None for p in points):
            points = _upsampled(points, self._policy_hz)
        begin_ns = stamp_of(message.header.stamp)
        why = self._wrong(message.joint_names, points, begin_ns, now_ns)
        if why:
            self.refused.append(why)
            return False
        order = [message.joint_names.index(name) for name in self._names]
        ours = [(p, None if p.velocities is None else p.velocities[order]) for p in points]
        self._came = Motion(begin_ns, [Point(p.at_ns, p.positions[order], v) for p, v in ours])
        return True

    def _wrong(self, names: list[str], points: list[Point], begin_ns: int, now_ns: int) -> str:
        """Why it is refused; empty: it is not."""
        count = len(self._names)
        if len(names) != count or not set(names) <= set(self._names):
            return "joints do not match"
        if not points:
            return "empty trajectory"
        last = points[-1]
        if last.velocities is not None and np.abs(last.velocities).max() > STILL:
            return "does not end at rest"
        if begin_ns and begin_ns + last.at_ns < now_ns:
            return "ends in the past"
        if any(b.at_ns <= a.at_ns for a, b in zip(points, points[1:], strict=False)):
            return "time is not strictly increasing"
        for point in points:
            if len(point.positions) != count:
                return "a point without all positions"
            if point.velocities is not None and len(point.velocities) != count:
                return "a point without all velocities"
        return ""

    # What goes out

    def update(self, now_ns: int) -> Floats:
        """The positions commanded in this control cycle."""
        share = 1.0 - math.exp(-self._period_ns / SECOND / self._lag_s) if self._lag_s else 1.0
        self.measured = self.measured + share * (self.position - self.measured)
        if self._came is not None:
            joins = self._replacement and len(self._motion.points) > 1
            self._motion = self._joined(self._came, now_ns) if joins else self._came
            self._came = None
        if self._motion.before is None:
            here = Point(now_ns, self.measured)
            last = here if self._last is None else self._last
            self._motion.take_up(last if self._from_desired else here, now_ns)
        self._now_ns = now_ns
        due = self._motion.at(now_ns + self._period_ns)
        self._last = replace(due, at_ns=now_ns)
        self.position = due.positions
        return self.position

    def _joined(self, new: Motion, now_ns: int) -> Motion:
        """What is left of the motion until the new one begins, then that. It goes on from where the
        motion was in the last cycle."""
        old, cursor = self._motion, self._now_ns
        wait = max(new.begin_ns - now_ns, 0)
        kept = [replace(p, at_ns=p.at_ns + old.begin_ns - cursor) for p in old.points]
        kept = [p for p in kept if 0 < p.at_ns < wait]
        rest = [replace(p, at_ns=p.at_ns + wait) for p in new.points]
        if wait < rest[0].at_ns:
            kept.append(replace(old.at(cursor + wait), at_ns=wait))
        return Motion(0, [*kept, *rest])


def _upsampled(points: list[Point], policy_hz: float) -> list[Point]:
    """With velocities of the cubic spline through them that begins and ends at rest."""
    if policy_hz and not any(p.at_ns for p in points):
        step = SECOND / policy_hz
        points = [replace(p, at_ns=int((i + 1) * step)) for i, p in enumerate(points)]
    long = np.diff([p.at_ns for p in points])[:, None] / SECOND
    if len(points) < 2 or (long <= 0).any():
        return points
    slope = np.diff([p.positions for p in points], axis=0) / long
    a, right = np.eye(len(points)), np.zeros((len(points), slope.shape[1]))
    for i in range(1, len(points) - 1):
        before, after = 1 / long[i - 1, 0], 1 / long[i, 0]
        a[i, i - 1 : i + 2] = before, 2 * (before + after), after
        right[i] = 3 * (slope[i] * after + slope[i - 1] * before)
    made = np.linalg.solve(a, right)
    return [replace(p, velocities=v) for p, v in zip(points, made, strict=True)]


def _since_start(point: object) -> int:
    return point.time_from_start.sec * SECOND + point.time_from_start.nanosec
