"""The robot's joints: readings of drivers in, accepted values out.

A driver may report, once, a value that no joint has, and two of them may report one joint. A value
that a joint cannot have reached is held back, so that no single reading becomes the position
from which a robot starts, or a policy's state. Accepted values are kept as the robot's measured
state (:class:`MeasuredState`) and as the state that images are joined with (:class:`Joints`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from vla_ros.core.action_space import ActionSpace
from vla_ros.core.clock import MS, SECOND, Moment
from vla_ros.core.types import Floats, Pose
from vla_ros.runtime import safety
from vla_ros.runtime.control.observation import (
    STATES,
    History,
    MissingReason,
    StampedValue,
    gap,
    share_of,
    within,
)
from vla_ros.runtime.safety import Limits

T = TypeVar("T")

TURN = 2 * math.pi
MARGIN = 5.0  # times velocity_limits: an arm may be moved by others
CEILING = 4 * math.pi  # rad/s, m/s, of a joint whose velocity limit is unknown
TOLERANCE = 0.02  # rad, m
POSE_CEILING = 5.0  # m/s
POSE_TOLERANCE = 0.05  # rad
_LONGEST_S = 0.2  # after a longer silence a joint is no farther away
_TRAIL = 32  # accepted readings, between which late ones fall
_BEYOND = 0.1  # of its range a gripper may be read outside of it
_AGREE = 3  # readings of _WINDOW
_WINDOW = 8
_AGREE_NS = 100 * MS
_JUDGE_NS = 4 * MS  # of a thousand readings a second not each is compared with all
_KEPT_NS = 120 * MS  # held-back readings span so much, or are _WINDOW
_AGREE_SHARE = 0.25  # of the way: readings that agree are nearer to each other
_RIVAL = 0.75  # as many that agree on something else leave the choice open
_OPEN_NS = SECOND // 2  # so long without a value the readings contradict each other
_MOST_NAMES = 1024
_QUIET_NS = SECOND  # a joint without a reading for so long,
_QUIET = 10  # and in so many messages
_ON_CHANGE = "its driver may speak only on change: name it in joints_on_change"


# Readings


class OutlierFilter(Generic[T]):
    """Filter of one moving part's readings: values that it cannot have reached are held back.

    ``reaches(a, b, seconds)``: whether it can be at ``b`` so long before or after it was at ``a``.
    Held-back readings that agree are accepted, three of them over 0.1 s with none between that
    could be: the part was moved. So is the first value. ``trusting``: every reading is accepted.
    Not thread-safe.
    """

    def __init__(self, reaches: Callable[[T, T, float], bool], trusting: bool = False) -> None:
        self._reaches, self._trusting = reaches, trusting
        self.forget()

    def forget(self) -> None:
        """Nothing is accepted yet."""
        self._accepted: History[T] = History(_TRAIL)
        self._held: list[StampedValue[T]] = []
        self._held_since_ns = self._judged_ns = 0
        self.agreed = 0  # held-back readings that the last one was accepted with

    @property
    def last(self) -> StampedValue[T] | None:
        """The newest accepted reading."""
        return self._accepted.newest

    @property
    def contradicts(self) -> bool:
        """True once readings have come for a while of which no value could be accepted."""
        return (
            self.last is None
            and len(self._held) >= _AGREE
            and abs(self._held[-1].stamp_ns - self._held_since_ns) >= _OPEN_NS
        )

    @property
    def rivals(self) -> tuple[T, T]:
        """Two held-back values that do not agree; twice the newest where all do."""
        newest = self._held[-1]
        other = next((s for s in self._held if not self._agree(s, newest)), newest)
        return other.value, newest.value

    def take(self, stamp_ns: int, value: T) -> bool:
        """Take in a reading; True: it is accepted."""
        self.agreed = 0
        if not (self._trusting or self._continues(stamp_ns, value)):
            self._hold(StampedValue(stamp_ns, value))
            self.agreed = self._agreeing()
            if not self.agreed:
                return False
            self._accepted.clear()
        self._accepted.add(stamp_ns, value)
        self._held.clear()
        return True

    def _continues(self, stamp_ns: int, value: T) -> bool:
        """True within reach of the accepted readings before and after it. One from before all of
        them may be of a clock that was set back."""
        before, after = self._accepted.around(stamp_ns)
        return before is not None and all(
            self._reaches(near.value, value, abs(stamp_ns - near.stamp_ns) / SECOND)
            for near in (before, after)
            if near is not None
        )

    def _hold(self, reading: StampedValue[T]) -> None:
        held = self._held
        if any(s.stamp_ns == reading.stamp_ns and self._agree(s, reading) for s in held):
            return  # the same message once more
        if not held:
            self._held_since_ns = reading.stamp_ns
        held.append(reading)
        while len(held) > _WINDOW and abs(reading.stamp_ns - held[1].stamp_ns) >= _KEPT_NS:
            del held[0]
        del held[:-_MOST_NAMES]

    def _agreeing(self) -> int:
        """Number of held-back readings that agree with the newest; 0: too few to accept it."""
        newest = self._held[-1]
        if abs(newest.stamp_ns - self._judged_ns) < _JUDGE_NS or not any(
            abs(newest.stamp_ns - s.stamp_ns) >= _AGREE_NS for s in self._held
        ):
            return 0
        self._judged_ns = newest.stamp_ns
        with_it = [s for s in self._held if self._agree(s, newest)]
        others = [s for s in self._held if not self._agree(s, newest)]
        spans = any(abs(newest.stamp_ns - s.stamp_ns) >= _AGREE_NS for s in with_it)
        rivals = sum(self._agree(s, others[-1]) for s in others)
        if len(with_it) < _AGREE or not spans or rivals >= _RIVAL * len(with_it):
            return 0
        return len(with_it)

    def _agree(self, one: StampedValue[T], other: StampedValue[T]) -> bool:
        seconds = _AGREE_SHARE * abs(one.stamp_ns - other.stamp_ns) / SECOND
        return self._reaches(one.value, other.value, seconds)


def travel(speed: float, tolerance: float, seconds: float) -> float:
    """Longest distance, in m or rad, that a part moves meanwhile."""
    return speed * min(seconds, _LONGEST_S) + tolerance


def pose_reaches(one: Pose, other: Pose, seconds: float) -> bool:
    """True if an end effector can be at both poses, so long apart."""
    moved = math.dist(one.position, other.position)
    cosine = abs(sum(a * b for a, b in zip(one.quaternion, other.quaternion, strict=True)))
    turned = 2.0 * math.acos(min(1.0, cosine))
    near = moved <= travel(POSE_CEILING, TOLERANCE, seconds)
    return near and turned <= travel(CEILING, POSE_TOLERANCE, seconds)


@dataclass(frozen=True, slots=True)
class Intake:
    """Result of a message: the accepted ``positions``, NaN for those that were held back, with
    a reason by name, and a line each for joints that were moved meanwhile."""

    positions: Floats
    held: Mapping[str, str] = field(default_factory=dict)
    jumps: tuple[str, ...] = ()


class JointIntake:
    """Intake of joint states, joint by joint. Not thread-safe.

    ``speeds``: how fast joints move at most; ``turning``: which turn without end. Their readings
    are compared modulo a turn, and accepted as the value nearest to the last one. ``on_change``:
    joints whose driver reports only changes; of each there is one reading, which is accepted.
    ``trusting``: a simulation that sends one message a step.
    """

    def __init__(self, trusting: bool = False, on_change: Collection[str] = ()) -> None:
        self.speeds: Mapping[str, float] = {}
        self.turning: frozenset[str] = frozenset()
        self._trusting, self._on_change = trusting, frozenset(on_change)
        self._filters: dict[str, OutlierFilter[float]] = {}

    def forget(self) -> None:
        """Nothing is accepted yet: the clock jumped, or another episode begins."""
        self._filters.clear()

    def take(self, stamp_ns: int, names: Sequence[str], positions: Floats) -> Intake:
        """Take in the ``positions`` [len(names)] of one message."""
        accepted = np.full(len(names), np.nan)
        held: dict[str, str] = {}
        jumps = []
        for at, (name, position) in enumerate(zip(names, positions.tolist(), strict=True)):
            if not math.isfinite(position):
                continue
            one = self._filter(name)
            last = one.last
            if last is not None and name in self.turning:
                position = last.value + math.remainder(position - last.value, TURN)
            if one.take(stamp_ns, position):
                accepted[at] = position
                if one.agreed and last is not None:
                    jumps.append(
                        f"joint {name[:40]!r} jumped from {last.value:.3f} to {position:.3f}:"
                        f" {one.agreed} readings agree"
                    )
            elif last is not None:
                apart_ms = abs(stamp_ns - last.stamp_ns) / MS
                held[name] = (
                    f"joint {name[:40]!r} was read at {position:.3f}, {apart_ms:.0f} ms from"
                    f" {last.value:.3f}: it does not move so fast"
                )
            elif one.contradicts:
                first, second = one.rivals
                held[name] = (
                    f"the readings of joint {name[:40]!r} contradict each other, as {first:.3f} and"
                    f" {second:.3f}: look at what publishes them"
                )
        return Intake(accepted, held, tuple(jumps))

    def _filter(self, name: str) -> OutlierFilter[float]:
        found = self._filters.get(name)
        if found is None:
            if len(self._filters) >= _MOST_NAMES:
                self._filters.clear()
            trusting = self._trusting or name in self._on_change

            def reaches(one: float, other: float, seconds: float) -> bool:
                apart = other - one
                if name in self.turning:
                    apart = math.remainder(apart, TURN)
                return abs(apart) <= travel(self.speeds.get(name, CEILING), TOLERANCE, seconds)

            found = self._filters[name] = OutlierFilter(reaches, trusting)
        return found


def speeds_of(limits: Limits, described: Mapping[str, float]) -> dict[str, float]:
    """Highest speeds of joints by name: a margin on ``velocity_limits``, or as the robot is
    ``described``. Another joint's limit is unknown."""
    space = limits.space
    if not space.kind.joints or not limits.velocity:
        return dict(described)
    names = (space.names[index] for index in space.motion)
    own = {name: MARGIN * v for name, v in zip(names, limits.velocity, strict=True)}
    return {**described, **own}


