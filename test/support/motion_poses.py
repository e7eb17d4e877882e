"""Rules for plans of an end effector's poses, apart from those of joints: a pose has an angle to
another, and no controller's cubic is known.

Own arithmetic, with quaternions alone: nothing of the node's is imported. Between two points means
are judged: a mean above a limit was above it somewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from support.motion_limits import EPSILON, Floats, Limits

SLACK = 1e-3  # of a limit: nanoseconds and rounding
LATE = 0.25  # of a period's way: the old plan's cubic beside its chord, where another begins


@dataclass(frozen=True)
class PosePlan:
    """Poses at times, s: positions [n, 3], quaternions [n, 4] as x y z w of length 1. The first one
    is where it begins."""

    at: Floats
    positions: Floats
    quaternions: Floats

    def where(self, at: float) -> tuple[Floats, Floats]:
        """Pose at a time: between two points on the chord; before and behind at the ends."""
        after = int(np.clip(np.searchsorted(self.at, at), 1, len(self.at) - 1))
        one, other = self.at[after - 1], self.at[after]
        share = float(np.clip((at - one) / (other - one), 0.0, 1.0))
        position = (1 - share) * self.positions[after - 1] + share * self.positions[after]
        first, last = self.quaternions[after - 1], self.quaternions[after]
        last = last if first @ last >= 0 else -last
        mixed = (1 - share) * first + share * last  # small angles
        return position, mixed / np.linalg.norm(mixed)


def poses_of(message: Any) -> tuple[Floats, Floats, Floats]:
    """Times from the begin [n], positions [n, 3], quaternions [n, 4] of a message's points."""
    times, positions, quaternions = [], [], []
    for point in message.points:
        (one,) = point.transforms
        times.append(point.time_from_start.sec + point.time_from_start.nanosec * 1e-9)
        positions.append([getattr(one.translation, axis) for axis in "xyz"])
        quaternions.append([getattr(one.rotation, axis) for axis in "xyzw"])
    return np.array(times), np.array(positions), np.array(quaternions)


def angle_between(one: Floats, other: Floats) -> float:
    """Angle of the rotation from one quaternion to the other, rad; exact for small ones."""
    beside = other if one @ other >= 0 else -other
    return float(4 * np.arcsin(min(1.0, np.linalg.norm(one - beside) / 2)))


def breaks_of(
    limits: Limits, idx: list[int], plan: PosePlan, begun: bool, stops: bool
) -> list[tuple[str, str]]:
    """Broken rules, each with its words. ``begun``: the plan's first pose is that of the one before
    it; else the robot's is unknown, and the way there is not judged. ``stops``: a STOP holds."""
    found = []
    most = np.maximum(np.abs(limits.low[idx]), np.abs(limits.high[idx])) / limits.action_period
    if limits.velocity is not None:
        most = np.minimum(most, limits.velocity[idx])
    lapses = np.diff(plan.at)
    means = np.diff(plan.positions, axis=0) / lapses[:, None]
    turns = [
        angle_between(one, other) / lapse
        for one, other, lapse in zip(plan.quaternions, plan.quaternions[1:], lapses, strict=False)
    ]
    for number, (mean, turn) in enumerate(zip(means, turns, strict=True)):
        if number == 0 and not begun:
            continue
        slack = LATE * limits.action_period / lapses[0] if number == 0 else SLACK
        for axis, rate, allowed in zip("xyz", np.abs(mean), most, strict=False):
            if rate > allowed * (1 + slack) + EPSILON / lapses[number]:
                found.append(("speed", f"{axis} {rate:.4g} m/s; allowed {allowed:.4g}"))
        allowed = float(np.linalg.norm(most[3:]))
        if turn > allowed * (1 + slack) + EPSILON / lapses[number]:
            found.append(("speed", f"turns with {turn:.4g} rad/s; allowed {allowed:.4g}"))
    if limits.acceleration is not None:
        gaps = (lapses[1:-1] + lapses[2:]) / 2  # not with the first: its begin is a chord's
        for mean, following, gap in zip(means[1:-1], means[2:], gaps, strict=False):
            over = np.abs(following - mean) / gap
            for axis, rate, allowed in zip("xyz", over, limits.acceleration[idx], strict=False):
                if rate > allowed * (1 + SLACK) + EPSILON / gap:
                    found.append(("acceleration", f"{axis} {rate:.4g}; allowed {allowed:.4g}"))
    elif stops and np.ptp(plan.positions[1:], axis=0).max() > EPSILON:
        found.append(("stop", "moves on after a STOP"))
    return found
