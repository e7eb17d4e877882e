"""Takeover: a person's commands move the robot while they come, and the policy's do not.

The person is held to the same limits at the same gate. A person's commands rest on no observation
of ours: their age is their own.
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
    """Meaning of the numbers of a person's command."""

    ACTION = "an action of the policy's space"
    VELOCITY = "velocities of the end effectors, m/s and rad/s, in the frame of the actions"
    JOINTS = "positions of the joints, those of a leader arm"


@dataclass(frozen=True, slots=True)
class Teleoperation:
    """One command of a person: float64 [D], of the action space's width. NaN at a gripper's index
    leaves it as it is. ``stamp_ns`` is its own, ROS time."""

    values: Floats
    meaning: TakeoverNumbers
    stamp_ns: int

    def of_action(self, space: ActionSpace) -> bool:
        """True of numbers that are an action's, which takes an action period: not velocities, nor
        joints where actions are displacements."""
        joints = self.meaning is TakeoverNumbers.JOINTS and space.absolute
        return joints or self.meaning is TakeoverNumbers.ACTION


class Takeover:
    """The person's newest command, and whether the robot is theirs. Under the loop's lock.

    ``under``: the state that it was taken over in.
    """

    def __init__(self, space: ActionSpace, sim_time: bool) -> None:
        self._space = space
        self._sim_time = sim_time
        self.under = Safety()
        self.clear()

    def clear(self) -> None:
        """Forget every command."""
        self._newest: Teleoperation | None = None
        self._received_ns = 0
        self._used = self._released = False

    def release(self) -> None:
        """Ignore commands until they have paused for the timeout."""
        self._released = True

    def refusal(self, command: Teleoperation, now: Moment, limits: Limits) -> str:
        """Reason for which a command of now is not obeyed; "": it is the newest from now on."""
        age = now.now_ns - command.stamp_ns
        tolerance = limits.period_ns if self._sim_time else limits.clock_tolerance_ns
        if not -tolerance <= age <= self._timeout_ns(limits):
            return (
                f"it is {age / SECOND:.2f} s old by its stamp, takeover_timeout_s is"
                f" {limits.takeover_timeout_s:g}: fill header.stamp, and see that the clocks agree"
            )
        paused = not 0 <= self._at_ns(now) - self._received_ns <= self._timeout_ns(limits)
        self._received_ns = self._at_ns(now)
        if self._released and not paused:
            return ""
        self._released = False
        self._newest, self._used = command, False
        return ""

    def has_robot(self, now: Moment, limits: Limits) -> bool:
        """True while the person's last command is so young that the robot is theirs."""
        young = 0 <= self._at_ns(now) - self._received_ns <= self._timeout_ns(limits)
        return self._newest is not None and not self._released and young

    def valid_until_ns(self, limits: Limits) -> int:
        """End of the newest command's validity, ROS time; 0: there is none."""
        newest = self._newest
        return newest.stamp_ns + self._timeout_ns(limits) if newest is not None else 0

    def take(self) -> tuple[Teleoperation | None, bool]:
        """The command of this period, and whether it is new: a displacement once, velocities and
        positions for as long as they hold. None: nothing new."""
        newest, again = self._newest, self._used
        self._used = True
        if newest is None:
            return None, False
        once = newest.meaning is TakeoverNumbers.ACTION and not self._space.absolute
        return (None if again and once else newest), not again

    def _timeout_ns(self, limits: Limits) -> int:
        return round(limits.takeover_timeout_s * SECOND)

    def _at_ns(self, now: Moment) -> int:
        """The clock of lapses: a simulated world may stand still or hurry, so its own time
        counts."""
        return now.now_ns if self._sim_time else now.steady_ns


def action_of(command: Teleoperation, limits: Limits, position: Floats | None) -> Floats:
    """The action for one control period, float64 [D]; grippers that are not commanded are 0.
    ``position``: the one commanded last, or measured of joints. Raises ValueError where it is
    needed and not known."""
    space = limits.space
    action = np.array(command.values, dtype=np.float64)
    motion = list(space.motion)
    if command.meaning is TakeoverNumbers.VELOCITY:
        action[motion] *= limits.period_s
        if space.absolute:
            action[motion] = _moved(action, _known(position), space)[motion]
    elif command.meaning is TakeoverNumbers.JOINTS and not space.absolute:
        action[motion] -= _known(position)[motion]
    grippers = list(space.grippers)
    action[grippers] = np.nan_to_num(action[grippers])
    return action


def _known(position: Floats | None) -> Floats:
    if position is None:
        raise ValueError("nobody says where the robot is")
    return position


def _moved(by: Floats, position: Floats, space: ActionSpace) -> Floats:
    """``position`` moved and turned by displacements that are seen from the actions' frame."""
    out = position + by
    for turn in map(list, space.rotations):
        out[turn] = rotation.turned(by[turn], position[turn])
    return out
