"""The gate: an action held to its limits just before it is published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from vla_ros import rotation
from vla_ros.action_space import ActionSpace
from vla_ros.core import Floats
from vla_ros.safety.limits import Limits
from vla_ros.timing import SECOND

_ROUNDING = 1e-9  # a rounding error is no excess


@dataclass(frozen=True, slots=True)
class Gripper:
    """The gripper as last commanded and when it last changed sides. ``known``: it was commanded
    at all; until then ``value`` is a guess.

    ``switched_ns`` is steady time, so that no clock that is set can freeze a gripper; in a
    simulation it is the simulation's.
    """

    value: float = 1.0
    switched_ns: int = -(1 << 62)
    known: bool = False


@dataclass(frozen=True, slots=True)
class Gated:
    """An action after the gate. ``clamped`` says what was changed, empty if nothing was;
    ``far``: by more than a tolerance, so that it counts towards HOLD."""

    action: Floats
    clamped: str = ""
    far: bool = False


class ActionRefused(ValueError):
    """An action that must not be published; the message says why."""


@dataclass(frozen=True, slots=True)
class _Places:
    """Where in an action its numbers are, and among the M that move those held to an angle."""

    motion: npt.NDArray[np.intp]  # [M], places in the action
    turns: tuple[npt.NDArray[np.intp], ...]  # [3] an arm, places in the motion; poses only
    straight: npt.NDArray[np.intp]  # the places in the motion of all others


@lru_cache(maxsize=64)
def _places(space: ActionSpace) -> _Places:
    motion = space.motion
    rotations = space.rotations if space.absolute else ()
    turns = [[motion.index(place) for place in arm] for arm in rotations]
    bent = {place for arm in turns for place in arm}
    straight = [i for i in range(len(motion)) if i not in bent]
    return _Places(
        np.array(motion, np.intp),
        tuple(np.array(arm, np.intp) for arm in turns),
        np.array(straight, np.intp),
    )


def refuse_unless_numbers(action: Floats, space: ActionSpace) -> None:
    """Raise :class:`ActionRefused` unless the action is as many finite numbers as it must be."""
    if np.shape(action) != (space.width,):
        raise ActionRefused(f"action has shape {np.shape(action)}, not ({space.width},)")
    if not np.isfinite(action).all():
        raise ActionRefused("action has values that are not finite")


def gate(action: Floats, before: tuple[Floats, ...], limits: Limits) -> Gated:
    """Hold a new action to its limits.

    ``before`` are the actions published last, newest first, at most two are used. Returns the
    action, clamped where it exceeded its bounds, jump or jerk. Raises :class:`ActionRefused`.
    """
    refuse_unless_numbers(action, limits.space)
    out = np.array(action, dtype=np.float64)
    places = _places(limits.space)
    motion = out[places.motion]
    over: list[str] = []
    far = False
    for name, confined, tolerance in _confined(motion, before, limits, places):
        excess = _excess(motion, confined, places)
        if excess.max(initial=0.0) > _ROUNDING:
            over.append(name)
            far |= bool((excess > tolerance + _ROUNDING).any())
            motion[:] = confined
    out[places.motion] = motion
    for gripper in limits.space.grippers:
        out[gripper] = min(max(out[gripper], 0.0), 1.0)
    return Gated(out, ", ".join(dict.fromkeys(over)), far)


def _confined(
    motion: Floats, before: tuple[Floats, ...], limits: Limits, places: _Places
) -> Iterator[tuple[str, Floats, Floats]]:
    """What limits there are, one after the other: a name, the numbers of ``motion`` (as it is by
    then) within it, and how much of an excess is not counted."""
    low, high = np.asarray(limits.low), np.asarray(limits.high)
    middle, room = (low + high) / 2, (high - low) / 2
    for arm in places.turns:
        room[arm] = room[arm].max()  # rotations are bounded by an angle: a ball, not a box
    none = np.zeros(len(motion))

    def within(centre: Floats, radius: Floats) -> Floats:
        confined = np.clip(motion, centre - radius, centre + radius)
        for arm in places.turns:
            confined[arm] = rotation.towards(centre[arm], motion[arm], float(radius[arm[0]]))
        return confined

    def bounded() -> Floats:  # to the bounds themselves: middle + room may be an ulp beyond
        confined = within(middle, room)
        box = places.straight
        confined[box] = np.clip(motion[box], low[box], high[box])
        return confined

    yield "bounds", bounded(), limits.clamp_tolerance * 2 * room
    if not before:
        return
    last = before[0][places.motion]
    yield "jump", within(last, limits.jump * 2 * room), none
    if len(before) > 1:
        earlier = before[1][places.motion]
        expected = 2 * last - earlier
        for arm in places.turns:
            expected[arm] = rotation.turned(last[arm], rotation.way(earlier[arm], last[arm]))
        yield "jerk", within(expected, limits.jerk * 2 * room), none
        yield "jerk", bounded(), none


def _excess(motion: Floats, confined: Floats, places: _Places) -> Floats:
    """By how much each number that moves was beyond; rotations of poses by an angle."""
    excess = np.abs(confined - motion)
    for arm in places.turns:
        excess[arm] = np.linalg.norm(rotation.way(confined[arm], motion[arm]))
    return excess


def steady_gripper(gripper: Gripper, wanted: float, now_ns: int, limits: Limits) -> Gripper:
    """Hysteresis and dwell: small changes are ignored, and it changes sides (across 0.5) at
    most once in ``gripper_dwell_s``. The first value is taken as it is."""
    if not gripper.known:
        return Gripper(wanted, now_ns, known=True)
    if abs(wanted - gripper.value) < limits.gripper_hysteresis:
        return gripper
    if (wanted > 0.5) == (gripper.value > 0.5):
        return replace(gripper, value=wanted)
    if 0 <= now_ns - gripper.switched_ns < limits.gripper_dwell_s * SECOND:
        return gripper  # a simulation that starts over has gone back in time
    return Gripper(wanted, now_ns, known=True)
