"""The one thread that owns a policy, and the sessions of those who ask it.

A session is one client's episode: an instruction and whatever the policy remembers under it. The
thread takes whatever waits, at most one frame a session, and has it answered together; how that is
done is the business of :class:`Sessions`.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from vla_ros.core.clock import Clock
from vla_ros.core.types import Inference, Instruction, Observation, PolicyInfo, Timeline
from vla_ros.policies.base import InvalidAction, Policy, PolicyRefused, PolicySpec
from vla_ros.policies.load import load_policy
from vla_ros.policies.sessions import Asked as Frame
from vla_ros.policies.sessions import open_session, step_together
from vla_ros.runtime.worker.wire import Ready
from vla_ros.runtime.worker.worker import last_line, warm_up

PATIENCE_S = 2.0  # for the pass that runs at the end
FAILURES = 3  # exceptions in a row that end the server: what is broken does not mend itself


@dataclass(frozen=True, slots=True)
class Asked:
    """One frame of one session. ``instruction``: its epoch is another one in another episode."""

    session: Any
    observation: Observation
    instruction: Instruction
    timeline: Timeline


Answer = Inference | Exception


class Sessions(Protocol):
    """Several episodes on one policy. Used by the thread that made it alone."""

    info: PolicyInfo

    def open(self) -> Any:
        """Another session: any object. It ends when nobody has it any more."""

    def answer(self, asked: Sequence[Asked], clock: Clock) -> list[Answer]:
        """What the policy says, in order; what went wrong with one of them costs no other."""


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


class Shared:
    """Sessions on one loaded policy, answered together where it has sessions.

    Policies without a model are loaded anew for each. A model without sessions remembers one
    episode: where another session asks than the last time, it begins anew.
    """

    def __init__(self, load: Callable[[], Policy]) -> None:
        self._load = load
        self._first = _Loaded(load())
        self.policy = self._first.policy
        self.info = self.policy.info

    def open(self) -> _Session:
        """See :class:`Sessions`."""
        if self.info.dtype == "none":
            return _Session(_Loaded(self._load()))
        try:
            return _Session(_Loaded(open_session(self.policy)))
        except PolicyRefused:
            return _Session(self._first)

    def answer(self, asked: Sequence[Asked], clock: Clock) -> list[Answer]:
        """See :class:`Sessions`."""
        if any(one.session.loaded is self._first for one in asked):
            return [self._together([one], clock)[0] for one in asked]
        return self._together(asked, clock)

    def _together(self, asked: Sequence[Asked], clock: Clock) -> list[Answer]:
        """Of sessions with a memory each."""
        answers: dict[int, Answer | None] = {}
        for place, one in enumerate(asked):
            try:
                one.session.loaded.begin((one.session, one.instruction))
            except Exception as error:
                answers[place] = error
        batch = [place for place in range(len(asked)) if place not in answers]
        frames = [
            Frame(
                asked[place].session.loaded.policy, asked[place].observation, asked[place].timeline
            )
            for place in batch
        ]
        answers |= dict(zip(batch, step_together(frames, clock), strict=True))
        out: list[Answer] = []
        for place, one in enumerate(asked):
            answer = answers[place] or InvalidAction("the policy has nothing to say yet")
            if isinstance(answer, Exception) and not _its_own(answer):
                traceback.print_exception(answer)
                one.session.loaded.last = None
            out.append(answer)
        return out


class Stepper:
    """Loads a policy in a thread of its own and answers there. Start once, close once.

    ``ended`` is called, from that thread, with the reason for which it answers no more. ``passed``
    is called with how many frames were answered together, and in how many seconds.
    """

    def __init__(
        self,
        spec: PolicySpec,
        clock: Clock,
        ended: Callable[[str], None],
        passed: Callable[[int, float], None] = lambda count, seconds: None,
        make: Callable[[PolicySpec], Sessions] | None = None,
    ) -> None:
        self._spec, self._clock, self._ended, self._passed = spec, clock, ended, passed
        self._make = make or self._load
        self._waiting: queue.SimpleQueue[tuple[Asked | None, Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._ready: Future[Ready] = Future()
        self._since: float | None = None  # when the pass that runs began
        self._over = False
        self._times = Ready(PolicyInfo("none"), 0)
        self._thread = threading.Thread(target=self._run, name="vla_ros_stepper", daemon=True)

    def start(self) -> Ready:
        """Load and warm up. Raises what loading raises: PolicyRefused in one line."""
        self._thread.start()
        return self._ready.result()

    def open(self) -> Future[Any]:
        """Another session."""
        return self._put(None)

    def ask(self, asked: Asked) -> Future[Inference]:
        """The answer of a frame; at most one frame a session may wait."""
        return self._put(asked)

    def _put(self, asked: Asked | None) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.put((asked, future))
        if self._over:
            self._drain()
        return future

    def _drain(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                if item := self._waiting.get_nowait():
                    item[1].set_exception(RuntimeError("the server ends"))

    def busy_s(self) -> float:
        """How long the pass that runs has taken; 0: none runs."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def close(self) -> None:
        """End after the pass that runs; what waits is not answered."""
        self._waiting.put(None)
        self._thread.join(PATIENCE_S)

    def _load(self, spec: PolicySpec) -> Sessions:
        sessions = Shared(lambda: load_policy(spec))
        self._times = warm_up(sessions.policy, spec, 0, self._clock)
        return sessions

    def _run(self) -> None:
        try:
            sessions = self._make(self._spec)
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(
            Ready(sessions.info, 0, self._times.inference_p50_ms, self._times.inference_p99_ms)
        )
        if reason := self._serve(sessions):
            self._ended(reason)
        self._over = True
        self._drain()

    def _serve(self, sessions: Sessions) -> str:
        """Until it is told to end, or the policy is broken: the reason."""
        failures = 0
        while (batch := self._take(sessions)) is not None:
            if not batch:
                continue
            self._since = time.monotonic()
            try:
                answers = sessions.answer([asked for asked, _ in batch], self._clock)
            except Exception as error:
                traceback.print_exc()
                answers = [error] * len(batch)
            self._passed(len(batch), self.busy_s())
            self._since = None
            broken = [a for a in answers if isinstance(a, Exception) and not _its_own(a)]
            failures = failures + 1 if broken else 0
            for (_, future), answer in zip(batch, answers, strict=True):
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
            if failures >= FAILURES:
                return f"{failures} failures in a row: {last_line(broken[-1])}"
        return ""

    def _take(self, sessions: Sessions) -> list[tuple[Asked, Future[Any]]] | None:
        """Wait for something, and take all that waits. None: it is over."""
        batch: list[tuple[Asked, Future[Any]]] = []
        item = self._waiting.get()
        while True:
            if item is None:
                return None
            asked, future = item
            if asked is None:
                _open(sessions, future)
            elif future.set_running_or_notify_cancel():
                batch.append((asked, future))
            try:
                item = self._waiting.get_nowait()
            except queue.Empty:
                return batch


def _open(sessions: Sessions, future: Future[Any]) -> None:
    try:
        future.set_result(sessions.open())
    except Exception as error:
        future.set_exception(error)


def _its_own(error: Exception) -> bool:
    """Whether a frame, not the policy, is to blame."""
    return isinstance(error, InvalidAction)
