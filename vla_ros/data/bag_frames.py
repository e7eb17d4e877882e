"""The frames of a bag: what its cameras saw, judged first, then read one by one.

:func:`scan` reads every stamp and says in one line why a bag cannot be replayed;
:func:`read_frames` yields each frame with what belongs to it, by the stamps of capture.
Images are read from the disk as they are needed, everything else is held in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vla_ros.replay.bag import Bag, BagMessage
from vla_ros.replay.errors import BagError
from vla_ros.replay.parts import Part, header_stamp, lookup
from vla_ros.replay.topics import Picked
from vla_ros.timing import MS, SECOND

_LOOP_NS = SECOND  # further back than this is no late frame: time itself went back
_PICTURES = (b"\xff\xd8\xff", b"\x89PNG")


@dataclass(frozen=True, slots=True)
class FrameTime:
    """A frame by its capture and when it was recorded, both in ns."""

    stamp_ns: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Frames:
    """The frames of a bag that can be shown, in the order of capture."""

    times: tuple[FrameTime, ...]
    repeated: int = 0
    late: int = 0

    @property
    def rate_hz(self) -> float:
        """Of the camera, by the median distance of two frames; 0 for a single one."""
        stamps = np.array([t.stamp_ns for t in self.times], dtype=np.int64)
        return float(SECOND / np.median(np.diff(stamps))) if len(stamps) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Frame:
    """What is shown together: the parts, the camera's image last.

    ``image_ns`` is the image's stamp; ``stamp_ns``, the older one of both cameras, is what the
    policy names the frame by.
    """

    index: int
    stamp_ns: int
    image_ns: int
    at_ns: int
    parts: tuple[Part, ...]


def scan(
    bag: Bag,
    picked: Picked,
    encodings: Collection[str],
    max_gap_s: float,
    first: int = 0,
    last: int | None = None,
) -> Frames:
    """The frames ``first`` to ``last`` (counted from 0, ``last`` included) of the bag.

    BagError: time goes back (the bag loops, or the clock was set) or jumps ahead by more than
    ``max_gap_s``, stamps are zero, or the images are in an encoding that no policy reads.
    """
    name = picked.topics["image"].name
    times: list[FrameTime] = []
    repeated = late = 0
    newest = 0
    index = -1
    for message in bag.messages([name]):
        index += 1
        if index < first or (last is not None and index > last):
            continue
        if not times:
            _check_image(bag, picked, message, encodings)
        stamp = header_stamp(bag, message)
        if stamp <= 0:
            raise BagError(f"{name}: frame {index} has no stamp: the camera driver left it zero")
        step = stamp - newest if times else 1
        if step == 0:
            repeated += 1
        elif step < -_LOOP_NS:
            raise BagError(
                f"{name}: time goes back by {-step / SECOND:.1f} s at frame {index} (the bag loops,"
                f" or the clock was set): replay a part, such as --frames {first}:{index - 1}"
            )
        elif step < 0:
            late += 1
        elif times and step > max_gap_s * SECOND:
            raise BagError(
                f"{name}: time jumps ahead by {step / SECOND:.1f} s at frame {index}: replay a"
                f" part, such as --frames {first}:{index - 1}, or allow it with --max-gap"
            )
        else:
            newest = stamp
            times.append(FrameTime(stamp, message.stamp_ns))
    if not times:
        raise BagError(f"{name} has {index + 1} frames: none of them is in --frames")
    return Frames(tuple(times), repeated, late)


def _check_image(bag: Bag, picked: Picked, message: BagMessage, encodings: Collection[str]) -> None:
    content = bag.decode(message)
    if picked.compressed:
        if not bytes(content.data[:4]).startswith(_PICTURES):
            raise BagError(
                f"{message.topic}: compressed as {str(content.format)[:40]!r}: only JPEG and PNG"
                " can be read"
            )
        return
    if content.encoding not in encodings:
        raise BagError(
            f"{message.topic}: encoding {str(content.encoding)[:40]!r} is not supported, only"
            f" {', '.join(encodings)}"
        )
    if len(content.data) != content.step * content.height:
        raise BagError(
            f"{message.topic}: an image has {len(content.data)} bytes, its step x height say"
            f" {content.step * content.height}"
        )


def read_frames(
    bag: Bag, picked: Picked, frames: Frames, needs: Sequence[str], slop_ns: int
) -> Iterator[Frame]:
    """Every frame with its companions ``needs``: of each role the message nearest in stamp, at
    most ``slop_ns`` away, as the policy node joins them. A frame that lacks one comes without.

    BagError: the bag has no message of a role at all.
    """
    lookups = [lookup(bag, picked, role) for role in needs]
    name = picked.topics["image"].name
    expected = iter(frames.times)
    due = next(expected)
    index = 0
    for message in bag.messages([name]):
        stamp = header_stamp(bag, message)
        if (stamp, message.stamp_ns) != (due.stamp_ns, due.at_ns):
            continue
        found = [one.nearest(stamp, slop_ns) for one in lookups]
        companions = [part for part in found if part is not None]
        oldest = min([stamp, *(p.stamp_ns for p in companions if p.role == "wrist_image")])
        parts = (*companions, Part("image", stamp, message.data))
        yield Frame(index, oldest, stamp, message.stamp_ns, parts)
        index += 1
        following = next(expected, None)
        if following is None:
            return
        due = following


def lacking(frame: Frame, needs: Sequence[str], slop_ns: int) -> str:
    """Why the policy cannot answer this frame; empty when it can."""
    there = {part.role for part in frame.parts}
    missing = [role for role in needs if role not in there]
    return f"no {' and no '.join(missing)} within {slop_ns / MS:.0f} ms" if missing else ""
