"""The one thread that owns a policy, and the sessions of its clients.

A session is one client's episode: an instruction and the policy's state under it. At most one frame
a session waits; :class:`~vla_ros.runtime.scheduler.Scheduler` chooses those that are answered next
and together, and :class:`Sessions` answer them.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
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
from vla_ros.serve.log import ClientLog

PATIENCE_S = 2.0  # for the pass that runs at the end
FAILURES = 3  # exceptions in a row, after which the policy is tried, and the server may end
MEASURE_S = 3.0  # for what batches cost, at start
GUESS_S = 1e-3  # what a batch costs, whatever its size, where nothing was measured
_log = logging.getLogger(__name__)

Answer = Inference | Exception
ValueT = TypeVar("ValueT")


class TooOld(Exception):
    """A frame that was not answered since it was too old. One clear line."""


class Sessions(Protocol):
    """Several episodes on one policy. Used by the thread that made it alone.

    ``costs``: known times of batches, of which none larger is asked for.
    """

    info: PolicyInfo
    costs: BatchCosts

    def open(self) -> Any:
        """Another session: any object. It ends when it is dropped."""

    def answer(self, requests: Sequence[SessionRequest], clock: Clock) -> list[Answer]:
        """The policy's answers, in order; an error of one of them costs no other."""

    def fails(self, clock: Clock) -> str:
        """Reason for which the policy answers nothing at all any more; "": it does."""


@dataclass(eq=False, slots=True)
class _Loaded:
    """A policy, and the episode whose state it has."""

    policy: Policy
    last: tuple[object, Instruction] | None = None

    def begin(self, episode: tuple[object, Instruction]) -> None:
        """Reset the policy, unless it is in that episode."""
        if self.last != episode:
            self.last = None
            self.policy.reset(episode[1])
            self.last = episode


@dataclass(frozen=True, eq=False, slots=True)
class _Session:
    loaded: _Loaded
    name: object = field(default_factory=object)  # what is loaded must not refer back to it


class SharedPolicy:
    """Sessions on one loaded policy, answered together where it has sessions.

    Policies without a model are loaded anew for each. A model without sessions remembers one
    episode: where another session asks than the last time, it begins anew. ``spec``: of the
    observation by which it is measured and tried.
    """

    def __init__(
        self, load: Callable[[], Policy], spec: PolicySpec, log: ClientLog | None = None
    ) -> None:
        self._load, self._spec, self._log = load, spec, log or ClientLog(_log)
        self._first = _Loaded(load())
        self.policy = self._first.policy
        self.info = self.policy.info
        self.costs = BatchCosts({1: GUESS_S})

    def measure(self, most: int, clock: Clock, budget_s: float = MEASURE_S) -> None:
        """Measure the costs of batches of up to so many, as far as ``budget_s`` allows."""
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
        """Failure of the policy, tried on a warm-up frame; "": none."""
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
        """Another session."""
        if self.info.dtype == "none":
            return _Session(_Loaded(self._load()))
        try:
            return _Session(_Loaded(open_session(self.policy)))
        except PolicyRefused:
            return _Session(self._first)

    def answer(self, requests: Sequence[SessionRequest], clock: Clock) -> list[Answer]:
        """Answers in order, in one batch unless sessions share the only state."""
        if any(one.session.loaded is self._first for one in requests):
            return [self._together([one], clock)[0] for one in requests]
        return self._together(requests, clock)

    def _together(self, requests: Sequence[SessionRequest], clock: Clock) -> list[Answer]:
        """Answers of sessions with a state each. Where a pass of several fails each is asked by
        itself, in an episode that begins anew."""
        answers: dict[int, Answer | None] = {}
        for index, one in enumerate(requests):
            try:
                assert one.instruction is not None, "frames for a server say their episode"
                one.session.loaded.begin((one.session.name, one.instruction))
            except Exception as error:
                answers[index] = error
        batch = [index for index in range(len(requests)) if index not in answers]
        frames = [replace(requests[n], session=requests[n].session.loaded.policy) for n in batch]
        found: Sequence[Answer | None] = ()
        try:
            found = step_together(frames, clock)
        except Exception as error:
            for index in batch:
                requests[index].session.loaded.last = None
            if len(batch) == 1:
                found = [error]
            else:
                self._log.exception("a batch failed: each observation of it is tried by itself")
        if len(found) < len(batch):  # outside the except block, whose traceback holds tensors
            release_memory()
            found = [self._together([requests[index]], clock)[0] for index in batch]
        answers |= dict(zip(batch, found, strict=True))
        out: list[Answer] = []
        for index, one in enumerate(requests):
            answer = answers[index] or InvalidAction("the policy has nothing to say yet")
            if isinstance(answer, Exception) and not _of_frame(answer):
                self._log.error("an observation failed", exc_info=answer)
                one.session.loaded.last = None
            out.append(answer)
        return out


@dataclass(frozen=True, slots=True)
class _Frame:
    """A frame that waits, and the future of its answer."""

    request: SessionRequest
    future: Future[Inference]


