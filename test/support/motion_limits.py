"""What a policy node's parameters promise of its motion, and the arithmetic to hold it to that.

Own arithmetic throughout: nothing of the node's limiter or outputs is imported, so no mistake of
theirs is shared. Times in s, lengths in m, angles in rad.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

#: Of the node's parameters, those that promise something of its motion.
PARAMETERS = (
    "acceleration_limits",
    "action_names",
    "action_rate_hz",
    "action_space",
    "arms",
    "bounds_high",
    "bounds_low",
    "continuous_joints",
    "continuous_as",
    "control_rate_hz",
    "gripper_names",
    "gripper_range",
    "joint_names",
    "jump_limit",
    "leash_s",
    "max_age_s",
    "outputs",
    "policy",
    "use_sim_time",
    "velocity_limits",
)
END_EFFECTOR_DELTA, END_EFFECTOR_POSE, JOINT_DELTA, JOINT_POSITION = range(4)
_KINDS = {
    "end_effector_delta": END_EFFECTOR_DELTA,
    "end_effector_pose": END_EFFECTOR_POSE,
    "joint_delta": JOINT_DELTA,
    "joint_position": JOINT_POSITION,
}
_OF_AN_ARM = ("x", "y", "z", "rx", "ry", "rz", "gripper")
EPSILON = 1e-6  # rad, m, and their rates: rounding
LEASH_S = 0.25  # the parameter's default
TURN = 2 * np.pi


@dataclass(frozen=True)
class Limits:
    """The promises of one set of parameters.

    ``period`` of commands, ``action_period`` of the policy's actions, s: their bounds of
    displacements and their ``jump``, a share of the bounds, are an action's. ``rate_known``: the
    parameters have the rate of actions; else the node's status does.
    ``names`` of all numbers of an action, ``grippers`` the places of those that open and close.
    ``low``, ``high``, ``velocity`` and ``acceleration`` are of the others, float64 [M]; the last
    two are None where not set. ``ends``: of each gripper what its controller takes for 0 and 1.
    ``wrapped``: continuous joints are commanded within a turn.
    """

    kind: int
    names: tuple[str, ...]
    grippers: tuple[int, ...]
    period: float
    action_period: float
    low: Floats
    high: Floats
    rate_known: bool = True
    jump: float = 1.0
    velocity: Floats | None = None
    acceleration: Floats | None = None
    ends: tuple[tuple[float, float], ...] = ()
    leash_s: float = LEASH_S
    max_age_s: float = 0.5
    outputs: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    policy: str = ""
    simulated: bool = False
    continuous: frozenset[str] = frozenset()
    wrapped: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Limits | None:
        """From a node's parameters; None where they describe no motion, as before they are set."""
        kind = _KINDS.get(str(values.get("action_space", "")))
        rate = float(values.get("control_rate_hz", 0.0))
        if kind is None or rate <= 0.0:
            return None
        of_actions = float(values.get("action_rate_hz", 0.0))
        arms, names = _words(values, "arms"), tuple[str, ...]()
        if kind in (JOINT_DELTA, JOINT_POSITION):
            names = _words(values, "action_names") or _words(values, "joint_names")
            opens = set(_words(values, "gripper_names"))
        else:
            names = tuple(arm + name for arm in arms or ("",) for name in _OF_AN_ARM)
            opens = {name for name in names if name.endswith("gripper")}
        grippers = tuple(i for i, name in enumerate(names) if name in opens)
        low, high = (np.array(values.get(f"bounds_{end}", ()), float) for end in ("low", "high"))
        if not names or {len(low), len(high)} != {len(names) - len(grippers)}:
            return None
        ends = [float(end) for end in values.get("gripper_range", (0.0, 1.0))]
        if len(ends) == 2:
            ends *= len(grippers)
        return cls(
            kind=kind,
            names=names,
            grippers=grippers,
            period=1.0 / rate,
            action_period=1.0 / (of_actions or rate),
            rate_known=of_actions > 0.0,
            jump=float(values.get("jump_limit", 1.0)),
            low=low,
            high=high,
            velocity=_given(values.get("velocity_limits", ()), len(low)),
            acceleration=_given(values.get("acceleration_limits", ()), len(low)),
            ends=tuple(zip(ends[::2], ends[1::2], strict=False)),
            leash_s=float(values.get("leash_s", LEASH_S)),
            max_age_s=float(values.get("max_age_s", 0.5)),
            outputs=_words(values, "outputs"),
            arms=arms,
            policy=str(values.get("policy", "")),
            simulated=bool(values.get("use_sim_time", False)),
            continuous=frozenset(_words(values, "continuous_joints")),
            wrapped=values.get("continuous_as") == "wrapped",
        )

    def at_rate(self, action_rate_hz: float) -> Limits:
        """The same where the status has this rate of actions."""
        if self.rate_known or action_rate_hz <= 0.0:
            return self
        return replace(self, action_period=1.0 / action_rate_hz)

    @property
    def fastest(self) -> Floats | None:
        """Of positions that displacements or targets lead to, per second by their bounds: a whole
        displacement an action, a jump an action; None: no such limit."""
        if self.kind == JOINT_DELTA:
            out: Floats = np.maximum(np.abs(self.low), np.abs(self.high)) / self.action_period
            return out
        if not self.absolute or self.jump >= 1.0:
            return None
        ranges = self.high - self.low
        for turn in self._turns(range(len(ranges))):
            ranges[turn] = ranges[turn].max()
        return self.jump * ranges / self.action_period

    @property
    def motion(self) -> list[int]:
        """The places in an action of the numbers that move."""
        return [i for i in range(len(self.names)) if i not in self.grippers]

    @property
    def moving(self) -> list[str]:
        """Their names."""
        return [self.names[i] for i in self.motion]

    @property
    def absolute(self) -> bool:
        """Actions are where to be, not how far to go."""
        return self.kind in (END_EFFECTOR_POSE, JOINT_POSITION)

    @property
    def joints(self) -> bool:
        return self.kind in (JOINT_DELTA, JOINT_POSITION)

    def of_arm(self, prefix: str) -> list[int]:
        """Of the numbers that move those of an arm; all of them for ""."""
        return [i for i, name in enumerate(self.moving) if name.startswith(prefix)]

    # Arithmetic

    def _turns(self, at: Sequence[int]) -> list[list[int]]:
        """The rotations of poses among the numbers ``at``, by their index there."""
        if self.kind != END_EFFECTOR_POSE:
            return []
        where = {place: i for i, place in enumerate(at)}
        firsts = range(3, len(self.low), 6)
        return [[where[f], where[f + 1], where[f + 2]] for f in firsts if f in where]

    def way(self, start: Floats, goal: Floats, at: Sequence[int]) -> Floats:
        """From one position to another: rotations by the shorter way round, continuous joints that
        are commanded within a turn too."""
        out = goal - start
        if self.wrapped:
            names = self.moving
            for i, place in enumerate(at):
                if names[place] in self.continuous:
                    out[i] = half_turn(out[i])
        for turn in self._turns(at):
            out[turn] = rotation_between(start[turn], goal[turn])
        return out

    def change(self, before: Floats, after: Floats, at: Sequence[int]) -> Floats:
        """Of a way, or of a velocity: what was added to it. Rotations as those of :meth:`way`."""
        out = after - before
        for turn in self._turns(at):
            out[turn] = rotation_between(before[turn], after[turn])
        return out

    def size(self, way: Floats, at: Sequence[int]) -> Floats:
        """How far each number goes; of a rotation its angle, three times."""
        out = np.abs(way)
        for turn in self._turns(at):
            out[turn] = np.linalg.norm(way[turn])
        return out

    def share(self, way: Floats, most: Floats, at: Sequence[int]) -> Floats:
        """Of what is allowed; more than 1 is too much."""
        out: Floats = np.abs(way) / (most + EPSILON)
        for turn in self._turns(at):
            out[turn] = np.linalg.norm(way[turn] / (most[turn] + EPSILON))
        return out

    def outside(self, position: Floats, at: Sequence[int]) -> Floats:
        """How far outside of its bounds each number is, 0 inside. Rotations have an angle from the
        middle of theirs, at most half of the widest; continuous joints are looked at in the turn
        that is nearest to the middle of theirs."""
        low, high = self.low[at], self.high[at]
        names, position = self.moving, position.copy()
        for number, place in enumerate(at):
            if names[place] in self.continuous:
                middle = (low[number] + high[number]) / 2
                position[number] = middle + half_turn(float(position[number] - middle))
        out: Floats = np.maximum(np.maximum(low - position, position - high), 0.0)
        for turn in self._turns(at):
            middle, room = (low[turn] + high[turn]) / 2, float(((high - low)[turn] / 2).max())
            angle = float(np.linalg.norm(rotation_between(middle, position[turn])))
            out[turn] = max(0.0, angle - room)
        return out


