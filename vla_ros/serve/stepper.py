"""The one thread that owns a policy, and the sessions of those who ask it.

A session is one client's episode: an instruction and whatever the policy remembers under it. Of
what waits, at most one frame a session, :class:`~vla_ros.runtime.scheduler.Scheduler` says what is
answered next and together; how that is done is the business of :class:`Sessions`.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from vla_ros.core.clock import Clock
from vla_ros.core.types import Inference, Instruction, PolicyInfo, Timeline
from vla_ros.policies.base import InvalidAction, Policy, PolicyRefused, PolicySpec
from vla_ros.policies.load import load_policy
from vla_ros.policies.sessions import SessionRequest, measure, open_session, step_together
from vla_ros.runtime.scheduler import BatchCosts, Scheduler
from vla_ros.runtime.worker.wire import PolicyLoaded
from vla_ros.runtime.worker.worker import (
    WARM_UP,
    last_line,
    release_memory,
    warm_up,
    warm_up_observation,
)

PATIENCE_S = 2.0  # for the pass that runs at the end
FAILURES = 3  # exceptions in a row, after which the policy is tried, and the server may end
MEASURE_S = 3.0  # for what batches cost, at start
GUESS_S = 1e-3  # what a batch costs, whatever its size, where nothing was measured


Answer = Inference | Exception
ValueT = TypeVar("ValueT")


class TooOld(Exception):
    """A frame that was not answered since it was too old. One clear line."""


class Sessions(Protocol):
    """Several episodes on one policy. Used by the thread that made it alone.

    ``costs``: what is known of the time of a batch; none larger than those is asked for.
    """

    info: PolicyInfo
    costs: BatchCosts

    def open(self) -> Any:
        """Another session: any object. It ends when nobody has it any more."""

    def answer(self, asked: Sequence[SessionRequest], clock: Clock) -> list[Answer]:
        """What the policy says, in order; what went wrong with one of them costs no other."""

    def fails(self, clock: Clock) -> str:
        """Why the policy answers nothing at all any more; "": it does."""


@dataclass(eq=False, slots=True)
class _Loaded:
    """A policy and whose episode it remembers."""

    policy: Policy
    last: tuple[object, Instruction] | None = None

    def begin(self, episode: tuple[object, Instruction]) -> None:
        """Anew, unless it is in that episode."""
        if self.last != episode:
            self.last = None
            self.policy.reset(episode[1])
            self.last = episode


@dataclass(frozen=True, eq=False, slots=True)
class _Session:
    loaded: _Loaded


class SharedPolicy:
    """Sessions on one loaded policy, answered together where it has sessions.

    Policies without a model are loaded anew for each. A model without sessions remembers one
    episode: where another session asks than the last time, it begins anew. ``spec``: of the
    observation by which it is measured and tried.
    """

    def __init__(self, load: Callable[[], Policy], spec: PolicySpec) -> None:
        self._load, self._spec = load, spec
        self._first = _Loaded(load())
        self.policy = self._first.policy
        self.info = self.policy.info
        self.costs = BatchCosts({1: GUESS_S})

    def measure(self, most: int, clock: Clock, budget_s: float = MEASURE_S) -> None:
        """What batches of up to so many cost, as far as that can be told in ``budget_s``."""
        if self.info.dtype == "none":
            return
        try:
            sessions = [open_session(self.policy) for _ in range(most)]
        except PolicyRefused:
            sessions = [self.policy]
        if self._spec.warmup_count == 0:
            self.costs = BatchCosts({1: GUESS_S, len(sessions): GUESS_S})
            return
        for session in sessions:
            session.reset(WARM_UP)
        seen = warm_up_observation(self.info, self._spec)
        self.costs = BatchCosts(measure(sessions, seen, clock, budget_s=budget_s))
        self._first.last = None

    def fails(self, clock: Clock) -> str:
        """See :class:`Sessions`."""
        now = clock.steady_ns()
        seen = replace(warm_up_observation(self.info, self._spec), received_steady_ns=now)
        try:
            self._first.last = None
            self.policy.reset(WARM_UP)
            self.policy.step(seen, Timeline(now).mark("queue", now), clock)
        except InvalidAction:
            return ""
        except Exception as error:
            return last_line(error)
        return ""

    def open(self) -> _Session:
        """See :class:`Sessions`."""
        if self.info.dtype == "none":
            return _Session(_Loaded(self._load()))
        try:
            return _Session(_Loaded(open_session(self.policy)))
        except PolicyRefused:
            return _Session(self._first)

    def answer(self, asked: Sequence[SessionRequest], clock: Clock) -> list[Answer]:
        """See :class:`Sessions`."""
        if any(one.session.loaded is self._first for one in asked):
            return [self._together([one], clock)[0] for one in asked]
        return self._together(asked, clock)

    def _together(self, asked: Sequence[SessionRequest], clock: Clock) -> list[Answer]:
        """Of sessions with a memory each. Where a pass of several fails each is asked by itself,
        in an episode that begins anew."""
        answers: dict[int, Answer | None] = {}
        for place, one in enumerate(asked):
            try:
                assert one.instruction is not None, "frames for a server say their episode"
                one.session.loaded.begin((one.session, one.instruction))
            except Exception as error:
                answers[place] = error
        batch = [place for place in range(len(asked)) if place not in answers]
        frames = [replace(asked[n], session=asked[n].session.loaded.policy) for n in batch]
        found: Sequence[Answer | None] = ()
        try:
            found = step_together(frames, clock)
        except Exception as error:
            for place in batch:
                asked[place].session.loaded.last = None
            if len(batch) == 1:
                found = [error]
            else:
                traceback.print_exc()
        if len(found) < len(batch):  # outside the except block, whose traceback holds tensors
            release_memory()
            found = [self._together([asked[place]], clock)[0] for place in batch]
        answers |= dict(zip(batch, found, strict=True))
        out: list[Answer] = []
        for place, one in enumerate(asked):
            answer = answers[place] or InvalidAction("the policy has nothing to say yet")
            if isinstance(answer, Exception) and not _its_own(answer):
                traceback.print_exception(answer)
                one.session.loaded.last = None
            out.append(answer)
        return out


@dataclass(frozen=True, slots=True)
class _Frame:
    """One that waits, and for whom."""

    asked: SessionRequest
    future: Future[Inference]


class Stepper:
    """Loads a policy in a thread of its own and answers there. Start once, close once.

    ``most``: sessions at a time that are to be reckoned with. ``ended`` is called, from that
    thread, with the reason for which it answers no more. ``passed`` is called with how many frames
    were answered together, and in how many seconds.
    """

    def __init__(
        self,
        spec: PolicySpec,
        clock: Clock,
        ended: Callable[[str], None],
        passed: Callable[[int, float], None] = lambda count, seconds: None,
        make: Callable[[PolicySpec], Sessions] | None = None,
        most: int = 16,
    ) -> None:
        self._spec, self._clock, self._ended, self._passed = spec, clock, ended, passed
        self._make, self._most = make or self._load, most
        self._said: queue.SimpleQueue[tuple[Callable[[Sessions], Any], Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._scheduler = Scheduler[_Frame](BatchCosts({1: GUESS_S}))
        self._ready: Future[PolicyLoaded] = Future()
        self._since: float | None = None  # when the pass that runs began
        self._over = False
        self._times = PolicyLoaded(PolicyInfo("none"), 0)
        self._thread = threading.Thread(target=self._run, name="vla_ros_stepper", daemon=True)

    def start(self) -> PolicyLoaded:
        """Load, warm up and measure. Raises what loading raises: PolicyRefused in one line."""
        self._thread.start()
        return self._ready.result()

    @property
    def costs(self) -> BatchCosts:
        """What batches cost, after :meth:`start`. Others may be set while nobody asks."""
        return self._scheduler.costs

    @costs.setter
    def costs(self, costs: BatchCosts) -> None:
        self._scheduler.costs = costs

    def open(self, rate_hz: float = 0.0, max_age_s: float = 0.0) -> Future[Any]:
        """Another session that wants answers at this rate, none from observation older than that;
        0: as they come. Raises, in the end, :class:`~vla_ros.runtime.scheduler.Refused`."""
        return self._do(lambda sessions: self._admit(sessions.open(), rate_hz, max_age_s))

    def _admit(self, session: Any, rate_hz: float, max_age_s: float) -> Any:
        self._scheduler.admit(session, rate_hz, max_age_s)
        return session

    def release(self, session: Any) -> None:
        """Nobody asks with this session any more."""
        self._do(lambda _: self._forget(session))

    def _forget(self, session: Any) -> None:
        if frame := self._scheduler.release(session):
            frame.future.cancel()

    def ask(self, asked: SessionRequest, age_ns: int = 0) -> Future[Inference]:
        """The answer of a frame, which was so old when its timeline began, without a mark on it; at
        most one frame a session may wait. Raises, in the end, TooOld, or what the policy raises."""
        frame = _Frame(asked, Future())
        stamp_ns = asked.timeline.start_ns - age_ns
        told = self._do(lambda _: self._scheduler.submit(asked.session, stamp_ns, frame))
        told.add_done_callback(lambda told: _tell(frame.future, told.exception()))
        return frame.future

    def _do(self, work: Callable[[Sessions], ValueT]) -> Future[ValueT]:
        """Between two passes, in the thread of the policy."""
        future: Future[ValueT] = Future()
        self._said.put((work, future))
        if self._over:
            self._drain()
        return future

    def _drain(self) -> None:
        error = RuntimeError("the server ends")
        with contextlib.suppress(queue.Empty):
            while True:
                if item := self._said.get_nowait():
                    item[1].set_exception(error)

    def busy_s(self) -> float:
        """How long the pass that runs has taken; 0: none runs."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def close(self) -> None:
        """End after the pass that runs; what waits is not answered."""
        self._said.put(None)
        self._thread.join(PATIENCE_S)

    def _load(self, spec: PolicySpec) -> Sessions:
        sessions = SharedPolicy(lambda: load_policy(spec), spec)
        self._times = warm_up(sessions.policy, spec, 0, self._clock)
        sessions.measure(self._most, self._clock)
        return sessions

    def _run(self) -> None:
        try:
            sessions = self._make(self._spec)
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._scheduler.costs = sessions.costs
        self._ready.set_result(
            PolicyLoaded(
                sessions.info, 0, self._times.inference_p50_ms, self._times.inference_p99_ms
            )
        )
        if reason := self._serve(sessions):
            self._ended(reason)
        self._over = True
        self._drain()
        for session in list(self._scheduler.robots):
            if frame := self._scheduler.release(session):
                _tell(frame.future, RuntimeError("the server ends"))

    def _serve(self, sessions: Sessions) -> str:
        """Until it is told to end, or the policy is broken: the reason."""
        failures = 0
        while self._hear(sessions):
            now_ns = self._clock.steady_ns()
            waiting = self._scheduler.next(now_ns)
            for dropped in self._scheduler.take_dropped():
                _tell(dropped.frame.future, TooOld(str(dropped)))
            batch = [one for one in waiting if one.future.set_running_or_notify_cancel()]
            if not batch:
                continue
            self._since = time.monotonic()
            try:
                answers = sessions.answer([_begun(one.asked, now_ns) for one in batch], self._clock)
            except Exception as error:
                traceback.print_exc()
                answers = [error] * len(batch)
            took = self.busy_s()
            self._since = None
            self._passed(len(batch), took)
            self._scheduler.costs.learn(len(batch), took)
            broken = [a for a in answers if isinstance(a, Exception) and not _its_own(a)]
            failures = failures + 1 if broken else 0
            for one, answer in zip(batch, answers, strict=True):
                if isinstance(answer, Exception):
                    one.future.set_exception(answer)
                else:
                    one.future.set_result(answer)
            if failures >= FAILURES:
                if reason := sessions.fails(self._clock):
                    return f"{failures} failures in a row: {reason}"
                failures = 0  # frames are to blame
        return ""

    def _hear(self, sessions: Sessions) -> bool:
        """Do what is asked for, and wait for it where no frame waits. False: it is over."""
        while True:
            try:
                item = self._said.get(block=not self._scheduler.waits)
            except queue.Empty:
                return True
            if item is None:
                return False
            work, future = item
            try:
                future.set_result(work(sessions))
            except Exception as error:
                future.set_exception(error)


def _begun(asked: SessionRequest, now_ns: int) -> SessionRequest:
    return replace(asked, timeline=asked.timeline.mark("queue", now_ns))


def _tell(future: Future[Any], error: BaseException | None) -> None:
    """Nobody may wait for it any more."""
    if error is not None and future.set_running_or_notify_cancel():
        future.set_exception(error)


def _its_own(error: Exception) -> bool:
    """Whether a frame, not the policy, is to blame."""
    return isinstance(error, InvalidAction)
