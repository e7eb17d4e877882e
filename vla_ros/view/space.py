"""What the three-dimensional part shows at an instant, and the last seconds of it.

Not thread-safe. Times are nanoseconds of the steady clock; lengths are metres in the world frame.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from vla_ros.core import Floats
from vla_ros.timing import SECOND

SECONDS = 30  # that can be looked back
_EVERY_NS = SECOND // 10
_AHEAD_S = 0.5  # the arrow ends where the command, repeated so long, would bring the hand

#: Colours by the words in an object's name.
COLOURS = {
    "red": (205, 40, 35),
    "green": (30, 150, 55),
    "blue": (35, 75, 205),
    "yellow": (240, 200, 30),
    "plate": (225, 232, 240),
    "basket": (150, 110, 70),
}
_OTHER = (150, 140, 190)
_NOT_THINGS = ("gripper", "finger")  # of the robot, which is shown by its joints


@dataclass(frozen=True, slots=True)
class Instant:
    """``joints``: rad and m by name; ``poses``: float64 [4, 4] by name, of the ground truth;
    ``step``: float64 [3], the displacement of one control period that was commanded last."""

    steady_ns: int
    joints: Mapping[str, float] = field(default_factory=dict)
    poses: Mapping[str, Floats] = field(default_factory=dict)
    step: Floats | None = None

    def things(self) -> dict[str, Floats]:
        """What lies about: all but the hand."""
        return {
            name: pose
            for name, pose in self.poses.items()
            if not any(word in name for word in _NOT_THINGS)
        }

    def arrow(self, rate_hz: float, base: Floats | None = None) -> Floats | None:
        """Float64 [2, 3], from the hand to where the commanded displacement leads in half a
        second. ``base``: float64 [4, 4] of the frame that displacements are in. None: no arrow."""
        hand = self.poses.get("gripper")
        if hand is None or self.step is None or not np.any(self.step):
            return None
        turned = self.step if base is None else base[:3, :3] @ self.step
        start = hand[:3, 3]
        return np.array([start, start + turned * rate_hz * _AHEAD_S])


class Past:
    """The last :data:`SECONDS` seconds, ten instants a second."""

    def __init__(self) -> None:
        self._kept: deque[Instant] = deque(maxlen=SECONDS * SECOND // _EVERY_NS)
        self.now = Instant(0)

    def add(self, instant: Instant) -> None:
        """The newest; kept where the last that was kept is old enough."""
        self.now = instant
        if not self._kept or instant.steady_ns - self._kept[-1].steady_ns >= _EVERY_NS:
            self._kept.append(instant)

    def at(self, seconds_ago: float) -> Instant:
        """The kept one nearest to then; the newest for 0."""
        if seconds_ago <= 0 or not self._kept:
            return self.now
        then = self.now.steady_ns - seconds_ago * SECOND
        return min(self._kept, key=lambda one: abs(one.steady_ns - then))


def colour_of(name: str) -> tuple[int, int, int]:
    """By the words in a thing's name."""
    return next((rgb for word, rgb in COLOURS.items() if word in name), _OTHER)
