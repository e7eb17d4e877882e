"""The limits that every command is held to, and the age of what it rests on."""

from __future__ import annotations

from dataclasses import dataclass

from vla_ros.action_space import END_EFFECTOR_DELTA, ActionSpace
from vla_ros.core import StalePolicy
from vla_ros.timing import MS, SECOND


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