# The policy's state


class Joints:
    """Accepted joint positions by name, as a part that images are joined with.

    ``names`` picks and orders; messages of several publishers are merged name by name, and each
    name has to be there by itself. No names: every message is a whole state, as it is. Of joints
    ``on_change`` the last value stays. Those in ``turning`` are shown in the turn around the
    ``middle`` of the policy's training data, where it is known; else from -pi to pi.
    """

    def __init__(
        self,
        names: Sequence[str] = (),
        size: int = 0,
        on_change: Collection[str] = (),
        middle: Sequence[float] = (),
    ) -> None:
        self.names = tuple(names)
        self.turning: frozenset[str] = frozenset()
        self._size = size  # values wanted of a whole state; 0: any number
        self._on_change, self._middle = frozenset(on_change), tuple(middle)
        self._by_name: dict[str, History[float]] = {name: History(STATES) for name in names}
        self._whole: History[tuple[tuple[str, ...], Floats]] = History(STATES)
        self.offered: dict[str, None] = {}  # names in the order of their first readings
        self._messages = 0
        self._last_message: dict[str, int] = {}  # a wanted name -> the newest message with it

    def add(self, stamp_ns: int, value: tuple[tuple[str, ...], Floats]) -> None:
        """Take in the names and positions of one message, of one length where names are wanted; NaN
        where a reading was not accepted."""
        names, positions = value
        self._messages += 1
        if len(self.offered) < _MOST_NAMES:
            self.offered.update(dict.fromkeys(names))
        if not self.names:
            if np.isfinite(positions).all():
                self._whole.add(stamp_ns, value)
            return
        for name, position in zip(names, positions.tolist(), strict=True):
            if (history := self._by_name.get(name)) is None:
                continue
            self._last_message[name] = self._messages
            if math.isfinite(position):
                history.add(stamp_ns, position)

    def at(self, stamp_ns: int, slop_ns: int) -> StampedValue[Floats] | None:
        if not self.names:
            return self._whole_at(stamp_ns, slop_ns)
        found = [self._there(name, stamp_ns, slop_ns) for name in self.names]
        stamps = [s.stamp_ns for s in found if s is not None]
        if len(stamps) < len(found):
            return None
        values = np.array([_number_at(h, stamp_ns) for h in self._by_name.values()])
        return StampedValue(min(stamps), self._unwrapped(self.names, values))

    def _there(self, name: str, stamp_ns: int, slop_ns: int) -> StampedValue[float] | None:
        nearest = self._by_name[name].nearest(stamp_ns)
        return nearest if name in self._on_change else within(nearest, stamp_ns, slop_ns)

    def _whole_at(self, stamp_ns: int, slop_ns: int) -> StampedValue[Floats] | None:
        found = within(self._whole.nearest(stamp_ns), stamp_ns, slop_ns)
        if found is None or (self._size and len(found.value[1]) != self._size):
            return None
        before, after = self._whole.around(stamp_ns)
        names, values = found.value
        if before is not None and after is not None and before.value[0] == after.value[0]:
            low, high = before.value[1], after.value[1]
            if low.shape == high.shape:
                values = low + share_of(before.stamp_ns, after.stamp_ns, stamp_ns) * (high - low)
        return StampedValue(found.stamp_ns, self._unwrapped(names, values))

    def _unwrapped(self, names: Sequence[str], values: Floats) -> Floats:
        """Positions, those without end in the turn of the policy's training data."""
        if not self.turning.intersection(names):
            return values
        middle = self._middle if len(self._middle) == len(values) else (0.0,) * len(values)
        return np.array(
            [
                about + math.remainder(value - about, TURN) if name in self.turning else value
                for name, value, about in zip(names, values.tolist(), middle, strict=True)
            ]
        )

    def lacks(self, stamp_ns: int) -> MissingReason:
        if not self.names:
            nearest = self._whole.nearest(stamp_ns)
            if nearest is not None and self._size and len(nearest.value[1]) != self._size:
                text = f"has {len(nearest.value[1])} values, the checkpoint needs {self._size}"
                return MissingReason("size", text)
            return gap(nearest, stamp_ns)
        if self.offered and (silent := [n for n in self.names if n not in self.offered]):
            return MissingReason("names", f"has no {_listed(silent)}: {self.wanted_and_offered}")
        found = {
            name: history.nearest(stamp_ns)
            for name, history in self._by_name.items()
            if name not in self._on_change or not history
        }
        worst = max(found, key=lambda name: _apart_ns(found[name], stamp_ns))
        oldest = found[worst]
        if oldest is None and worst in self.offered and self._is_quiet(worst):
            return MissingReason(
                "quiet", f"has too few readings of joint {worst[:40]!r} to accept one: {_ON_CHANGE}"
            )
        if oldest is not None and stamp_ns - oldest.stamp_ns > _QUIET_NS and self._is_quiet(worst):
            ago_s = (stamp_ns - oldest.stamp_ns) / SECOND
            return MissingReason(
                "quiet",
                f"has joint {worst[:40]!r} last read {ago_s:.1f} s before the image: {_ON_CHANGE}",
            )
        return gap(oldest, stamp_ns)

    def _is_quiet(self, name: str) -> bool:
        """True if messages go on to come without it: a clock that is off has them all apart."""
        return self._messages - self._last_message.get(name, 0) >= _QUIET

    @property
    def wanted_and_offered(self) -> str:
        """Both lists of names, for a log."""
        return f"wanted {_listed(self.names)}; offered {_listed(self.offered)}"

    @property
    def extra(self) -> list[str]:
        """Names that are offered and left out."""
        return [name for name in self.offered if name not in self._by_name] if self.names else []

    def forget(self, before_ns: int) -> None:
        self._whole.forget(before_ns)
        for history in self._by_name.values():
            history.forget(before_ns)

    def clear(self) -> None:
        self._whole.clear()
        for history in self._by_name.values():
            history.clear()


