"""How chunks are executed on the time line: which action is next, when another chunk is asked for.

Action i of a chunk is meant for i periods after its observation was captured. A chunk that comes
late therefore begins behind the actions that were executed since: for a robot that moves all the
time, at the one that is due now. A robot that stood still has used up none, so its chunk begins at
the beginning: skipping there would be a jump.

Sources: arXiv 2506.07339 (real-time chunking: when to ask, the largest of the last delays),
arXiv 2304.13705 (temporal ensembling).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median_high

from vla_ros.core import PolicyInfo
from vla_ros.safety import Limits, least_max_age_s


class Execution(str, Enum):
    """See docs/explanation/chunks.md."""

    SYNC = "sync"  # stand still, look, execute S actions
    ASYNC = "async"  # move on meanwhile; skip what was executed since the new chunk's observation
    ENSEMBLE = "ensemble"  # the weighted mean of what all chunks say of this moment
    RTC = "rtc"  # async, and the new chunk is guided to continue the old one
    RTC_TRAINED = "rtc_trained"  # async, and the network takes the actions under way as given

    @property
    def continues(self) -> bool:
        """The policy itself makes a chunk that continues the one before it."""
        return self in (Execution.RTC, Execution.RTC_TRAINED)


@dataclass(frozen=True, slots=True)
class Chunking:
    """How chunks are executed; of no effect on policies that give one action at a time.

    ``replan_interval`` is S, the actions executed of a chunk before another replaces it; 0: as
    many as the age limit allows (:meth:`fitted`; all of them where nobody fits it), and for the
    ensemble as few as the worker allows. ``ensemble_decay`` is ACT's m: the i-th
    oldest chunk weighs exp(-m i). ``delay_window``: delays remembered for the estimate.
    ``delay_frames``: a chunk is there so many periods after its observation, at the earliest.

    Of policies that were trained for delays, which give one action at a time, ``told_delay`` is the
    delay that they are told, in control periods; None: the one that is measured.
    """

    execution: Execution = Execution.ASYNC
    replan_interval: int = 0
    ensemble_decay: float = 0.01
    delay_window: int = 10
    delay_frames: int = 0
    told_delay: int | None = None

    def __post_init__(self) -> None:
        if min(self.replan_interval, self.delay_frames) < 0 or self.delay_window < 1:
            raise ValueError(
                "replan_interval and delay_frames must be 0 or more, delay_window 1 or more"
            )
        if self.told_delay is not None and self.told_delay < 0:
            raise ValueError("told_delay must be 0 or more")

    def fitted(self, limits: Limits, info: PolicyInfo, inference_s: float) -> Chunking:
        """The same with an S where that was left open, for a policy that takes ``inference_s``.

        It is the largest with which no action gets older than ``limits.max_age_s``, and no less
        than come too late of a chunk (d <= S, arXiv 2506.07339): a limit that is too short for
        those is refused as for a given S. One that was given stays, and so does an ensemble's.
        """
        length = info.chunk_length
        if self.replan_interval or length <= 1 or self.execution is Execution.ENSEMBLE:
            return self
        all_s = (self.least_age_s(limits, info, inference_s, kept) for kept in range(1, length + 1))
        fits = sum(least_s <= limits.max_age_s for least_s in all_s)
        late = self.delay_frames + math.ceil(inference_s / limits.period_s - 1e-6)
        least = 1 if self.execution is Execution.SYNC else max(1, late)
        return replace(self, replan_interval=min(length, max(fits, least)))

    def least_age_s(
        self, limits: Limits, info: PolicyInfo, inference_s: float, kept: int | None = None
    ) -> float:
        """The smallest ``max_age_s`` that can be met with S, or with ``kept`` in its place."""
        length = info.chunk_length
        late = self.delay_frames if length > 1 else 0  # else the policy itself is late
        kept = self.executed_of(length) if kept is None else kept
        return least_max_age_s(limits, info.pipeline_depth + late, inference_s, kept)

    def executed_of(self, length: int) -> int:
        """S for a chunk of ``length`` actions."""
        if self.execution is Execution.ENSEMBLE:
            return min(self.replan_interval or 1, length)
        return min(self.replan_interval or length, length)

    def last_of(self, length: int) -> int:
        """Where a chunk ends if no other comes: who does not wait goes on as long as there is
        something to go on with."""
        return self.executed_of(length) if self.execution is Execution.SYNC else length

    def reach(self, length: int, lead: int) -> int:
        """From which index on another chunk is wanted: at S, and early enough to arrive, ``lead``
        periods later, while there is something left to execute."""
        kept = self.executed_of(length)
        if self.execution is Execution.SYNC:
            return kept
        return max(1, min(kept, length - lead))


def refuse_unless_able(chunking: Chunking, info: PolicyInfo) -> None:
    """ValueError, in one line, for an execution that the policy knows nothing of."""
    asked = chunking.execution
    if not asked.continues or asked.value in info.continues:
        return
    able = [e.value for e in Execution if not e.continues or e.value in info.continues]
    what = f"policy {info.name!r}, schedule {info.schedule!r},"
    raise ValueError(
        f"execution {asked.value!r}: {what} cannot continue a chunk: choose {', '.join(able)}"
    )


class Delays:
    """How late chunks are, in control periods: the largest of the newest ones. Not thread-safe."""

    def __init__(self, window: int, expected: int) -> None:
        self._expected = expected  # until one was seen
        self._seen: deque[tuple[int, int]] = deque(maxlen=window)

    def add(self, periods: int, executed: int) -> None:
        """A chunk asked for while the robot moved was there after ``periods``, in which
        ``executed`` actions went out."""
        self._seen.append((periods, min(periods, executed)))

    @property
    def lead(self) -> int:
        """Periods from an observation to its chunk's first action."""
        return max((periods for periods, _ in self._seen), default=self._expected)

    @property
    def executed(self) -> int:
        """Actions executed in that time: no more than really were."""
        return max((executed for _, executed in self._seen), default=self._expected)


class Lateness:
    """How late single actions are executed, in control periods: the median of the newest ones.

    A policy that knows its age is to be told what is likely, not the worst: an action that is made
    for later than it is executed is as wrong as one that is made for earlier. Not thread-safe.
    """

    def __init__(self, window: int, expected: int) -> None:
        self._expected = expected  # until one was seen
        self._seen: deque[int] = deque(maxlen=window)

    def add(self, age_ns: int, period_ns: int) -> None:
        """An action was executed whose evidence is so old."""
        self._seen.append((max(0, age_ns) + period_ns // 2) // period_ns)

    @property
    def steps(self) -> int:
        """What to expect of the next one."""
        return median_high(self._seen) if self._seen else self._expected
