"""Which images belong to a command, and where an episode ends: pure functions over stamps.

A row is what a policy could have known when it issued an action. A command of ours names what it
rests on: the capture of its observation, when it was due, the newest image its node had taken in.
Of a stranger's command only its arrival is known: then it gets images that had arrived before it.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from vla_ros.core.clock import SECOND

#: what a command's row shows: the image of the moment it was made for, the one it rests on, or the
#: newest that its node had taken in when it was published
DUE, OBSERVATION, NEWEST = "due", "observation", "newest"
PAIRINGS = (DUE, OBSERVATION, NEWEST)


@dataclass(frozen=True, slots=True)
class RecordedCommand:
    """A command by its times, in ns. ``at_ns``: when it was recorded.

    ``observed_ns``, ``latest_ns``, ``due_ns`` and ``received_ns`` are 0 where they are unknown.
    ``observed_ns`` is the stamp of the oldest image that it rests on, ``latest_ns`` that of the
    newest observation its node had by then, ``due_ns`` the moment that it was made for.
    """

    published_ns: int
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
        if pairing == OBSERVATION or not self.due_ns:
            return self.observed_ns
        return min(max(self.due_ns, self.observed_ns), latest)


class Stamps:
    """Times of capture and of arrival of one stream's messages, in ns.

    Numbers of messages are their indices in ``captured`` and ``arrived``, as they were recorded.
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
        index = bisect.bisect_right(self._captured, moment_ns) - 1
        return self._order[index] if index >= 0 else None

    def captured_after(self, moment_ns: int) -> int | None:
        """The oldest that was captured later."""
        index = bisect.bisect_right(self._captured, moment_ns)
        return self._order[index] if index < len(self._order) else None

    def arrived_by(self, at_ns: int) -> int | None:
        """The newest, by capture, of those that had been recorded by then."""
        index = bisect.bisect_right(self._arrived, at_ns) - 1
        return self._newest[index] if index >= 0 else None


@dataclass(frozen=True, slots=True)
class PairedImages:
    """Number of each camera's image. Or ``lacking``: why there is none."""

    images: Mapping[str, int] = field(default_factory=dict)
    lacking: str = ""


OTHER_CLOCK_S = 30 * 24 * 3600  # apart: no delay


def pair(
    command: RecordedCommand,
    cameras: Mapping[str, Stamps],
    pairing: str,
    max_age_s: float,
    slop_s: float,
) -> PairedImages:
    """The images of a command: none that was captured after the moment its row shows.

    One exception, which the policy node makes too: a frame of several cameras is named by its
    oldest image, so beside an image of exactly that stamp another camera's may be up to ``slop_s``
    younger, if the frame was complete by then.
    """
    moment = command.moment_ns(pairing)
    found: dict[str, int] = {}
    for name, stamps in cameras.items():
        number = stamps.captured_by(moment) if moment else stamps.arrived_by(command.at_ns)
        if number is None:
            return PairedImages(lacking=f"no {name} before it")
        found[name] = number
    if moment and any(cameras[name].stamp(i) == moment for name, i in found.items()):
        limit = min(
            moment + round(slop_s * SECOND), command.received_ns or moment, command.published_ns
        )
        found = {name: _partner(cameras[name], i, moment, limit) for name, i in found.items()}
    reference = moment or command.published_ns
    for name, i in found.items():
        if abs(reference - cameras[name].stamp(i)) > OTHER_CLOCK_S * SECOND:
            return PairedImages(
                lacking=f"a stamp of {name} from another clock than the commands' (simulated time,"
                " or since its machine's start): record both in one time"
            )
        if reference - cameras[name].stamp(i) > max_age_s * SECOND:
            return PairedImages(lacking=f"no {name} younger than {max_age_s:g} s")
    return PairedImages(found)


def _partner(stamps: Stamps, number: int, moment_ns: int, limit_ns: int) -> int:
    """The image nearest to the moment, the one before it or the one after it up to the limit."""
    after = stamps.captured_after(moment_ns)
    if after is None or stamps.stamp(after) > limit_ns:
        return number
    nearer = stamps.stamp(after) - moment_ns < moment_ns - stamps.stamp(number)
    return after if nearer else number


@dataclass(frozen=True, slots=True)
class Mark:
    """The part of a command that tells episodes apart: -1 and "" where it is unknown."""

    published_ns: int
    epoch: int = -1
    episode: int = -1
    task: str = ""


def episodes(marks: Sequence[Mark], max_gap_s: float) -> Iterator[int]:
    """Number of each command's episode, from 0. Another begins with another instruction, policy's
    epoch (a reset) or simulation's episode, and where time jumps: ahead by more than ``max_gap_s``,
    or back."""
    number = 0
    before: Mark | None = None
    for mark in marks:
        if before is not None:
            step = mark.published_ns - before.published_ns
            if (
                replace(mark, published_ns=before.published_ns) != before
                or step < 0
                or step > max_gap_s * SECOND
            ):
                number += 1
        before = mark
        yield number


def gaps(marks: Sequence[Mark], max_gap_s: float) -> list[float]:
    """Pauses of more than ``max_gap_s`` within what would else be one episode, s."""
    found = []
    for before, mark in pairwise(marks):
        step = mark.published_ns - before.published_ns
        same = replace(mark, published_ns=before.published_ns) == before
        if same and step > max_gap_s * SECOND:
            found.append(step / SECOND)
    return found


def dropped_lines(dropped: Counter[str]) -> list[str]:
    """Commands left out, one line a reason, the most frequent first."""
    return [f"{count} commands left out: {why}" for why, count in dropped.most_common()]
