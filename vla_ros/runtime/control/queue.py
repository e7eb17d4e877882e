"""What is to be executed next, and whether another answer is to be asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

from vla_ros.action_space import ActionSpace
from vla_ros.control.ensemble import blend
from vla_ros.control.timeline import Chunking, Delays, Execution, Lateness
from vla_ros.core import Executing, Floats, Inference
from vla_ros.safety import Limits

_REMEMBERED = 4096  # executed actions; more than any chunk has


@dataclass(frozen=True, slots=True)
class Answer:
    """An inference with the receipt times of the observation it belongs to."""

    inference: Inference
    received_ns: int
    received_steady_ns: int


@dataclass(frozen=True, slots=True)
class ChunkAction:
    """One action that may be published next.

    ``answers`` are those that it rests on, the oldest first, and ``index`` is its place in the
    oldest one's chunk. ``rows`` [n, D]: this action, and what comes after it if nothing comes
    between.
    """

    answers: tuple[Answer, ...]
    index: int
    rows: Floats

    @property
    def answer(self) -> Answer:
        """The oldest: what its age is counted from."""
        return self.answers[0]

    @property
    def newest(self) -> Answer:
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
class _Asked:
    """A request under way. ``moving``: the robot had something to execute meanwhile."""

    stamp_ns: int
    moving: bool


class ActionQueue:
    """Newest wins: a new chunk replaces the old one once S of its actions were executed; see
    :mod:`vla_ros.control.timeline`. Single actions replace each other. Not thread-safe.

    ``chunk_length``: actions the policy gives at a time; of one that gives chunks nothing is asked
    while an answer is awaited. ``expected``: how many periods a chunk takes, until one was seen.
    ``chunking``: its S may change at any time.
    ``voided`` says what was thrown away by the last :meth:`take`, or "".
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
        self._current: Answer | None = None
        self._index = 0  # of its next action
        self._waiting: list[Answer] = []  # as they came
        self._chunks: list[Answer] = []  # of the ensemble
        self._asked: _Asked | None = None  # awaited
        self._last: _Asked | None = None
        self._executed: deque[int] = deque(maxlen=_REMEMBERED)  # when, as stamps
        self._broken_ns = 0  # chunks that did not see what was done then are not continued
        self.voided = ""

    # ------------------------------------------------------------------ asking

    def asks(self, stamp_ns: int, limits: Limits) -> bool:
        """Whether to ask for an answer to the observation of that stamp."""
        if not self._one_by_one:
            return True
        asked = self._asked  # one whose answer would be too old by now is given up
        busy = asked is not None and stamp_ns - asked.stamp_ns <= limits.max_age_ns
        if busy or self._waiting or not self._wants:
            return False
        if self.chunking.execution is Execution.SYNC and self._executed:
            return stamp_ns >= self._executed[-1] + limits.period_ns  # it stands still
        return True

    def asked(self, stamp_ns: int) -> Executing | None:
        """An answer to this observation was asked for; returns what is executed meanwhile."""
        current, executing = self._current, None
        moving = current is not None and not self.exhausted
        if moving and current is not None and current.inference.stamp_ns > self._broken_ns:
            row = self._index - self._executed_since(stamp_ns)
            left = len(current.inference.actions) - row
            if row >= 0 and left > 0 and self._one_by_one:
                delay = min(self._delays.executed, left)
                executing = Executing(current.inference.stamp_ns, row, delay)
        self._asked = self._last = _Asked(stamp_ns, moving)
        return executing

    @property
    def delay_steps(self) -> int:
        """Periods from a frame to the execution of its single action, to tell the policy."""
        told = self.chunking.told_delay
        return self._lateness.steps if told is None else told

    def awaits(self, now_ns: int, period_ns: int) -> bool:
        """Whether the answer that was asked for is due by now."""
        asked = self._asked
        return asked is not None and asked.stamp_ns + self._virtual * period_ns <= now_ns

    def put(self, answer: Answer) -> None:
        """Take a new answer; one that was still waiting is replaced by it."""
        self._waiting = [answer] if not self._virtual else [*self._waiting, answer]

    def answered(self) -> None:
        """What was asked for came, or will never come."""
        self._asked = None

    # ------------------------------------------------------------------ executing

    def take(self, now_ns: int, limits: Limits) -> ChunkAction | None:
        """The next action, or None if there is none for this moment."""
        self.advance(now_ns, limits)
        if self._blends:
            return self._together(now_ns, limits)
        if self._current is None or self.exhausted:
            return None
        actions = self._current.inference.actions
        candidate = ChunkAction(
            (self._current,),
            self._index,
            actions[self._index : self.chunking.last_of(len(actions))],
        )
        self._index += 1
        return candidate

    def advance(self, now_ns: int, limits: Limits) -> None:
        """Let an answer that is there take over, if it is time for it."""
        self.voided = ""
        if not self._wants:
            return
        newer = self._arrived(now_ns, limits.period_ns)
        if newer is None:
            return
        inference = newer.inference
        length = len(inference.actions)
        start = self._executed_since(inference.stamp_ns) if length > 1 else 0
        self._note_delay(inference.stamp_ns, start, now_ns, limits.period_ns)
        if length == 1:
            self._lateness.add(now_ns - inference.stamp_ns, limits.period_ns)
        if start >= length:
            self.voided = (
                f"a chunk of {length} actions came after {start} had been executed: nothing is"
                " left of it"
            )
        elif start and self.chunking.execution is Execution.SYNC:
            self.voided = "the robot moved after this chunk's observation: it has to look again"
        else:
            self._current, self._index = newer, start
            if self._blends:
                self._chunks.append(newer)

    def executed(self, now_ns: int, as_said: bool) -> None:
        """The action taken last was published, ``as_said`` or held to a limit."""
        self._executed.append(now_ns)
        if not as_said:
            self._broken_ns = now_ns

    def break_off(self, now_ns: int) -> None:
        """The robot was stopped: what is left of the chunk is not to be continued."""
        self._broken_ns = now_ns

    @property
    def exhausted(self) -> bool:
        """Whether the next action has to come from a new answer."""
        if self._current is None:
            return True
        return self._index >= self.chunking.last_of(len(self._current.inference.actions))

    @property
    def _wants(self) -> bool:
        """Whether a newer answer may take over."""
        if self._current is None or self.exhausted:
            return True
        length = len(self._current.inference.actions)
        return self._index >= self.chunking.reach(length, self._delays.lead)

    def _arrived(self, now_ns: int, period_ns: int) -> Answer | None:
        """The newest answer that is there; those before it are forgotten."""
        late_ns = self._virtual * period_ns
        count = sum(a.inference.stamp_ns + late_ns <= now_ns for a in self._waiting)
        if not self._virtual:
            count = len(self._waiting)
        there, self._waiting = self._waiting[:count], self._waiting[count:]
        return there[-1] if there else None

    def _note_delay(self, stamp_ns: int, executed: int, now_ns: int, period_ns: int) -> None:
        """A chunk was there; one asked for at rest says nothing of the delay in motion."""
        if self._last is not None and self._last == _Asked(stamp_ns, moving=True):
            self._delays.add(max(0, now_ns - stamp_ns) // period_ns, executed)

    def _executed_since(self, stamp_ns: int) -> int:
        """Actions published at that moment or later: the observation did not see their effect."""
        return len(self._executed) - bisect_left(self._executed, stamp_ns)

    def _together(self, now_ns: int, limits: Limits) -> ChunkAction | None:
        """What all chunks say of this moment whose evidence is young enough."""
        live = []
        for answer in self._chunks:
            place = self._executed_since(answer.inference.stamp_ns)
            young = now_ns - answer.inference.stamp_ns <= limits.max_age_ns
            if young and place < len(answer.inference.actions):
                live.append((answer, place))
        self._chunks = [answer for answer, _ in live]
        if not live:
            self._current = None
            return None
        self._current, self._index = live[-1][0], live[-1][1] + 1
        rests = [answer.inference.actions[place:] for answer, place in live]
        rows = blend(rests, self.chunking.ensemble_decay, self._space)
        return ChunkAction(tuple(self._chunks), live[0][1], rows)
