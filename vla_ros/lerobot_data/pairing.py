"""Which images belong to a command, and where an episode ends: pure functions over stamps.

A row is what a policy could have known when it said an action. A command of ours says what it
rests on: the capture of its evidence, when it was due, the newest image its node had taken in.
Of a stranger's command only its arrival is known: then it gets images that had arrived before it.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from vla_ros.timing import SECOND

#: what a command's row shows: the image of the moment it was made for, the one it rests on, or the
#: newest that its node had taken in when it was published
DUE, EVIDENCE, NEWEST = "due", "evidence", "newest"
PAIRINGS = (DUE, EVIDENCE, NEWEST)


@dataclass(frozen=True, slots=True)
class Told:
    """A command by its times, in ns. ``said_ns``: its publication; ``at_ns``: when it was recorded.

    ``observed_ns``, ``latest_ns``, ``due_ns`` and ``received_ns`` are 0 where nobody says them.
    ``observed_ns`` is the stamp of the oldest image that it rests on, ``latest_ns`` that of the
    newest observation its node had by then, ``due_ns`` the moment that it was made for.
    """

    said_ns: int
    at_ns: int
    observed_ns: int = 0
    latest_ns: int = 0
    due_ns: int = 0
    received_ns: int = 0

    def moment_ns(self, pairing: str) -> int:
        """The moment that its row shows; 0: only its arrival is known.

        What was due later than anything the node had seen is shown with what it had seen.
        """
        if not self.observed_ns:
            return 0
        latest = max(self.latest_ns, self.observed_ns)
        if pairing == NEWEST:
            return latest
        if pairing == EVIDENCE or not self.due_ns:
            return self.observed_ns
        return min(max(self.due_ns, self.observed_ns), latest)


class Stamps:
    """When the messages of one stream were captured and when they arrived, in ns.

    Numbers of messages are their places in ``captured`` and ``arrived``, as they were recorded.
    """

    def __init__(self, captured: Sequence[int], arrived: Sequence[int]) -> None:
        self._order = sorted(range(len(captured)), key=captured.__getitem__)
        self._captured = [captured[i] for i in self._order]
        by_arrival = sorted(range(len(arrived)), key=arrived.__getitem__)
        self._arrived = [arrived[i] for i in by_arrival]
        self._newest: list[int] = []  # of those that had arrived: the one captured last
        for i in by_arrival:
            before = self._newest[-1] if self._newest else i
            self._newest.append(i if captured[i] >= captured[before] else before)
        self._stamps = captured

    def __len__(self) -> int:
        return len(self._order)

    def stamp(self, number: int) -> int:
        """Capture of a message."""
        return self._stamps[number]

    def captured_by(self, moment_ns: int) -> int | None:
        """The newest that was captured at ``moment_ns`` or before."""
        place = bisect.bisect_right(self._captured, moment_ns) - 1
        return self._order[place] if place >= 0 else None

    def captured_after(self, moment_ns: int) -> int | None:
        """The oldest that was captured later."""
        place = bisect.bisect_right(self._captured, moment_ns)
        return self._order[place] if place < len(self._order) else None

    def arrived_by(self, at_ns: int) -> int | None:
        """The newest, by capture, of those that had been recorded by then."""
        place = bisect.bisect_right(self._arrived, at_ns) - 1
        return self._newest[place] if place >= 0 else None


@dataclass(frozen=True, slots=True)
class Paired:
    """Number of each camera's image. Or ``lacking``: why there is none, in words."""

    images: Mapping[str, int] = field(default_factory=dict)
    lacking: str = ""


def pair(
    told: Told, cameras: Mapping[str, Stamps], pairing: str, max_age_s: float, slop_s: float
) -> Paired:
    """The images of a command: none that was captured after the moment its row shows.

    One exception, which the policy node makes too: a frame of several cameras is named by its
    oldest image, so beside an image of exactly that stamp another camera's may be up to ``slop_s``
    younger, if the frame was complete by then.
    """
    moment = told.moment_ns(pairing)
    found: dict[str, int] = {}
    for name, stamps in cameras.items():
        number = stamps.captured_by(moment) if moment else stamps.arrived_by(told.at_ns)
        if number is None:
            return Paired(lacking=f"no {name} before it")
        found[name] = number
    if moment and any(cameras[name].stamp(i) == moment for name, i in found.items()):
        limit = min(moment + round(slop_s * SECOND), told.received_ns or moment, told.said_ns)
        found = {name: _partner(cameras[name], i, moment, limit) for name, i in found.items()}
    reference = moment or told.said_ns
    for name, i in found.items():
        if reference - cameras[name].stamp(i) > max_age_s * SECOND:
            return Paired(lacking=f"no {name} younger than {max_age_s:g} s")
    return Paired(found)


def _partner(stamps: Stamps, number: int, moment_ns: int, limit_ns: int) -> int:
    """The image nearest to the moment, the one before it or the one after it up to the limit."""
    after = stamps.captured_after(moment_ns)
    if after is None or stamps.stamp(after) > limit_ns:
        return number
    nearer = stamps.stamp(after) - moment_ns < moment_ns - stamps.stamp(number)
    return after if nearer else number


@dataclass(frozen=True, slots=True)
class Mark:
    """What tells episodes apart, of one command: -1 and "" where nobody says it."""

    said_ns: int
    epoch: int = -1
    episode: int = -1
    task: str = ""


def episodes(marks: Sequence[Mark], max_gap_s: float) -> Iterator[int]:
    """Number of each command's episode, from 0. Another begins with another sentence, policy's
    epoch (a reset) or simulation's episode, and where time jumps: ahead by more than ``max_gap_s``,
    or back."""
    number = 0
    before: Mark | None = None
    for mark in marks:
        if before is not None:
            step = mark.said_ns - before.said_ns
            same = (mark.epoch, mark.episode, mark.task) == (
                before.epoch,
                before.episode,
                before.task,
            )
            if not same or step < 0 or step > max_gap_s * SECOND:
                number += 1
        before = mark
        yield number


def said(dropped: Counter[str]) -> list[str]:
    """What was left out, one line a reason, the most frequent first."""
    return [f"{count} commands left out: {why}" for why, count in dropped.most_common()]
