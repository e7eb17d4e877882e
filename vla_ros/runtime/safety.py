"""What may move the robot: the limits, the states of the policy node, the gate before publication.

Pure functions of (state, action, time): they read no clock, hold nothing and log nothing, so
every rule can be tested by itself. The rules are those of the fault matrix in
docs/explanation/safety.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from vla_ros.core import rotation
from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionSpace
from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import Floats, PolicyState, StalePolicy

_ROUNDING = 1e-9  # a rounding error is no excess

# ------------------------------------------------------------------------------ limits and ages


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits every command is held to. Times in seconds, actions in m, rad and 0..1.

    ``space`` says what an action's numbers are. ``low`` and ``high`` bound those that move
    (``space.motion``, in its order); grippers are 0..1. ``jump`` bounds the change from one
    command to the next and ``jerk`` the change of that change, both as fractions of the range
    ``high - low``: 1 and 2 can never be exceeded and so switch the check off.

    Of end effectors' poses rotations are held to angles, by the shorter way round: within half of
    the widest range around the middle of an arm's bounds.

    ``clamp_limit`` actions in a row that had to be clamped are a HOLD. Bounds exceeded by at
    most ``clamp_tolerance`` of their range are clamped and not counted: a policy that regresses
    its actions (OpenVLA-OFT) says now 49 and now 51 mm where it was taught 50.
    """

    control_rate_hz: float = 20.0
    camera_rate_hz: float = 20.0
    max_age_s: float = 0.5
    stale_policy: StalePolicy = StalePolicy.ZERO
    space: ActionSpace = END_EFFECTOR_DELTA
    silence_after_s: float = 1.0
    low: tuple[float, ...] = (-0.05,) * 3 + (-0.5,) * 3
    high: tuple[float, ...] = (0.05,) * 3 + (0.5,) * 3
    jump: float = 1.0
    jerk: float = 2.0
    clamp_limit: int = 5
    clamp_tolerance: float = 0.05
    invalid_limit: int = 3
    fresh_needed: int = 3
    gripper_hysteresis: float = 0.05
    gripper_dwell_s: float = 0.15

    def __post_init__(self) -> None:
        if not 1.0 <= self.control_rate_hz <= 200.0:
            raise ValueError(f"control_rate_hz is {self.control_rate_hz}, must be in 1..200")
        if self.camera_rate_hz <= 0.0:
            raise ValueError(f"camera_rate_hz is {self.camera_rate_hz}, must be above 0")
        self._check_bounds()
        if self.stale_policy is StalePolicy.HOLD and not self.space.absolute:
            raise ValueError(
                "stale_policy 'hold' needs action_space 'end_effector_pose' or 'joint_position':"
                " repeating a delta is motion; use 'zero' or 'silence'"
            )
        if self.stale_policy is StalePolicy.ZERO and self.space.absolute:
            raise ValueError(
                "stale_policy 'zero' needs action_space 'end_effector_delta' or 'joint_delta':"
                " a zero pose is a place to go to; use 'hold' or 'silence'"
            )
        if self.max_age_s <= self.period_s:
            raise ValueError(
                f"max_age_s is {self.max_age_s}, must be above the control period,"
                f" {self.period_s:g} s"
            )

    def _check_bounds(self) -> None:
        names = [self.space.names[i] for i in self.space.motion]
        if {len(self.low), len(self.high)} != {len(names)}:
            raise ValueError(
                f"bounds_low and bounds_high need {len(names)} values each: {' '.join(names)}"
            )
        pairs = list(zip(self.low, self.high, strict=True))
        if not all(lo < hi for lo, hi in pairs):
            raise ValueError("every value of bounds_low must be below that of bounds_high")
        if not self.space.absolute and not all(lo <= 0.0 <= hi for lo, hi in pairs):
            raise ValueError("bounds of deltas must contain 0: it is what stopping commands")

    @property
    def period_s(self) -> float:
        return 1.0 / self.control_rate_hz

    @property
    def period_ns(self) -> int:
        return round(SECOND / self.control_rate_hz)

    @property
    def max_age_ns(self) -> int:
        return round(self.max_age_s * SECOND)

    @property
    def clock_tolerance_ns(self) -> int:
        """How far a stamp may lie in the future, epsilon = min(5 ms, T / 4)."""
        return min(5 * MS, self.period_ns // 4)


def least_max_age_s(
    limits: Limits, pipeline_depth: int, inference_s: float, kept: int = 1
) -> float:
    """The smallest max_age_s that can be met: Tc + (K - 1) T + L + T, and (S - 1) T more for
    chunks of which S actions are executed.

    ``inference_s`` is L, the 99th percentile of inference measured at warm-up.
    """
    waiting = pipeline_depth - 1 + kept
    return 1.0 / limits.camera_rate_hz + inference_s + waiting * limits.period_s


def age_ns(now_ns: int, stamp_ns: int, steady_ns: int, received_steady_ns: int, sim: bool) -> int:
    """Age of an observation: the larger of its stamp's age and the time since its receipt.

    The second guards against a clock that was set back. In simulated time only the stamp
    counts, since the world stands still while the clock does.
    """
    by_stamp = now_ns - stamp_ns
    return by_stamp if sim else max(by_stamp, steady_ns - received_steady_ns)


# ------------------------------------------------------------------------------ states


@dataclass(frozen=True, slots=True)
class Safety:
    """State of the node with what its transitions count. ``since_ns`` is steady time."""

    state: PolicyState = PolicyState.UNCONFIGURED
    reason: str = "not configured"
    since_ns: int = 0
    fresh: int = 0  # clean actions in a row while in HOLD
    clamped: int = 0  # clamped actions in a row
    invalid: int = 0  # invalid inferences in a row

    @property
    def active(self) -> bool:
        return self.state >= PolicyState.WAITING


def enter(safety: Safety, state: PolicyState, reason: str, steady_ns: int) -> Safety:
    """Go to ``state``. FAULT is latched: only :func:`recover` and deactivation leave it."""
    if safety.state is PolicyState.FAULT and state in (
        PolicyState.WAITING,
        PolicyState.RUNNING,
        PolicyState.HOLD,
    ):
        return safety
    if safety.state is state:
        return replace(safety, reason=reason)
    return Safety(state, reason, steady_ns)


def hold(safety: Safety, reason: str, steady_ns: int) -> Safety:
    """Go to HOLD if the robot may be moving; in WAITING nothing moves that could be held.

    Invalid actions stay counted: an observation that grows old because nothing valid comes is the
    same trouble going on.
    """
    if safety.state is PolicyState.RUNNING:
        return replace(enter(safety, PolicyState.HOLD, reason, steady_ns), invalid=safety.invalid)
    if safety.state is PolicyState.HOLD:
        return replace(safety, fresh=0, reason=reason)
    return safety


def recover(safety: Safety, steady_ns: int) -> Safety:
    """The explicit recover call: the only way out of FAULT that stays active."""
    return Safety(PolicyState.WAITING, "recovered", steady_ns)


def after_valid(safety: Safety, limits: Limits, far: bool, steady_ns: int) -> Safety:
    """A finite, fresh action of this epoch has come: count it, and move on where it suffices.

    ``far``: it was beyond its limits by more than a tolerance.
    """
    clamps = safety.clamped + 1 if far else 0
    counted = replace(safety, invalid=0, clamped=clamps)
    if clamps >= limits.clamp_limit and safety.state is PolicyState.RUNNING:
        return hold(counted, f"{clamps} actions in a row exceeded their limits", steady_ns)
    if safety.state is PolicyState.WAITING:
        return Safety(PolicyState.RUNNING, "running", steady_ns, clamped=clamps)
    if safety.state is PolicyState.HOLD:
        fresh = 0 if far else safety.fresh + 1
        if fresh >= limits.fresh_needed:
            return Safety(PolicyState.RUNNING, "running", steady_ns)
        return replace(counted, fresh=fresh)
    return counted


def after_invalid(safety: Safety, limits: Limits, reason: str, steady_ns: int) -> Safety:
    """NaN logits, a token that is no action, a short output: three in a row are a fault."""
    count = safety.invalid + 1
    if count >= limits.invalid_limit:
        return enter(safety, PolicyState.FAULT, f"{count} invalid actions: {reason}", steady_ns)
    return replace(safety, invalid=count, fresh=0)


# ------------------------------------------------------------------------------ the gate


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

    def within(center: Floats, radius: Floats) -> Floats:
        confined = np.clip(motion, center - radius, center + radius)
        for arm in places.turns:
            confined[arm] = rotation.towards(center[arm], motion[arm], float(radius[arm[0]]))
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