def _apart_ns(sample: StampedValue[float] | None, stamp_ns: int) -> float:
    return math.inf if sample is None else abs(sample.stamp_ns - stamp_ns)


def _number_at(history: History[float], stamp_ns: int) -> float:
    """Linear between two samples, the nearest outside of them."""
    before, after = history.around(stamp_ns)
    if before is None or after is None:
        one = before or after
        assert one is not None
        return one.value
    share = share_of(before.stamp_ns, after.stamp_ns, stamp_ns)
    return before.value + share * (after.value - before.value)


def _listed(names: Collection[str]) -> str:
    """Names in a short line, in quotes that escape what a terminal would obey."""
    quoted = [repr(name[:40]) for name in list(names)[:12]]
    more = len(names) - len(quoted)
    return (", ".join(quoted) + (f" and {more} more" if more > 0 else "")) or "none"


# The measured state


def opening_of(position: float, ends: tuple[float, float]) -> float | None:
    """Opening of a gripper, 0 to 1, by its joint's position, which is at ``ends`` when it is closed
    and open. None: so far outside of them that they are not this joint's."""
    closed, opened = ends
    share = (position - closed) / (opened - closed)
    return min(1.0, max(0.0, share)) if -_BEYOND <= share <= 1.0 + _BEYOND else None


