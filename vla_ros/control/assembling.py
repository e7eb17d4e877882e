"""From separate streams to one observation: the parts must be of the same instant.

Messages come late, each stream by another time, and some not at all. So images wait, shortly, for
the parts they lack, and parts are kept, shortly, for the images that are still under way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from vla_ros.control.history import Sample
from vla_ros.control.parts import Part
from vla_ros.control.proprio import Layout, as_joints
from vla_ros.core import Image, Observation
from vla_ros.timing import MS, Moment

T = TypeVar("T")

WRIST_IMAGE = "wrist_image"  # the part that is the wrist camera
WAITING = 32  # images that wait at most
_SHARED_NS = 1000  # observations that may share their oldest picture


@dataclass(frozen=True, slots=True)
class Stamped(Generic[T]):
    """A message of a stream: its stamp, when it came, what it said."""

    stamp_ns: int
    received: Moment
    value: T


@dataclass(frozen=True, slots=True)
class PairingWindow:
    """``slop_ns``: how far the stamps of one observation may lie apart. ``wait_ns``: images of
    an older stamp than this wait no longer."""

    slop_ns: int
    wait_ns: int


@dataclass(frozen=True, slots=True)
class Lost:
    """An image that found no partner: the stream it lacked, a line that says so, and its kind:
    that of the :class:`~vla_ros.control.parts.Lack`, or "order" where it came too late itself."""

    stream: str
    reason: str
    kind: str


class Assembler:
    """Joins camera images with what else the policy needs; the newest complete set wins.

    An image is complete as soon as every part has a sample within the slop of its stamp,
    whichever message came last. It waits for that until it is too old or a newer image is
    complete. The stamp of an observation is that of its oldest picture; where two in a row rest
    on the same one the second is stamped a nanosecond later, as no two may have one name. Equal
    stamps, as a simulation gives them, join exactly one way. ``more_cameras``: which parts are
    further cameras, and their roles. Not thread-safe.
    """

    def __init__(
        self,
        window: Callable[[], PairingWindow],
        parts: Mapping[str, Part],
        layout: Layout = as_joints,
        more_cameras: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._window = window
        self._parts = dict(parts)
        self._layout = layout
        self._more = dict(more_cameras)
        self._waiting: dict[int, Stamped[Image]] = {}  # by stamp
        self._lost: list[Lost] = []
        self._last = (0, 0)  # stamps of the newest observation and of its main image
        self._newest = (0, 0)  # stamp of the newest image that was answered, and when it came

    def image(self, part: Stamped[Image]) -> Observation | None:
        """A new main camera image; returns the observation if nothing is missing.

        One that comes after a newer one was answered is lost: its parts may be of other stamps, so
        that its observation would look newer. A clock that is set back overtakes nothing.
        """
        newest_ns, came_ns = self._newest
        late_ns = newest_ns - part.stamp_ns
        if late_ns > 0 and part.stamp_ns > 0 and part.received.now_ns >= came_ns:
            self._lost.append(Lost("image", f"out of order by {late_ns / MS:.1f} ms", "order"))
            return None
        self._waiting[part.stamp_ns] = part
        while len(self._waiting) > WAITING:
            self._give_up(min(self._waiting), self._window().slop_ns)
        return self._complete(part.received)

    def add(self, name: str, part: Stamped[Any]) -> Observation | None:
        """A message of another stream; returns the observation that it completes."""
        self._parts[name].add(part.stamp_ns, part.value)
        return self._complete(part.received)

    def lost(self) -> list[Lost]:
        """Images that were given up since this was asked last."""
        lost, self._lost = self._lost, []
        return lost

    def _complete(self, now: Moment) -> Observation | None:
        """The newest observation that can be made; images up to it are used up."""
        window = self._window()
        for stamp, image in sorted(self._waiting.items()):
            if image.received.now_ns < now.now_ns and now.now_ns - stamp > window.wait_ns:
                self._give_up(stamp, window.slop_ns)
        for stamp in sorted(self._waiting, reverse=True):
            found = self._find(stamp, window.slop_ns)
            if found is None:
                continue
            image = self._waiting.pop(stamp)
            for older in [s for s in self._waiting if s < stamp]:
                self._give_up(older, window.slop_ns)
            for part in self._parts.values():
                part.forget(stamp - window.slop_ns)
            return self._observation(image, found)
        return None

    def _find(self, stamp_ns: int, slop_ns: int) -> dict[str, Sample[Any]] | None:
        found = {}
        for name, part in self._parts.items():
            sample = part.at(stamp_ns, slop_ns)
            if sample is None:
                return None
            found[name] = sample
        return found

    def _give_up(self, stamp_ns: int, slop_ns: int) -> None:
        """An image that lacks nothing but was overtaken by a newer one is not lost."""
        del self._waiting[stamp_ns]
        for name, part in self._parts.items():
            if part.at(stamp_ns, slop_ns) is None:
                kind, text = part.lacks(stamp_ns)
                within = f"within {slop_ns / MS:.1f} ms of the image"
                self._lost.append(Lost(name, f"no {name} {within}: {name} {text}", kind))
                return

    def _observation(self, image: Stamped[Image], found: Mapping[str, Sample[Any]]) -> Observation:
        values = {name: sample.value for name, sample in found.items()}
        pictures = [found[name] for name in (WRIST_IMAGE, *self._more) if name in found]
        stamp = min([image.stamp_ns, *(picture.stamp_ns for picture in pictures)])
        last, last_image = self._last
        if image.stamp_ns > last_image and 0 <= last - stamp < _SHARED_NS:
            stamp = last + 1
        self._last = (stamp, image.stamp_ns)
        if image.stamp_ns <= image.received.now_ns:  # a stamp of the future is refused later on
            self._newest = (image.stamp_ns, image.received.now_ns)
        return Observation(
            stamp_ns=stamp,
            received_ns=image.received.now_ns,
            received_steady_ns=image.received.steady_ns,
            image=image.value,
            wrist_image=values.get(WRIST_IMAGE),
            proprio=self._layout(values),
            poses=values.get("ground_truth", {}),
            more_images={role: values[name] for name, role in self._more.items()},
        )
