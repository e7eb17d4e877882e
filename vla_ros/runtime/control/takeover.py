"""Takeover: a person's commands move the robot while they come, and the policy's do not.

The person is held to the same limits at the same gate. His commands rest on no observation of
ours: their age is their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from vla_ros.core import rotation
from vla_ros.core.action_space import ActionSpace
from vla_ros.core.clock import SECOND, Moment
from vla_ros.core.types import Floats
from vla_ros.runtime.safety import Limits, Safety


class TakeoverNumbers(Enum):
    """What the numbers of a person's command are."""

    ACTION = "an action of the policy's space"
    VELOCITY = "velocities of the end effectors, m/s and rad/s, in the frame of the actions"
    JOINTS = "positions of the joints, those of a leader arm"


@dataclass(frozen=True, slots=True)
class Teleoperation:
    """One command of a person: float64 [D], of the action space's width. NaN at a gripper's place
    leaves it as it is. ``stamp_ns`` is its own, ROS time."""

    values: Floats
    meaning: TakeoverNumbers
    stamp_ns: int


class Takeover:
    """The person's newest command, and whether he has the robot. Under the loop's lock.

    ``under``: the state that he took it over in.
    """

    def __init__(self, space: ActionSpace, sim_time: bool) -> None:
        self._space = space
        self._sim_time = sim_time
        self.under = Safety()
        self.clear()

    def clear(self) -> None:
        """Nothing was heard."""
        self._newest: Teleoperation | None = None
        self._heard_ns = 0
        self._used = self._released = False

    def release(self) -> None:
        """What goes on coming is not heard until it has paused for the timeout."""
        self._released = True

    def refusal(self, command: Teleoperation, now: Moment, limits: Limits) -> str:
        """Why a command that came now is not obeyed; ""; it is the newest one from now on."""
        age = now.now_ns - command.stamp_ns
        tolerance = limits.period_ns if self._sim_time else limits.clock_tolerance_ns
        if not -tolerance <= age <= self._timeout_ns(limits):
            return (
                f"it is {age / SECOND:.2f} s old by its stamp, takeover_timeout_s is"
                f" {limits.takeover_timeout_s:g}: fill header.stamp, and see that the clocks agree"
            )
        paused = not 0 <= self._at_ns(now) - self._heard_ns <= self._timeout_ns(limits)
        self._heard_ns = self._at_ns(now)
        if self._released and not paused:
            return ""
        self._released = False
        self._newest, self._used = command, False
        return ""

    def has_robot(self, now: Moment, limits: Limits) -> bool:
        """Whether the person's last command is so young that the robot is his."""
        young = 0 <= self._at_ns(now) - self._heard_ns <= self._timeout_ns(limits)
        return self._newest is not None and not self._released and young

    def valid_until_ns(self, limits: Limits) -> int:
        """Of what follows from the newest command, ROS time; 0: there is none."""
        newest = self._newest
        return newest.stamp_ns + self._timeout_ns(limits) if newest is not None else 0

    def take(self) -> Teleoperation | None:
        """What is to be executed in this period: a displacement once, velocities and places for as
        long as they hold. None: nothing new."""
        newest, again = self._newest, self._used
        self._used = True
        if newest is None:
            return None
        once = newest.meaning is TakeoverNumbers.ACTION and not self._space.absolute
        return None if again and once else newest

    def _timeout_ns(self, limits: Limits) -> int:
        return round(limits.takeover_timeout_s * SECOND)

    def _at_ns(self, now: Moment) -> int:
        """A simulated world may stand still or hurry: there its own time counts."""
        return now.now_ns if self._sim_time else now.steady_ns


def action_of(command: Teleoperation, limits: Limits, place: Floats | None) -> Floats:
    """The action for one control period, float64 [D]; grippers of which nothing is said are 0.
    ``place``: where the robot was sent last or is, of what is told places or measured in joints.
    Raises ValueError where it is needed and not known."""
    space = limits.space
    action = np.array(command.values, dtype=np.float64)
    motion = list(space.motion)
    if command.meaning is TakeoverNumbers.VELOCITY:
        action[motion] *= limits.period_s
        if space.absolute:
            action[motion] = _moved(action, _known(place), space)[motion]
    elif command.meaning is TakeoverNumbers.JOINTS and not space.absolute:
        action[motion] -= _known(place)[motion]
    grippers = list(space.grippers)
    action[grippers] = np.nan_to_num(action[grippers])
    return action


def _known(place: Floats | None) -> Floats:
    if place is None:
        raise ValueError("nobody says where the robot is")
    return place


def _moved(by: Floats, place: Floats, space: ActionSpace) -> Floats:
    """``place`` moved and turned by displacements that are seen from the actions' frame."""
    out = place + by
    for turn in map(list, space.rotations):
        out[turn] = rotation.turned(by[turn], place[turn])
    return out
