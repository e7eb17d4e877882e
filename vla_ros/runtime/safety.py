"""Rules of what may move the robot: limits, states of the policy node, grippers.

Pure functions of (state, action, time): they read no clock, hold nothing and log nothing, so
every rule can be tested by itself. The rules are those of the fault matrix in
docs/explanation/safety.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionSpace
from vla_ros.core.clock import MS, SECOND, Distribution
from vla_ros.core.text import printable
from vla_ros.core.types import Floats, PolicyState, StaleAction

# Limits and ages

_LONGEST = 1000  # characters of a reason
_ENOUGH = 10  # inferences, for a median that one does not make
MOST_CONTROL_HZ = 500.0  # what a tick in Python keeps: docs/reference/rates.md


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits every command is held to. Times in seconds, actions in m, rad and 0..1.

    Two rates: ``action_rate_hz`` is that of the data that the policy's actions were learned from,
    ``control_rate_hz`` the robot's; 0: both are the same.

    ``space`` is the actions'. ``low`` and ``high`` bound those that move
    (``space.motion``, in its order); grippers are 0..1. ``jump`` bounds the change from one
    action to the next and ``jerk`` the change of that change, both as fractions of the range
    ``high - low``: 1 and 2 can never be exceeded and so switch the check off. ``velocity`` and
    ``acceleration`` are the same per second, in m/s or rad/s and m/s^2 or rad/s^2, one value for
    each number that moves; empty: no such limit.

    Of end effectors' poses rotations are held to angles, by the shorter way round: within half of
    the widest range around the middle of an arm's bounds.

    ``clamp_limit`` actions in a row that had to be clamped are a HOLD. Bounds exceeded by at
    most ``clamp_tolerance`` of their range are clamped and not counted: a policy that regresses
    its actions (OpenVLA-OFT) gives now 49 and now 51 mm where it was trained for 50.

    A HOLD longer than ``hold_latch_s`` is left by :func:`recover` alone; 0: it never latches.
    ``takeover_timeout_s`` after a person's last command the robot holds.
    ``smoothing_hz``: cutoff of a low-pass on the commands, whose delay counts as age; 0: none.
    ``leash_s``: so long, at the largest step a period, a commanded position may be ahead of the
    measured one.
    ``stamp_tolerance_s``: how far a stamp may lie in the future; 0: min(5 ms, T / 4).
    """

    control_rate_hz: float = 20.0
    action_rate_hz: float = 0.0
    camera_rate_hz: float = 20.0
    max_age_s: float = 0.5
    stale_action: StaleAction = StaleAction.ZERO
    space: ActionSpace = END_EFFECTOR_DELTA
    silence_after_s: float = 1.0
    low: tuple[float, ...] = (-0.05,) * 3 + (-0.5,) * 3
    high: tuple[float, ...] = (0.05,) * 3 + (0.5,) * 3
    jump: float = 1.0
    jerk: float = 2.0
    velocity: tuple[float, ...] = ()
    acceleration: tuple[float, ...] = ()
    clamp_limit: int = 5
    clamp_tolerance: float = 0.05
    invalid_limit: int = 3
    fresh_needed: int = 3
    gripper_hysteresis: float = 0.05
    gripper_dwell_s: float = 0.15
    hold_latch_s: float = 0.0
    stamp_tolerance_s: float = 0.0
    takeover_timeout_s: float = 0.3
    smoothing_hz: float = 0.0
    leash_s: float = 0.3

    def __post_init__(self) -> None:
        if not 1.0 <= self.control_rate_hz <= MOST_CONTROL_HZ:
            raise ValueError(
                f"control_rate_hz is {self.control_rate_hz:g}, must be in 1..{MOST_CONTROL_HZ:g}:"
                " for more let a controller of ros2_control follow ~/joint_trajectory"
            )
        if self.action_rate_hz and not 0.1 <= self.action_rate_hz <= MOST_CONTROL_HZ:
            raise ValueError(
                f"action_rate_hz is {self.action_rate_hz:g}, must be in 0.1..{MOST_CONTROL_HZ:g}"
            )
        if self.camera_rate_hz <= 0.0:
            raise ValueError(f"camera_rate_hz is {self.camera_rate_hz}, must be above 0")
        self._check_bounds()
        if self.stale_action is StaleAction.HOLD and not self.space.absolute:
            raise ValueError(
                "stale_action 'hold' needs action_space 'end_effector_pose' or 'joint_position':"
                " repeating a delta is motion; use 'zero' or 'silence'"
            )
        if self.stale_action is StaleAction.ZERO and self.space.absolute:
            raise ValueError(
                "stale_action 'zero' needs action_space 'end_effector_delta' or 'joint_delta':"
                " a zero pose is a place to go to; use 'hold' or 'silence'"
            )
        longest_s = max(self.period_s, self.action_period_s)
        if self.max_age_s <= longest_s:
            which = "control" if longest_s == self.period_s else "action"
            raise ValueError(
                f"max_age_s is {self.max_age_s}, must be above the {which} period, {longest_s:g} s"
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
        for parameter, values in (
            ("velocity_limits", self.velocity),
            ("acceleration_limits", self.acceleration),
        ):
            if values and (len(values) != len(names) or not all(v > 0.0 for v in values)):
                raise ValueError(
                    f"{parameter} needs {len(names)} values above 0, per second: {' '.join(names)}"
                )

    @property
    def period_s(self) -> float:
        """The control period."""
        return 1.0 / self.control_rate_hz

    @property
    def period_ns(self) -> int:
        return round(SECOND / self.control_rate_hz)

    @property
    def action_period_s(self) -> float:
        """Time from one action to the next."""
        return 1.0 / (self.action_rate_hz or self.control_rate_hz)

    @property
    def action_period_ns(self) -> int:
        return round(SECOND / (self.action_rate_hz or self.control_rate_hz))

    @property
    def actions_a_period(self) -> float:
        """Share of an action that a control period makes; 1: a command is an action."""
        if not self.action_rate_hz or self.action_rate_hz == self.control_rate_hz:
            return 1.0
        return self.action_rate_hz / self.control_rate_hz

    @property
    def smoothing_delay_ns(self) -> int:
        """Delay of a critically damped low-pass of second order: 2 / omega."""
        return round(SECOND / (np.pi * self.smoothing_hz)) if self.smoothing_hz else 0

    @property
    def max_age_ns(self) -> int:
        return round(self.max_age_s * SECOND)

    @property
    def clock_tolerance_ns(self) -> int:
        """How far a stamp may lie in the future: as given, or min(5 ms, T / 4)."""
        if self.stamp_tolerance_s:
            return round(self.stamp_tolerance_s * SECOND)
        return min(5 * MS, self.action_period_ns // 4)


def least_max_age_s(
    limits: Limits, pipeline_depth: int, inference_s: float, kept: int = 1
) -> float:
    """The smallest max_age_s that can be met: Tc + (K - 1) T + L + T, and (S - 1) T more for
    chunks of which S actions are executed, with T the action period, or the control period if that
    is longer.

    ``inference_s`` is L, the 99th percentile of inference measured at warm-up. The delay of a
    low-pass comes on top.
    """
    waiting = pipeline_depth - 1 + kept
    period_s = max(limits.period_s, limits.action_period_s)
    delay_s = limits.smoothing_delay_ns / SECOND
    return 1.0 / limits.camera_rate_hz + inference_s + waiting * period_s + delay_s


def age_ns(now_ns: int, stamp_ns: int, steady_ns: int, received_steady_ns: int, sim: bool) -> int:
    """Age of an observation: the larger of its stamp's age and the time since its receipt.

    The second guards against a clock that was set back. In simulated time only the stamp
    counts, since the world stands still while the clock does.
    """
    by_stamp = now_ns - stamp_ns
    return by_stamp if sim else max(by_stamp, steady_ns - received_steady_ns)


def slower_than_real_time(inference: Distribution, action_period_ns: int, missed: int) -> str:
    """Warning, in one line, about a machine whose inference, in ms, does not keep up with its
    actions; "": it does.

    ``missed``: control periods without an action. A chunk lasts longer than its inference takes:
    then none is.
    """
    period_ms = action_period_ns / MS
    if not missed or inference.count < _ENOUGH or not 0.0 < period_ms < inference.p50:
        return ""
    return (
        f"this machine is slower than real time: inference takes {inference.p50:.0f} ms at the"
        f" median, an action lasts {period_ms:.0f} ms; dtype auto, another decoding or less beside"
        " it may help"
    )


# States


@dataclass(frozen=True, slots=True)
class Safety:
    """State of the node with what its transitions count. ``since_ns`` is steady time.

    ``reason`` is what led here, ``keeps`` what keeps it so since then, ``lacks`` what keeps frames
    from completing. ``latched``: a HOLD that lasted so long that no motion is expected any more,
    or, ``lapsed``, that began as a person's takeover ended without their word.
    """

    state: PolicyState = PolicyState.UNCONFIGURED
    reason: str = "not configured"
    since_ns: int = 0
    fresh: int = 0  # clean actions while in HOLD
    clamped: int = 0  # actions in a row that exceeded their limits
    invalid: int = 0  # invalid inferences in a row
    keeps: str = ""
    lacks: str = ""
    latched: bool = False
    lapsed: bool = False

    @property
    def active(self) -> bool:
        return self.state >= PolicyState.WAITING

    @property
    def moves(self) -> bool:
        """True of states whose commands move the robot."""
        return self.state in (PolicyState.RUNNING, PolicyState.TAKEOVER)

    @property
    def said(self) -> str:
        """The whole reason, for people, in one line: what led here, what keeps it so, what frames
        lack."""
        parts = filter(None, (self.reason, self.keeps, self.lacks))
        return printable(" ".join("; ".join(parts).splitlines()), _LONGEST)


def enter(safety: Safety, state: PolicyState, reason: str, steady_ns: int) -> Safety:
    """Go to ``state``. FAULT is latched: only :func:`recover` and deactivation leave it."""
    if safety.state is PolicyState.FAULT and state in (
        PolicyState.WAITING,
        PolicyState.RUNNING,
        PolicyState.HOLD,
    ):
        return safety
    if safety.state is state:
        return replace(safety, reason=reason, keeps=safety.keeps if safety.latched else "")
    return Safety(state, reason, steady_ns)


def hold(safety: Safety, reason: str, steady_ns: int) -> Safety:
    """Go to HOLD if the robot may be moving; in WAITING nothing moves that could be held.

    Invalid actions stay counted: an observation that grows old because nothing valid comes is the
    same trouble going on.
    """
    if safety.state is PolicyState.RUNNING:
        return replace(enter(safety, PolicyState.HOLD, reason, steady_ns), invalid=safety.invalid)
    if safety.state is PolicyState.HOLD:
        return replace(enter(safety, PolicyState.HOLD, reason, steady_ns), fresh=0)
    return safety


def latch(safety: Safety, limits: Limits, steady_ns: int) -> Safety:
    """Latch a HOLD that has lasted too long to end by itself: a person who looks for its cause may
    stand beside the robot."""
    lasted_ns = steady_ns - safety.since_ns
    held = safety.state is PolicyState.HOLD and not safety.latched
    if not held or not limits.hold_latch_s or lasted_ns <= limits.hold_latch_s * SECOND:
        return safety
    keeps = f"it lasted longer than hold_latch_s, {limits.hold_latch_s:g} s: call ~/resume"
    return replace(safety, latched=True, keeps=keeps)


def keep(safety: Safety, why: str) -> Safety:
    """Name what else, in HOLD, stands in the way of the next action."""
    if safety.state is not PolicyState.HOLD or safety.latched:
        return safety
    return replace(safety, keeps=f"it stays: {why}")


def recover(safety: Safety, steady_ns: int, reason: str = "recovered") -> Safety:
    """The explicit recover call: the only way out of FAULT, or out of a latched HOLD, that stays
    active."""
    return Safety(PolicyState.WAITING, reason, steady_ns)


def after_valid(
    safety: Safety,
    limits: Limits,
    far: bool,
    steady_ns: int,
    over: str = "limits",
    worst: str = "",
) -> Safety:
    """A finite, fresh action of this epoch has come: count it, and move on where it suffices.

    ``far``: by more than a tolerance it was beyond its limits, those named in ``over``, the most in
    ``worst``. As many in
    a row as end RUNNING take back what was counted towards the end of a HOLD; fewer do not, or a
    policy that may run could not begin to.
    """
    clamps = safety.clamped + 1 if far else 0
    counted = replace(safety, invalid=0, clamped=clamps)
    if clamps >= limits.clamp_limit and safety.state is PolicyState.RUNNING:
        reason = f"{clamps} actions in a row exceeded their limits"
        return hold(counted, f"{reason}: {worst}" if worst else reason, steady_ns)
    if safety.state is PolicyState.WAITING:
        return Safety(PolicyState.RUNNING, "running", steady_ns, clamped=clamps)
    if safety.state is PolicyState.HOLD:
        if far:
            fresh = 0 if clamps >= limits.clamp_limit else safety.fresh
            why = f"{limits.fresh_needed} clean actions are needed, the last exceeded its {over}"
            return keep(replace(counted, fresh=fresh), why)
        if safety.fresh + 1 >= limits.fresh_needed and not safety.latched:
            return Safety(PolicyState.RUNNING, "running", steady_ns)
        return replace(counted, fresh=safety.fresh + 1)
    return counted


def after_invalid(safety: Safety, limits: Limits, reason: str, steady_ns: int) -> Safety:
    """NaN logits, a token that is no action, a short output: three in a row are a fault."""
    count = safety.invalid + 1
    if count >= limits.invalid_limit:
        return enter(safety, PolicyState.FAULT, f"{count} invalid actions: {reason}", steady_ns)
    return replace(safety, invalid=count, fresh=0)


# The gate


@dataclass(frozen=True, slots=True)
class Gripper:
    """The gripper as last commanded and when it last changed sides. ``known``: it was commanded
    at all; until then ``value`` is what was measured, NaN where it is not measured.

    ``switched_ns`` is steady time, so that no clock that is set can freeze a gripper; in a
    simulation it is the simulation's.
    """

    value: float = float("nan")
    switched_ns: int = -(1 << 62)
    known: bool = False


class ActionRefused(ValueError):
    """An action that must not be published; the message says why."""


def refuse_unless_numbers(action: Floats, space: ActionSpace) -> None:
    """Raise :class:`ActionRefused` unless the action is as many finite numbers as it must be."""
    if np.shape(action) != (space.width,):
        raise ActionRefused(f"action has shape {np.shape(action)}, not ({space.width},)")
    if not all(map(isfinite, action.tolist())):
        raise ActionRefused("action has values that are not finite")


def steady_gripper(gripper: Gripper, wanted: float, now_ns: int, limits: Limits) -> Gripper:
    """Hysteresis and dwell: small changes are ignored but for the last one to an end, fully
    closed or open, and it changes sides (across 0.5) at most once in ``gripper_dwell_s``. The
    first value is taken as it is."""
    if not gripper.known:
        return Gripper(wanted, now_ns, known=True)
    small = abs(wanted - gripper.value) < limits.gripper_hysteresis
    if small and wanted not in (0.0, 1.0):
        return gripper
    if (wanted > 0.5) == (gripper.value > 0.5):
        return replace(gripper, value=wanted)
    if 0 <= now_ns - gripper.switched_ns < limits.gripper_dwell_s * SECOND:
        return gripper  # a simulation that starts over has gone back in time
    return Gripper(wanted, now_ns, known=True)
