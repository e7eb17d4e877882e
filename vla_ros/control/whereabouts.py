"""Where the robot is, as it says itself: end effectors' poses or joints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vla_ros import safety
from vla_ros.action_space import ActionSpace
from vla_ros.core import Floats
from vla_ros.timing import Moment


class Whereabouts:
    """The newest measured value of every place that moves, put together from messages that may
    each tell of some. Not thread-safe.

    In the units of the action space's absolute kin: poses for end effectors, positions for joints.
    """

    def __init__(self, space: ActionSpace, sim_time: bool) -> None:
        self._space = space
        self._sim_time = sim_time
        self._motion = list(space.motion)
        self.forget()

    def forget(self) -> None:
        """Nothing that was said counts any more: after a jump of the clock."""
        width = self._space.width
        self._values = np.zeros(width)
        self._stamp_ns = [0] * width
        self._received_ns: list[int | None] = [None] * width  # steady; None: never

    def tell(
        self, places: Sequence[int], values: Floats, stamp_ns: int, received_steady_ns: int
    ) -> None:
        """``values`` [len(places)] were measured at ``stamp_ns``; what is older than what is
        known is ignored."""
        for place, value in zip(places, values, strict=True):
            if self._received_ns[place] is None or stamp_ns > self._stamp_ns[place]:
                self._values[place] = value
                self._stamp_ns[place] = stamp_ns
                self._received_ns[place] = received_steady_ns

    def at(self, now: Moment, max_age_ns: int) -> Floats | None:
        """Float64 [D], grippers 0; None where any place was measured longer ago than that, or
        never."""
        if any(not self._is_fresh(place, now, max_age_ns) for place in self._motion):
            return None
        return self._values.copy()

    def lacks(self, now: Moment, max_age_ns: int) -> str:
        """Which places nobody has told of of late, for a log."""
        names = [
            self._space.names[place]
            for place in self._motion
            if not self._is_fresh(place, now, max_age_ns)
        ]
        if not self._space.kind.joints:
            return "nothing fresh on measured_pose" + (
                "" if len(self._motion) == 6 else f": {' '.join(names)}"
            )
        return "nothing fresh on joint_states of " + ", ".join(map(repr, names))

    def _is_fresh(self, place: int, now: Moment, max_age_ns: int) -> bool:
        received_ns = self._received_ns[place]
        if received_ns is None:
            return False
        stamp_ns = self._stamp_ns[place]
        age = safety.age_ns(now.now_ns, stamp_ns, now.steady_ns, received_ns, self._sim_time)
        return age <= max_age_ns
