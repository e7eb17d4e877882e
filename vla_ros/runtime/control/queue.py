"""Chunks on the time line: the action that is executed next, and the requests for answers.

Action i of a chunk is meant for i action periods after its observation was captured, whatever the
control rate. A chunk that comes late therefore begins behind what was executed since: for a robot
that moves all the time, at what is due now. A robot that stood still has used up nothing, so its
chunk begins at the beginning: skipping there would be a jump.

Sources: arXiv 2506.07339 (real-time chunking: when to ask, the largest of the last delays),
arXiv 2304.13705 (temporal ensembling).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median_high

import numpy as np

from vla_ros.core import rotation
from vla_ros.core.action_space import ActionSpace
from vla_ros.core.types import Executing, Floats, Inference, Observation, PolicyInfo
from vla_ros.runtime.control.requests import RecordedRequests
from vla_ros.runtime.safety import (
    ActionRefused,
    Limits,
    least_max_age_s,
    refuse_unless_numbers,
)

_REMEMBERED = 8192  # commands; more than any chunk has
_NOTHING = 1e-6  # of an action: rounding
_BURST = 2.0  # requests ahead of the action rate: a camera jitters


class Execution(str, Enum):
    """Ways in which chunks follow each other; docs/explanation/chunks.md compares them."""

    SYNC = "sync"  # stand still, observe, execute S actions
    ASYNC = "async"  # move on meanwhile; skip what was executed since the new chunk's observation
    ENSEMBLE = "ensemble"  # the weighted mean of all chunks' actions for this moment
    RTC = "rtc"  # async, and the new chunk is guided to continue the old one
    RTC_TRAINED = "rtc_trained"  # async, and the network is conditioned on the actions under way
    CORRECTED = "corrected"  # async, and each action is corrected by the newest frame

    @property
    def continues(self) -> bool:
        """True where the policy itself makes a chunk that continues the one before it."""
        return self in (Execution.RTC, Execution.RTC_TRAINED)


@dataclass(frozen=True, slots=True)
class Chunking:
    """Parameters of how chunks are executed; without effect on policies of one action at a time.

    ``replan_interval`` is S, the actions executed of a chunk before another replaces it; 0: as
    many as the age limit allows (:meth:`fitted`; all of them where it is not fitted), and for the
    ensemble as few as the worker allows. ``ensemble_decay`` is ACT's m: the i-th
    oldest chunk weighs exp(-m i). ``delay_window``: delays remembered for the estimate.
    ``delay_frames``: a chunk is there so many action periods after its observation, at the
    earliest. ``blend_s``: the offset of a chunk of targets from what was commanded last fades out
    over this time (:mod:`vla_ros.runtime.control.motion`).

    ``conditioning_delay_steps``: what a policy that was trained for delays (it gives one action at
    a time) is conditioned on, in action periods of motion; None: the delay that is measured.
    """

    execution: Execution = Execution.ASYNC
    replan_interval: int = 0
    ensemble_decay: float = 0.01
    delay_window: int = 10
    delay_frames: int = 0
    blend_s: float = 0.0
    conditioning_delay_steps: int | None = None

    def __post_init__(self) -> None:
        if min(self.replan_interval, self.delay_frames) < 0 or self.delay_window < 1:
            raise ValueError(
                "replan_interval and delay_frames must be 0 or more, delay_window 1 or more"
            )
        if self.conditioning_delay_steps is not None and self.conditioning_delay_steps < 0:
            raise ValueError("conditioning_delay_steps must be 0 or more")

    def fitted(self, limits: Limits, info: PolicyInfo, inference_s: float) -> Chunking:
        """A copy with an S where that was left open, for a policy that takes ``inference_s``.

        It is the largest with which no action gets older than ``limits.max_age_s``, and no less
        than come too late of a chunk (d <= S, arXiv 2506.07339): a limit that is too short for
        those is refused as for a given S. One that was given stays, and so does an ensemble's.
        """
        length = info.chunk_length
        if self.replan_interval or length <= 1 or self.execution is Execution.ENSEMBLE:
            return self
        all_s = (self.least_age_s(limits, info, inference_s, kept) for kept in range(1, length + 1))
        fits = sum(least_s <= limits.max_age_s for least_s in all_s)
        late = self.delay_frames + math.ceil(inference_s / limits.action_period_s - 1e-6)
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
        """End of a chunk if no other comes: all but ``sync`` go on to its last action."""
        return self.executed_of(length) if self.execution is Execution.SYNC else length

    def reach(self, length: int, lead: int) -> int:
        """Index from which on another chunk is wanted: at S, and early enough to arrive, ``lead``
        actions later, while there is something left to execute."""
        kept = self.executed_of(length)
        if self.execution is Execution.SYNC:
            return kept
        return max(1, min(kept, length - lead))


def refuse_unless_able(chunking: Chunking, info: PolicyInfo) -> None:
    """Raise ValueError, in one line, for an execution that the policy cannot take part in."""
    asked = chunking.execution
    if asked is Execution.CORRECTED and not info.corrects:
        raise ValueError(
            f"execution 'corrected': {info.checkpoint or f'policy {info.name!r}'} has no corrector:"
            " make one with `vla-ros train --corrector`, or choose async"
        )
    if not asked.continues or asked.value in info.continues:
        return
    offered = [e for e in Execution if e is not Execution.CORRECTED or info.corrects]
    able = [e.value for e in offered if not e.continues or e.value in info.continues]
    what = f"policy {info.name!r}, decoding {info.decoding!r},"
    raise ValueError(
        f"execution {asked.value!r}: {what} cannot continue a chunk: choose {', '.join(able)}"
    )


class Delays:
    """Delays of chunks in action periods: the largest of the newest ones. Not thread-safe."""

    def __init__(self, window: int, expected: int) -> None:
        self._expected = expected  # until one was seen
        self._seen: deque[tuple[int, int]] = deque(maxlen=window)

    def add(self, periods: int, executed: int) -> None:
        """Add the delay of a chunk asked for while the robot moved: ``periods``, in which
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
    """Delay of single actions in action periods of motion: the median of the newest.

    A policy that is conditioned on its delay needs the likely one, not the worst: an action made
    for later than it is executed is as wrong as one made for earlier. Periods without an action, in
    which the robot stood, do not count: they do not change where it will be by then.
    Not thread-safe.
    """

    def __init__(self, window: int, expected: int) -> None:
        self._expected = expected  # until one was seen
        self._seen: deque[int] = deque(maxlen=window)

    def add(self, moved_ns: int, period_ns: int) -> None:
        """Add an action that is executed after so long a motion since its observation."""
        self._seen.append((max(0, moved_ns) + period_ns // 2) // period_ns)

    @property
    def steps(self) -> int:
        """Expected delay of the next action."""
        return median_high(self._seen) if self._seen else self._expected


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """An inference with the receipt times of the observation it belongs to."""

    inference: Inference
    received_ns: int
    received_steady_ns: int


@dataclass(frozen=True, slots=True)
class ChunkAction:
    """An action that may be published next.

    ``answers`` are those that it rests on, the oldest first, and ``index`` is its own in the
    oldest one's chunk. ``rows`` [n, D]: this action, and those after it if no answer comes
    between. ``corrected_ns``: the stamp of the newer frame by which this action was corrected,
    or 0. ``since``: the part of it, 0 to 1, that is over as it begins: its chunk came late.
    """

    answers: tuple[PolicyAnswer, ...]
    index: int
    rows: Floats
    corrected_ns: int = 0
    since: float = 0.0

    @property
    def plain(self) -> bool:
        """True of an action as its chunk has it."""
        return len(self.answers) == 1 and not self.corrected_ns

    @property
    def answer(self) -> PolicyAnswer:
        """The oldest answer, by which its age is counted."""
        return self.answers[0]

    @property
    def newest(self) -> PolicyAnswer:
        return self.answers[-1]

    @property
    def action(self) -> Floats:
        """Float64 [D]."""
        row: Floats = self.rows[0]
        return row

    @property
    def following(self) -> Floats:
        """Float64 [n - 1, D]."""
        rows: Floats = self.rows[1:]
        return rows


@dataclass(frozen=True, slots=True)
class _Made:
    """A command of an action. ``at_ns``: when, as a stamp; ``share``: how much of an action it
    makes; ``before``: how many were executed before it."""

    at_ns: int
    share: float
    before: float


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request under way. ``moving``: the robot had something to execute meanwhile."""

    stamp_ns: int
    moving: bool


class ActionQueue:
    """Queue of actions, newest wins: a new chunk replaces the old one once S of its actions were
    executed. Single actions replace each other. Not thread-safe.

    ``chunk_length``: actions the policy gives at a time; of one that gives chunks nothing is asked
    while an answer is awaited. ``expected``: how many action periods a chunk takes, until one was
    seen. ``chunking``: its S may change at any time.
    ``voided`` names what was dropped by the last :meth:`take`, or "".
    """

    def __init__(
        self, chunking: Chunking, space: ActionSpace, chunk_length: int, expected: int = 0
    ) -> None:
        self.chunking = chunking
        self._space = space
        self._one_by_one = chunk_length > 1
        self._blends = self._one_by_one and chunking.execution is Execution.ENSEMBLE
        self._virtual = chunking.delay_frames if self._one_by_one else 0
        self._delays = Delays(chunking.delay_window, max(expected, self._virtual))
        self._lateness = Lateness(chunking.delay_window, expected)
        self.clear()

    def clear(self) -> None:
        """Forget everything but the delays: instruction change, reset, clock jump."""
        self._current: PolicyAnswer | None = None
        self._index = 0  # of its next action
        self._since = 0.0  # part of that one that is over as it begins
        self._next = 0  # the one after the action that was taken, once that begins
        self._left = 0.0  # part of the action before it that is to be executed
        self._before: tuple[int, float] | None = None  # to take the begin back
        self._refused = False  # the action that was taken last was not executed
        self._waiting: list[PolicyAnswer] = []  # as they came
        self._chunks: list[PolicyAnswer] = []  # of the ensemble
        self._asked: _Asked | None = None  # awaited
        self._last: _Asked | None = None
        self._budget = (0, _BURST)  # stamp of the last frame asked about, requests left by then
        self._executed: deque[_Made] = deque(maxlen=_REMEMBERED)  # commands
        self._made = 0.0  # actions executed so far
        self._begun_ns: int | None = None  # when the first since the robot stood was executed
        self._broken_ns = 0  # chunks that did not see what was done then are not continued
        self.voided = ""

    # Asking

    def asks(self, stamp_ns: int, limits: Limits) -> bool:
        """True if an answer to the observation of that stamp is wanted: no more often than actions
        are executed."""
        if self._askable(stamp_ns, limits.action_period_ns) < 1.0 - _NOTHING:
            return False
        if not self._one_by_one:
            return True
        asked = self._asked  # one whose answer would be too old by now is given up
        busy = asked is not None and stamp_ns - asked.stamp_ns <= limits.max_age_ns
        if busy or self._waiting or not self._wants:
            return False
        if self.chunking.execution is Execution.SYNC and self._executed:
            last = self._executed[-1]
            lasts_ns = round(last.share * limits.action_period_ns)
            return self._left == 0.0 and stamp_ns >= last.at_ns + lasts_ns  # it stands still
        return True

    def asked(self, stamp_ns: int, period_ns: int) -> Executing | None:
        """Note a request about this observation, at an action period of ``period_ns``; returns the
        chunk that is executed meanwhile."""
        current, executing = self._current, None
        moving = current is not None and not (self.exhausted and self._left == 0.0)
        self._budget = (stamp_ns, self._askable(stamp_ns, period_ns) - 1.0)
        if moving and current is not None and current.inference.stamp_ns > self._broken_ns:
            row = round(self._index - self._left - self._executed_since(stamp_ns))
            left = len(current.inference.actions) - row
            if row >= 0 and left > 0 and self._one_by_one:
                delay = min(self._delays.executed, left)
                executing = Executing(current.inference.stamp_ns, row, delay)
        self._asked = self._last = _Asked(stamp_ns, moving)
        return executing

    def _askable(self, stamp_ns: int, period_ns: int) -> float:
        """Requests that may be made by then: on average one an action."""
        last_ns, left = self._budget
        since = (stamp_ns - last_ns) / period_ns
        return min(_BURST, left + since) if since >= 0.0 else _BURST  # else the clock was set back

    @property
    def delay_steps(self) -> int:
        """Action periods of motion from a frame to its single action: for the policy."""
        given = self.chunking.conditioning_delay_steps
        return self._lateness.steps if given is None else given

    def awaits(self, now_ns: int, period_ns: int) -> bool:
        """True once the answer that was asked for is due."""
        asked = self._asked
        return asked is not None and asked.stamp_ns + self._virtual * period_ns <= now_ns

    def put(self, answer: PolicyAnswer) -> None:
        """Take a new answer; one that was still waiting is replaced by it."""
        self._waiting = [answer] if not self._virtual else [*self._waiting, answer]

    def answered(self) -> None:
        """Note that the requested answer came, or will never come."""
        self._asked = None

    # Executing

    def runs_out(self, share: float) -> bool:
        """True if what is left of the action that is executed is less than this share of one."""
        return self._left < share - _NOTHING

    def take(self, now_ns: int, limits: Limits, made: float = 0.0) -> ChunkAction | None:
        """The next action, or None if there is none for this moment. It stays the next one until
        :meth:`begin`: a robot that stands still uses up no action. ``made``: of actions, by the
        command of now so far."""
        self.advance(now_ns, limits, made)
        if self._blends:
            return self._together(now_ns, limits, made)
        candidate = self.next
        if candidate is not None:
            self._next = self._index + 1
        return candidate

    @property
    def next(self) -> ChunkAction | None:
        """Next action of the newest chunk that has taken over; of no ensemble."""
        if self._current is None or self.exhausted:
            return None
        actions = self._current.inference.actions
        rows = actions[self._index : self.chunking.last_of(len(actions))]
        return ChunkAction((self._current,), self._index, rows, since=self._since)

    def advance(self, now_ns: int, limits: Limits, made: float = 0.0) -> None:
        """Let an answer that is there take over, if it is time for it: between two actions."""
        self.voided = ""
        if not self._wants or self._left - made > _NOTHING:
            return
        period_ns = limits.action_period_ns
        newer = self._arrived(now_ns, period_ns)
        if newer is None:
            return
        inference = newer.inference
        length = len(inference.actions)
        past = self._executed_since(inference.stamp_ns) + made if length > 1 else 0.0
        start = math.floor(past + _NOTHING)
        self._note_delay(inference.stamp_ns, start, now_ns, period_ns)
        if length == 1:
            moved_ns = self._moved_since(inference.stamp_ns, now_ns, period_ns)
            self._lateness.add(moved_ns, period_ns)
        if start >= length:
            self.voided = (
                f"a chunk of {length} actions came after {start} had been executed: nothing is"
                " left of it"
            )
        elif start and self.chunking.execution is Execution.SYNC:
            self.voided = "the robot moved after this chunk's observation: it has to look again"
        else:
            self._current, self._index, self._refused = newer, start, False
            between = self._space.absolute and limits.actions_a_period < 1.0
            self._since = past - start if between and past - start > _NOTHING else 0.0
            if self._blends:
                self._chunks.append(newer)

    def begin(self) -> None:
        """Begin the action taken last."""
        self._before = self._before or (self._index, self._since)
        self._left += 1.0 - self._since
        self._index, self._since, self._refused = self._next, 0.0, False

    def executed(self, now_ns: int, unchanged: bool, share: float = 1.0) -> None:
        """A command was published that makes ``share`` of what was begun, ``unchanged`` or held to
        a limit."""
        self._executed.append(_Made(now_ns, share, self._made))
        self._made += share
        self._left = max(0.0, self._left - share)
        if self._left < _NOTHING:
            self._left = 0.0
        self._before = None
        self._begun_ns = now_ns if self._begun_ns is None else self._begun_ns
        if not unchanged:
            self._broken_ns = now_ns

    def drop(self) -> None:
        """What is left of the action that was begun is void; one of which nothing was published
        stays the next."""
        if self._before is not None:
            self._index, self._since = self._before
        self._left, self._before = 0.0, None

    def refused(self) -> None:
        """The action taken last was not published. A newer answer may take its place at once."""
        self._refused = True

    def break_off(self, now_ns: int) -> None:
        """The robot was stopped: what is left of the chunk is not to be continued."""
        self._broken_ns, self._begun_ns = now_ns, None

    @property
    def exhausted(self) -> bool:
        """True if the next action has to come from a new answer."""
        if self._current is None:
            return True
        return self._index >= self.chunking.last_of(len(self._current.inference.actions))

    @property
    def _wants(self) -> bool:
        """True if a newer answer may take over."""
        if self._current is None or self._refused or self.exhausted:
            return True
        length = len(self._current.inference.actions)
        return self._index >= self.chunking.reach(length, self._delays.lead)

    def _arrived(self, now_ns: int, period_ns: int) -> PolicyAnswer | None:
        """The newest answer that is there; those before it are forgotten."""
        late_ns = self._virtual * period_ns
        count = sum(a.inference.stamp_ns + late_ns <= now_ns for a in self._waiting)
        if not self._virtual:
            count = len(self._waiting)
        there, self._waiting = self._waiting[:count], self._waiting[count:]
        return there[-1] if there else None

    def _note_delay(self, stamp_ns: int, executed: int, now_ns: int, period_ns: int) -> None:
        """Add the delay of a chunk that was there; asked for at rest it is no measure of
        motion's."""
        if self._last is not None and self._last == _Asked(stamp_ns, moving=True):
            self._delays.add(max(0, now_ns - stamp_ns) // period_ns, executed)

    def _executed_since(self, stamp_ns: int) -> float:
        """Actions executed at that moment or later: the observation did not see their effect."""
        first = bisect_left(self._executed, stamp_ns, key=lambda made: made.at_ns)
        return self._made - self._executed[first].before if first < len(self._executed) else 0.0

    def _moved_since(self, stamp_ns: int, now_ns: int, period_ns: int) -> int:
        """Duration of the robot's motion by actions, each for its period. The time before its first
        one counts too: the delay of actions once it moves is wanted."""
        begun_ns = now_ns if self._begun_ns is None else self._begun_ns
        moved_ns, stamp_ns = max(0, begun_ns - stamp_ns), max(begun_ns, stamp_ns)
        for made in reversed(self._executed):
            end_ns = made.at_ns + round(made.share * period_ns)
            if end_ns <= stamp_ns:
                break
            moved_ns += max(0, min(end_ns, now_ns) - max(made.at_ns, stamp_ns))
        return moved_ns

    def _together(self, now_ns: int, limits: Limits, made: float) -> ChunkAction | None:
        """The mean action of all chunks whose observation is young enough."""
        live = []
        for answer in self._chunks:
            past = self._executed_since(answer.inference.stamp_ns) + made
            index = math.floor(past + _NOTHING)
            young = now_ns - answer.inference.stamp_ns <= limits.max_age_ns
            if young and index < len(answer.inference.actions):
                live.append((answer, index))
        self._chunks = [answer for answer, _ in live]
        if not live:
            self._current = None
            return None
        self._current, self._index = live[-1]
        self._next = self._index + 1
        rests = [answer.inference.actions[index:] for answer, index in live]
        rows = blend(rests, self.chunking.ensemble_decay, self._space)
        return ChunkAction(tuple(self._chunks), live[0][1], rows)


def check_inference(inference: Inference, space: ActionSpace) -> None:
    """Raise :class:`ActionRefused` unless there are actions, finite numbers of this space."""
    if len(inference.actions) == 0:
        raise ActionRefused("the policy returned no action")
    for action in inference.actions:
        refuse_unless_numbers(action, space)


def blend(rests: Sequence[Floats], decay: float, space: ActionSpace) -> Floats:
    """Weighted means, float64 [n, D]: of this moment and of all that any chunk still covers.

    ``rests``: what is left of each chunk [n_i, D], the oldest chunk first, first rows due at the
    same moment. Chunk i weighs exp(-``decay`` i). Orientations are averaged on the sphere.
    """
    weights = np.exp(-decay * np.arange(len(rests)))
    rows = []
    for row in range(max(map(len, rests))):
        there = [i for i, rest in enumerate(rests) if row < len(rest)]
        actions = np.array([rests[i][row] for i in there])
        rows.append(_mean(actions, weights[there], space))
    return np.array(rows)


def _mean(actions: Floats, weights: Floats, space: ActionSpace) -> Floats:
    mean: Floats = weights @ actions / weights.sum()
    for indices in map(list, space.rotations):
        mean[indices] = _mean_rotation(actions[:, indices], weights)
    return mean


def _mean_rotation(vectors: Floats, weights: Floats) -> Floats:
    """Mean of axis-angles: one after the other, each moves it by its share of the way."""
    mean, total = vectors[0].copy(), float(weights[0])
    for vector, weight in zip(vectors[1:], weights[1:], strict=True):
        total += float(weight)
        mean = rotation.turned(mean, rotation.relative(mean, vector) * (float(weight) / total))
    return mean


class RequestBuilder:
    """Requests to the policy that ``info`` describes, whose answers are in ``queue``. Not
    thread-safe.

    ``recorded``: the requests of an earlier run, to be made again.
    """

    def __init__(self, queue: ActionQueue, info: PolicyInfo) -> None:
        self._queue, self._max_delay = queue, info.max_delay
        self.recorded: RecordedRequests | None = None

    def build(self, observation: Observation, limits: Limits, running: bool) -> Observation | None:
        """The frame for the worker; None: an answer to it would not be executed.

        A robot that is not ``running`` has nothing that could be continued.
        """
        if self.recorded is not None:
            return self._as_recorded(observation, self.recorded, limits)
        if not self._queue.asks(observation.stamp_ns, limits):
            return None
        executing = self._queue.asked(observation.stamp_ns, limits.action_period_ns)
        if executing is not None and running:
            observation = replace(observation, executing=executing)
        if self._max_delay:
            steps = min(self._queue.delay_steps, self._max_delay)
            observation = replace(observation, delay_steps=steps)
        return observation

    def _as_recorded(
        self, observation: Observation, recorded: RecordedRequests, limits: Limits
    ) -> Observation | None:
        request = recorded.next(observation.stamp_ns)
        if request is None:
            return None
        self._queue.asked(observation.stamp_ns, limits.action_period_ns)
        steps = min(request.delay_steps, self._max_delay)
        return replace(observation, executing=request.executing, delay_steps=steps)