def _words(values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(str(word) for word in values.get(name, ()) if word)


def _given(values: Sequence[float], count: int) -> Floats | None:
    return np.array(values, float) if any(values) and len(values) == count else None


def half_turn(angle: float) -> float:
    """The same angle within half a turn."""
    return float((angle + np.pi) % TURN - np.pi)


def rotation_between(start: Floats, goal: Floats) -> Floats:
    """Axis-angle by which ``start`` has to be turned to be ``goal``, the shorter way round."""
    w, v = _quaternion(-start)
    w2, v2 = _quaternion(goal)
    scalar, vector = w * w2 - float(v @ v2), w * v2 + w2 * v + np.cross(v, v2)
    sine = float(np.linalg.norm(vector))
    if sine < 1e-12:
        return np.zeros(3)
    angle = 2 * np.arctan2(sine, abs(scalar))
    out: Floats = vector / sine * (angle if scalar >= 0 else -angle)
    return out


def _quaternion(axis_angle: Floats) -> tuple[float, Floats]:
    angle = float(np.linalg.norm(axis_angle))
    return float(np.cos(angle / 2)), axis_angle / 2 * np.sinc(angle / TURN)


@dataclass(frozen=True)
class Spline:
    """A motion as a joint_trajectory_controller makes it of points with positions and velocities:
    between two of them the polynomial of third degree that has both. ``at`` [n] in s, ``positions``
    and ``rates`` [n, k]."""

    at: Floats
    positions: Floats
    rates: Floats

    def __call__(self, at: Floats) -> tuple[Floats, Floats, Floats]:
        """Positions, velocities and accelerations [m, k] at instants [m], which lie between the
        first and the last; at a point those of the segment behind it, at the last before it."""
        i = np.clip(np.searchsorted(self.at, at, side="right") - 1, 0, len(self.at) - 2)
        t, long = (at - self.at[i])[:, None], (self.at[i + 1] - self.at[i])[:, None]
        start, goal, v, w = (x[i + j] for x in (self.positions, self.rates) for j in (0, 1))
        square = (-3 * start + 3 * goal - 2 * v * long - w * long) / long**2
        cube = (2 * start - 2 * goal + v * long + w * long) / long**3
        where = start + v * t + square * t**2 + cube * t**3
        return where, v + 2 * square * t + 3 * cube * t**2, 2 * square + 6 * cube * t


class Readings:
    """What was measured lately, by name. One wrong reading is not where a joint is: the truth is
    the newest of those that most of the last ones agree with."""

    KEPT, LEAST = 6, 3

    def __init__(self) -> None:
        self._of: dict[str, deque[tuple[float, float]]] = defaultdict(
            lambda: deque(maxlen=self.KEPT)
        )

    def add(self, at: float, name: str, value: float) -> None:
        if np.isfinite(value):
            self._of[name].append((at, value))

    def at(self, name: str, at: float, speed: float, turns: bool = False) -> Measured | None:
        """Where it is by then; None: nobody has said, lately or clearly. ``speed`` is what it is
        allowed; ``turns``: it is measured within a turn."""
        recent = [(t, x) for t, x in self._of.get(name, ()) if t > at - 10.0]
        if len(recent) < self.LEAST:
            return None
        for newest, value in reversed(recent):
            apart = [abs(half_turn(x - value) if turns else x - value) for _, x in recent]
            reach = [0.05 + 2 * speed * abs(t - newest) for t, _ in recent]
            agree = [x for x, most in zip(apart, reach, strict=True) if x <= most]
            if 5 * len(agree) >= 3 * len(recent):
                moved = [x for x, (t, _) in zip(apart, recent, strict=True) if newest - t < 0.06]
                near = [x for x in moved if x <= 0.05 + 0.12 * speed]
                return Measured(value, max(0.0, at - newest), max(near, default=0.0))
        return None


@dataclass(frozen=True)
class Measured:
    """Where a joint is, how long ago that was read, and how far it went in the 60 ms before."""

    value: float
    age: float
    moved: float = 0.0
