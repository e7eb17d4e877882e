"""Poses of end effectors as numbers that a plan's limits can be counted in.

An axis-angle is no position: two that are far apart may be the same rotation, and near pi, where a
gripper that looks down is, they jump. So a plan of displacements is made of the displacement from
an anchor pose near by: x y z in m and a rotation vector in rad, both along the axes of the base
frame. A rotation vector never turns the arm faster than it changes itself, so what is within the
limits there is within them. No clock, no log.
"""

from __future__ import annotations

import numpy as np

from vla_ros.core import rotation
from vla_ros.core.types import Floats, Plan
from vla_ros.runtime.door import Door, TrajectoryCourse

_NEAR = 0.7  # rad from the anchor; farther away another one is taken
_MOST = 2.5  # rad: a plan ends before a rotation vector has another shorter way


class PoseChart:
    """Chart of ``arms`` end effectors, six numbers each, around a pose of them. Poses are x y z in
    m and an axis-angle in rad, in the base frame. Not thread-safe."""

    def __init__(self, arms: int) -> None:
        self._turns = [slice(6 * arm + 3, 6 * arm + 6) for arm in range(arms)]
        self._anchor: Floats | None = None

    def forget(self) -> None:
        """The next pose is the anchor."""
        self._anchor = None

    def of(self, pose: Floats) -> Floats:
        """Displacement of a pose [M] from the anchor, float64 [M]; without one, it becomes it."""
        if self._anchor is None:
            self._anchor = np.array(pose, np.float64)
        out: Floats = pose - self._anchor
        for turn in self._turns:
            out[turn] = rotation.turned(pose[turn], -self._anchor[turn])
        return out

    def pose(self, displaced: Floats) -> Floats:
        """The pose at that displacement, float64 [M]."""
        assert self._anchor is not None
        out: Floats = self._anchor + displaced
        for turn in self._turns:
            out[turn] = rotation.turned(displaced[turn], self._anchor[turn])
        return out

    def added(self, start: Floats, steps: Floats) -> Floats:
        """Displacements after each of ``steps`` [n, M] from ``start`` [M] on, one after the other,
        float64 [m, M]: no farther than a rotation vector goes, so m <= n."""
        rows, at = list[Floats](), start
        for step in steps:
            then = at + step
            for turn in self._turns:
                then[turn] = rotation.turned(step[turn], at[turn])
                if float(np.linalg.norm(then[turn])) > _MOST:
                    return np.array(rows).reshape(-1, len(start))
            rows.append(then)
            at = then
        return np.array(rows).reshape(-1, len(start))

    def move_to(self, at: Floats, course: TrajectoryCourse, steps: Door) -> Floats:
        """The displacement ``at`` [M] around an anchor that is near it: where it is far from this
        one, that pose becomes the anchor, and what was commanded is counted from it."""
        if all(float(np.linalg.norm(at[turn])) <= _NEAR for turn in self._turns):
            return at
        old = PoseChart(len(self._turns))
        old._anchor, self._anchor = self._anchor, self.pose(at)

        def counted(displaced: Floats) -> Floats:
            return self.of(old.pose(displaced))

        course.recount(counted)
        steps.recount(counted)
        return np.zeros(len(at))

    def plan(self, plan: Plan) -> Plan:
        """A plan of displacements as one of poses; its velocities stay those of displacements."""
        points = tuple((seconds, self.pose(row), rates) for seconds, row, rates in plan.points)
        return Plan(points, plan.begin_ns, plan.at_once)