class Forgetful(Protocol):
    """A filter with accepted readings."""

    def forget(self) -> None:
        """Begin anew: nothing is accepted yet."""
        ...


_LATER = 1 << 62  # than any instant


@dataclass(frozen=True, slots=True)
class _Oldest:
    """The oldest stamp and the oldest receipt among measured numbers that move; ``of`` this count
    of changes and these that last. ``complete``: all of them were measured."""

    of: tuple[int, frozenset[int]]
    complete: bool
    stamp_ns: int
    received_ns: int


class MeasuredState:
    """The robot's measured state: the newest accepted value of every number of an action, from
    messages that may each have some of them. Not thread-safe.

    In the units of the action space's absolute kin: poses for end effectors, positions for joints,
    for a gripper's joint its opening from 0 to 1. ``intakes`` filter the values before.
    ``lasting``: grippers whose drivers report only changes, so that no opening is too old.
    ``changes`` counts what was taken in.
    """

    def __init__(self, space: ActionSpace, sim_time: bool) -> None:
        self._space = space
        self._sim_time = sim_time
        self._motion, self._grippers = list(space.motion), list(space.grippers)
        self.intakes: list[Forgetful] = []
        self.lasting: frozenset[int] = frozenset()
        self.changes = 0
        self._found: _Oldest | None = None
        self.forget()

    def forget(self) -> None:
        """Forget every measurement: after a jump of the clock."""
        width = self._space.width
        self.changes += 1
        self._values = np.zeros(width)
        self._stamp_ns = [0] * width
        self._received_ns: list[int | None] = [None] * width  # steady; None: never
        self.begin_anew()

    def begin_anew(self) -> None:
        """Begin another episode: the next reading may be anywhere."""
        for intake in self.intakes:
            intake.forget()

    def update(
        self, indices: Sequence[int], values: Floats, stamp_ns: int, received_steady_ns: int
    ) -> None:
        """Take in ``values`` [len(indices)] measured at ``stamp_ns``; those older than the known
        ones are ignored."""
        self.changes += 1
        for index, value in zip(indices, values, strict=True):
            if self._received_ns[index] is None or stamp_ns > self._stamp_ns[index]:
                self._values[index] = value
                self._stamp_ns[index] = stamp_ns
                self._received_ns[index] = received_steady_ns

    def at(self, now: Moment, max_age_ns: int) -> Floats | None:
        """The state, float64 [D], grippers 0; None where any axis was measured longer ago than
        that, or never."""
        oldest = self._oldest
        if not oldest.complete or self._age_of(oldest, now) > max_age_ns:
            return None
        values = self._values.copy()
        values[self._grippers] = 0.0
        return values

    def age_ns(self, now: Moment) -> int:
        """Age of the oldest value, but for joints that are reported only when they change."""
        return max(0, self._age_of(self._oldest, now))

    def _age_of(self, oldest: _Oldest, now: Moment) -> int:
        """Age of the oldest number that moves, of those that were measured."""
        return safety.age_ns(
            now.now_ns, oldest.stamp_ns, now.steady_ns, oldest.received_ns, self._sim_time
        )

    @property
    def _oldest(self) -> _Oldest:
        """The oldest of the numbers that move, but for joints that are reported only when they
        change: asked for more often than anything is measured."""
        if self._found is None or self._found.of != (self.changes, self.lasting):
            received = [self._received_ns[p] for p in self._motion]
            ageing = [
                (self._stamp_ns[p], at)
                for p, at in zip(self._motion, received, strict=True)
                if at is not None and p not in self.lasting
            ]
            self._found = _Oldest(
                (self.changes, self.lasting),
                None not in received,
                min((stamp for stamp, _ in ageing), default=_LATER),
                min((at for _, at in ageing), default=_LATER),
            )
        return self._found

    def openings(self, now: Moment, max_age_ns: int) -> list[float]:
        """Openings of the grippers, 0 to 1; NaN where none was measured since, or ever."""
        return [
            float(self._values[i]) if self.has([i], now, max_age_ns) else float("nan")
            for i in self._grippers
        ]

    def has(self, indices: Iterable[int], now: Moment, max_age_ns: int) -> bool:
        """True if all of these were measured, none longer ago than that."""
        return all(self._is_fresh(index, now, max_age_ns) for index in indices)

    def lacks(self, now: Moment, max_age_ns: int) -> str:
        """Axes without a recent measurement, for a log."""
        names = [
            self._space.names[index]
            for index in self._motion
            if not self._is_fresh(index, now, max_age_ns)
        ]
        if not self._space.kind.joints:
            return "nothing fresh on measured_pose" + (
                "" if len(self._motion) == 6 else f": {' '.join(names)}"
            )
        return "nothing fresh on joint_states of " + ", ".join(map(repr, names))

    def _is_fresh(self, index: int, now: Moment, max_age_ns: int) -> bool:
        received_ns = self._received_ns[index]
        if received_ns is None or index in self.lasting:
            return received_ns is not None
        stamp_ns = self._stamp_ns[index]
        age = safety.age_ns(now.now_ns, stamp_ns, now.steady_ns, received_ns, self._sim_time)
        return age <= max_age_ns
