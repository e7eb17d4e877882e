"""The streams that an image is joined with: what each knows of the instant of the image.

A part is *there* for an image where one of its samples lies within the slop of the image's stamp.
Pictures and ground truth are taken as they are, the nearest one. Numbers between two samples are
interpolated linearly, poses linearly and along the shorter arc.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from vla_ros.control.history import History, Sample
from vla_ros.core import Floats, Pose
from vla_ros.timing import MS

T = TypeVar("T")

PICTURES = 64  # kept while images wait for them
STATES = 4096  # 20 s at 200 Hz
_HALF_TURN = np.pi


class Lack(NamedTuple):
    """Why a stream has nothing for an image: silent, apart, names or size, and the end of a
    sentence that names the stream."""

    kind: str
    text: str


class Part(Protocol):
    """One stream. Not thread-safe."""

    def add(self, stamp_ns: int, value: Any) -> None:
        """Take in a message."""
        ...

    def at(self, stamp_ns: int, slop_ns: int) -> Sample[Any] | None:
        """The value for an image of this stamp and the stamp of the nearest sample it rests on;
        None where there is none."""
        ...

    def lacks(self, stamp_ns: int) -> Lack:
        """Why there is none."""
        ...

    def forget(self, before_ns: int) -> None:
        """Images from now on are newer."""
        ...


class Nearest(Generic[T]):
    """Values that cannot be mixed: the nearest one."""

    def __init__(self, limit: int) -> None:
        self._history: History[T] = History(limit)

    def add(self, stamp_ns: int, value: T) -> None:
        self._history.add(stamp_ns, value)

    def at(self, stamp_ns: int, slop_ns: int) -> Sample[T] | None:
        return _within(self._history.nearest(stamp_ns), stamp_ns, slop_ns)

    def lacks(self, stamp_ns: int) -> Lack:
        return gap(self._history.nearest(stamp_ns), stamp_ns)

    def forget(self, before_ns: int) -> None:
        self._history.forget(before_ns)


class Poses(Nearest[Pose]):
    """A moving frame: between two samples it is where a steady motion would have it."""

    def __init__(self) -> None:
        super().__init__(STATES)

    def at(self, stamp_ns: int, slop_ns: int) -> Sample[Pose] | None:
        found = super().at(stamp_ns, slop_ns)
        before, after = self._history.around(stamp_ns)
        if found is None or before is None or after is None:
            return found
        share = _share(before.stamp_ns, after.stamp_ns, stamp_ns)
        return Sample(found.stamp_ns, between(before.value, after.value, share))


class Joints:
    """Joint positions by name.

    ``names`` picks and orders; messages of several publishers are merged name by name, and each
    name has to be there by itself. No names: every message is a whole state, as it is.
    """

    def __init__(self, names: Sequence[str] = (), size: int = 0) -> None:
        self.names = tuple(names)
        self._size = size  # values wanted of a whole state; 0: any number
        self._by_name: dict[str, History[float]] = {name: History(STATES) for name in names}
        self._whole: History[tuple[tuple[str, ...], Floats]] = History(STATES)
        self.offered: dict[str, None] = {}  # names in the order they were first heard

    def add(self, stamp_ns: int, value: tuple[tuple[str, ...], Floats]) -> None:
        """``value``: names and positions of one message, of one length where names are wanted."""
        names, positions = value
        if len(self.offered) < 1024:
            self.offered.update(dict.fromkeys(names))
        if not self.names:
            self._whole.add(stamp_ns, value)
            return
        for name, position in zip(names, positions, strict=True):
            if (history := self._by_name.get(name)) is not None:
                history.add(stamp_ns, float(position))

    def at(self, stamp_ns: int, slop_ns: int) -> Sample[Floats] | None:
        if not self.names:
            return self._whole_at(stamp_ns, slop_ns)
        found = [_within(h.nearest(stamp_ns), stamp_ns, slop_ns) for h in self._by_name.values()]
        oldest = min((s.stamp_ns for s in found if s is not None), default=0)
        if any(sample is None for sample in found):
            return None
        return Sample(oldest, np.array([_number_at(h, stamp_ns) for h in self._by_name.values()]))

    def _whole_at(self, stamp_ns: int, slop_ns: int) -> Sample[Floats] | None:
        found = _within(self._whole.nearest(stamp_ns), stamp_ns, slop_ns)
        if found is None or (self._size and len(found.value[1]) != self._size):
            return None
        before, after = self._whole.around(stamp_ns)
        if before is None or after is None or before.value[0] != after.value[0]:
            return Sample(found.stamp_ns, found.value[1])
        low, high = before.value[1], after.value[1]
        if low.shape != high.shape:
            return Sample(found.stamp_ns, found.value[1])
        share = _share(before.stamp_ns, after.stamp_ns, stamp_ns)
        mixed = np.where(
            np.abs(high - low) > _HALF_TURN, found.value[1], low + share * (high - low)
        )
        return Sample(found.stamp_ns, mixed)

    def lacks(self, stamp_ns: int) -> Lack:
        if not self.names:
            nearest = self._whole.nearest(stamp_ns)
            if nearest is not None and self._size and len(nearest.value[1]) != self._size:
                text = f"has {len(nearest.value[1])} values, the checkpoint needs {self._size}"
                return Lack("size", text)
            return gap(nearest, stamp_ns)
        if self.offered and (silent := [n for n, h in self._by_name.items() if not h]):
            return Lack("names", f"has no {_listed(silent)}: {self.wanted_and_offered}")
        worst = max(
            (h.nearest(stamp_ns) for h in self._by_name.values()),
            key=lambda s: abs(s.stamp_ns - stamp_ns) if s is not None else -1,
        )
        return gap(worst, stamp_ns)

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


def between(low: Pose, high: Pose, share: float) -> Pose:
    """The pose at ``share`` of the way: positions linearly, rotations by slerp on the shorter
    arc (Shoemake 1985). Quaternions of length 1."""
    position = np.array(low.position) * (1.0 - share) + np.array(high.position) * share
    first, second = np.array(low.quaternion), np.array(high.quaternion)
    cosine = float(first @ second)
    if cosine < 0.0:
        second, cosine = -second, -cosine
    angle = float(np.arccos(min(cosine, 1.0)))
    if angle < 1e-6:
        mixed = first + share * (second - first)
    else:
        mixed = np.sin((1.0 - share) * angle) * first + np.sin(share * angle) * second
    mixed = mixed / np.linalg.norm(mixed)
    x, y, z = position.tolist()
    qx, qy, qz, qw = mixed.tolist()
    return Pose((x, y, z), (qx, qy, qz, qw))


def gap(nearest: Sample[Any] | None, stamp_ns: int) -> Lack:
    """How far the nearest sample of a stream is from an image, in words."""
    if nearest is None:
        return Lack("silent", "has said nothing yet")
    apart = nearest.stamp_ns - stamp_ns
    side = "newer" if apart > 0 else "older"
    return Lack("apart", f"is {abs(apart) / MS:.1f} ms {side} than the image at its nearest")


def _within(sample: Sample[T] | None, stamp_ns: int, slop_ns: int) -> Sample[T] | None:
    return sample if sample is not None and abs(sample.stamp_ns - stamp_ns) <= slop_ns else None


def _share(before_ns: int, after_ns: int, stamp_ns: int) -> float:
    """Where a stamp lies between two others, from 0 to 1."""
    return (stamp_ns - before_ns) / (after_ns - before_ns) if after_ns > before_ns else 0.0


def _number_at(history: History[float], stamp_ns: int) -> float:
    """Linear between two samples. A joint that turns without end jumps by a whole turn when it
    comes round; the middle of such a jump is nowhere near it, so there the nearest counts."""
    before, after = history.around(stamp_ns)
    if before is None or after is None or abs(after.value - before.value) > _HALF_TURN:
        nearest = history.nearest(stamp_ns)
        assert nearest is not None
        return nearest.value
    share = _share(before.stamp_ns, after.stamp_ns, stamp_ns)
    return before.value + share * (after.value - before.value)


def _listed(names: Sequence[str] | dict[str, None] | list[str]) -> str:
    """Names in a line that stays short, in quotes that show what a terminal would obey."""
    shown = [repr(name[:40]) for name in list(names)[:12]]
    more = len(names) - len(shown)
    return (", ".join(shown) + (f" and {more} more" if more > 0 else "")) or "none"