class Stepper:
    """Thread of its own in which a policy is loaded and answers. Start once, close once.

    ``most``: sessions at a time to expect. ``ended`` is called, from that
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
        log: ClientLog | None = None,
    ) -> None:
        self._log = log or ClientLog(_log)
        self._spec, self._clock, self._ended, self._passed = spec, clock, ended, passed
        self._make, self._most = make or self._load, most
        self._work: queue.SimpleQueue[tuple[Callable[[Sessions], Any], Future[Any]] | None] = (
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
        """Costs of batches, after :meth:`start`. Others may be set while no request runs."""
        return self._scheduler.costs

    @costs.setter
    def costs(self, costs: BatchCosts) -> None:
        self._scheduler.costs = costs

    def open(self, rate_hz: float = 0.0, max_age_s: float = 0.0) -> Future[Any]:
        """Another session that wants answers at this rate, none on observations older than that;
        0: as they come. Raises, in the end, :class:`~vla_ros.runtime.scheduler.Refused`."""
        return self._do(lambda sessions: self._admit(sessions.open(), rate_hz, max_age_s))

    def _admit(self, session: Any, rate_hz: float, max_age_s: float) -> Any:
        self._scheduler.admit(session, rate_hz, max_age_s)
        return session

    def release(self, session: Any) -> None:
        """End a session."""
        self._do(lambda _: self._forget(session))

    def _forget(self, session: Any) -> None:
        if frame := self._scheduler.release(session):
            frame.future.cancel()

    def ask(self, request: SessionRequest, age_ns: int = 0) -> Future[Inference]:
        """The answer to a frame, which was so old when its timeline, yet without a mark, began; at
        most one frame a session may wait. Raises, in the end, TooOld, or what the policy raises."""
        frame = _Frame(request, Future())
        stamp_ns = request.timeline.start_ns - age_ns
        waits = self._do(lambda _: self._scheduler.submit(request.session, stamp_ns, frame))
        waits.add_done_callback(lambda done: _fail(frame.future, done.exception()))
        return frame.future

    def _do(self, work: Callable[[Sessions], ValueT]) -> Future[ValueT]:
        """Result of ``work``, done between two passes in the thread of the policy."""
        future: Future[ValueT] = Future()
        self._work.put((work, future))
        if self._over:
            self._drain()
        return future

    def _drain(self) -> None:
        error = RuntimeError("the server ends")
        with contextlib.suppress(queue.Empty):
            while True:
                if item := self._work.get_nowait():
                    item[1].set_exception(error)

    def busy_s(self) -> float:
        """Seconds that the pass that runs has taken; 0: none runs."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def close(self) -> None:
        """End after the pass that runs; frames that wait are not answered."""
        self._work.put(None)
        self._thread.join(PATIENCE_S)

    def _load(self, spec: PolicySpec) -> Sessions:
        sessions = SharedPolicy(lambda: load_policy(spec), spec, self._log)
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
                _fail(frame.future, RuntimeError("the server ends"))

    def _serve(self, sessions: Sessions) -> str:
        """Serve until :meth:`close`, or until the policy is broken: the reason."""
        failures = 0
        while self._do_work(sessions):
            broken = self._pass(sessions)
            if broken is None:
                continue
            failures = failures + 1 if broken else 0
            if failures >= FAILURES:
                if reason := sessions.fails(self._clock):
                    return f"{failures} failures in a row: {reason}"
                failures = 0  # frames are to blame
        return ""

    def _pass(self, sessions: Sessions) -> bool | None:
        """Answer the frames that are next; True where the policy failed, None: there are none."""
        now_ns = self._clock.steady_ns()
        waiting = self._scheduler.next(now_ns)
        for dropped in self._scheduler.take_dropped():
            _fail(dropped.frame.future, TooOld(str(dropped)))
        batch = [one for one in waiting if one.future.set_running_or_notify_cancel()]
        if not batch:
            return None
        self._since = time.monotonic()
        try:
            answers = sessions.answer([_begun(one.request, now_ns) for one in batch], self._clock)
        except Exception as error:
            self._log.exception("a pass failed")
            answers = [error] * len(batch)
        took = self.busy_s()
        self._since = None
        self._passed(len(batch), took)
        self._scheduler.costs.learn(len(batch), took)
        for one, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Exception):
                one.future.set_exception(answer)
            else:
                one.future.set_result(answer)
        return any(isinstance(a, Exception) and not _of_frame(a) for a in answers)

    def _do_work(self, sessions: Sessions) -> bool:
        """Do the work in the queue, and wait for some where no frame waits. False: it is over."""
        while True:
            try:
                item = self._work.get(block=not self._scheduler.waits)
            except queue.Empty:
                return True
            if item is None:
                return False
            _do(*item, sessions)
            del item  # while it waits for the next one it keeps no session


def _do(work: Callable[[Sessions], Any], future: Future[Any], sessions: Sessions) -> None:
    try:
        future.set_result(work(sessions))
    except Exception as error:
        future.set_exception(error)


def _begun(request: SessionRequest, now_ns: int) -> SessionRequest:
    return replace(request, timeline=request.timeline.mark("queue", now_ns))


def _fail(future: Future[Any], error: BaseException | None) -> None:
    """Set the error of a future, unless it was canceled or there is none."""
    if error is not None and future.set_running_or_notify_cancel():
        future.set_exception(error)


def _of_frame(error: Exception) -> bool:
    """True of an error of the frame, not of the policy."""
    return isinstance(error, InvalidAction)
