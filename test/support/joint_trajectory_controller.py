"""ros2_control's joint_trajectory_controller as far as a stream of chunks meets it.

Written from what its documentation and sources of August 2026 (6.10) say it does, for one that
commands positions: what it refuses; a trajectory with a stamp in the future leaves the motion as it
is until then and goes on from there (`allow_trajectory_replacement`); one with a stamp that is zero
or over begins when it comes; positions without velocities are joined by straight lines, or
(`positions_upsampling.enable`) by a cubic spline that begins and ends at rest. After the last point
its position is held. The arm is where it was commanded to be: there are no dynamics here.

`replacement=False` is a controller before 6.10 (Humble, Jazzy, Kilted): another trajectory ends the
motion at once and leads from where the arm is to its first point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from trajectory_msgs.msg import JointTrajectory

from vla_ros.core.clock import SECOND
from vla_ros.core.types import Floats
from vla_ros.ros.common.convert import stamp_of


@dataclass(frozen=True)
class Point:
    """Where the joints are to be, ``at_ns``; None: no velocity was given."""

    at_ns: int
    positions: Floats
    velocities: Floats | None = None


class JointTrajectoryController:
    """:meth:`receive` is its topic, :meth:`update` its control cycle."""

    def __init__(self, names: list[str], start: Floats, *, replacement: bool = True) -> None:
        self._names = names
        self._replacement = replacement
        self.position = np.array(start, float)
        self._rate = np.zeros(len(names))
        self.refused: list[str] = []
        self._points: list[Point] = []  # of the motion, the first one where it was taken up
        self._single = True  # it came as one point
        self._updated_ns: int | None = None

    # What comes in

    def receive(self, message: JointTrajectory, now_ns: int) -> bool:
        """Whether it was taken; else ``refused`` has why."""
        why = self._wrong(message, now_ns)
        if why:
            self.refused.append(why)
            return False
        order = [message.joint_names.index(name) for name in self._names]
        begin_ns = stamp_of(message.header.stamp)
        late = begin_ns <= now_ns and (begin_ns == 0 or self._goes_on())
        points = [
            Point(
                (now_ns if late else begin_ns) + _since_start(p),
                np.array(p.positions)[order],
                np.array(p.velocities)[order] if p.velocities else None,
            )
            for p in message.points
        ]
        since = now_ns if self._updated_ns is None else self._updated_ns
        begin = Point(since, self.position, self._rate)
        joined = self._until(max(begin_ns, now_ns), now_ns, points[0]) if self._goes_on() else []
        here = [] if joined and joined[0].at_ns <= since else [begin]
        self._points, self._single = [*here, *joined, *points], len(joined + points) == 1
        return True

    def _goes_on(self) -> bool:
        """There is a motion that another trajectory is joined to."""
        return self._replacement and not self._single

    def _until(self, begin_ns: int, now_ns: int, first: Point) -> list[Point]:
        """What is left of the motion until ``begin_ns``, where ``first`` and what follows join it.

        The place to join at is read in the time of the last cycle: a cycle before.
        """
        since = now_ns if self._updated_ns is None else self._updated_ns
        kept = [p for p in self._points if now_ns < p.at_ns < begin_ns]
        joint = replace(self._at(since + begin_ns - now_ns), at_ns=begin_ns)
        return [*kept, joint] if begin_ns < first.at_ns else kept

    def _wrong(self, message: JointTrajectory, now_ns: int) -> str:
        """Why it is refused; empty: it is not."""
        if sorted(message.joint_names) != sorted(self._names):
            return "joints do not match"
        if not message.points:
            return "empty trajectory"
        times = [_since_start(p) for p in message.points]
        if any(b <= a for a, b in zip(times, times[1:], strict=False)):
            return "time is not strictly increasing"
        if any(len(p.positions) != len(self._names) for p in message.points):
            return "a point without all positions"
        begin_ns = stamp_of(message.header.stamp)
        if begin_ns and begin_ns + times[-1] < now_ns:
            return "ends in the past"
        if any(message.points[-1].velocities):
            return "does not end at rest"
        return ""

    # What goes out

    def update(self, now_ns: int) -> Floats:
        """The positions commanded in this control cycle."""
        if self._points:
            here = self._at(now_ns)
            self.position = here.positions
            self._rate = 0.0 * self.position if here.velocities is None else here.velocities
        self._updated_ns = now_ns
        return self.position

    def _at(self, now_ns: int) -> Point:
        """The motion at an instant."""
        after = next((i for i, p in enumerate(self._points) if p.at_ns > now_ns), None)
        if after == 0:
            return self._points[0]
        if after is None:
            last = self._points[-1].positions
            return Point(now_ns, last, np.zeros_like(last))
        a, b = self._points[after - 1 : after + 1]
        long, s = (b.at_ns - a.at_ns) / SECOND, (now_ns - a.at_ns) / (b.at_ns - a.at_ns)
        way = b.positions - a.positions
        if a.velocities is None or b.velocities is None:
            return Point(now_ns, a.positions + s * way, way / long)
        from_, to = a.velocities, b.velocities
        c, d = 3 * way - (2 * from_ + to) * long, (from_ + to) * long - 2 * way
        where = a.positions + from_ * long * s + c * s**2 + d * s**3
        return Point(now_ns, where, from_ + (2 * c * s + 3 * d * s**2) / long)


def _since_start(point: object) -> int:
    return point.time_from_start.sec * SECOND + point.time_from_start.nanosec
