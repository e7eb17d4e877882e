"""The worker as the node sees it: frames in, results and events out, never a wait.

A thread keeps a worker alive: it reads its reports, watches it, and replaces it, at once where a
spare one stands by.

Threads: ``submit`` from any thread, never from a signal handler; ``on_result`` and
``on_event`` are called from one thread of the executor's own, never concurrently and never
after ``close`` has returned True. Hold no lock that these callbacks take while calling
``start`` or ``close``. ``close`` may be called from a signal handler. Other threads leave that one
nothing but orders and the watchdog's numbers.
"""

from __future__ import annotations

import contextlib
import logging
import select
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

from vla_ros.core.clock import MS, SECOND, Clock
from vla_ros.core.types import Instruction, Observation
from vla_ros.policies.base import PolicyRefused, PolicySpec
from vla_ros.policies.load import load_policy
from vla_ros.runtime.worker import memory
from vla_ros.runtime.worker.mailbox import Doorbell, MailboxWriter
from vla_ros.runtime.worker.process import WorkerProcess
from vla_ros.runtime.worker.spare import RespawnBudget, SpareWorker
from vla_ros.runtime.worker.wire import (
    HEAD_ROOM,
    Event,
    FrameRefused,
    LoadRefused,
    PolicyLoaded,
    WorkerDied,
    WorkerFailed,
    WorkerGaveUp,
    WorkerGone,
    WorkerLimits,
    WorkerLost,
    WorkerReady,
    WorkerReport,
    WorkerResult,
    WorkerSwitched,
    encode_request,
)
from vla_ros.runtime.worker.worker import Loader

_LOOK_S = 0.1  # between two looks at whether loading was cancelled
NOT_GONE = (
    "worker %d was killed and is not gone after %.1f s: a busy machine or a large model"
    " takes longer; if it stays, its driver is stuck"
)
_log = logging.getLogger(__name__)

TURN_S = 0.05  # longest pause between two looks at the worker
LATE_NS = 500 * MS  # a thread that was away for longer cannot judge the worker
NEWS_S = 0.05  # for how a worker ended; it is usually known 2 ms after its channel's end
NEWS_SWITCHED_S = 0.02  # the same where a spare has taken over, whose answers are waited for
CRASHED_S = 0.1  # without an answer: it is looked whether the worker writes a core file
REAP_NS = 10 * SECOND  # a killed process that is still there after this is stuck in a driver


@dataclass(frozen=True, slots=True)
class _Asked:
    sequence: int = 0
    since_ns: int = 0  # when the oldest request not yet answered then was submitted


@dataclass(frozen=True, slots=True)
class _Answered:
    sequence: int = 0
    at_ns: int = 0


class Watchdog:
    """Time for which requests have gone unanswered.

    Newest wins, so an answer to request n also settles all before n; the clock of those
    after n starts at that answer. ``submitted`` is called by one thread at a time,
    everything else by the executor's thread; each writes fields of its own, so no lock is needed.
    """

    def __init__(self) -> None:
        self._asked = _Asked()
        self._answered = _Answered()

    def submitted(self, sequence: int, steady_ns: int) -> None:
        """Note that request ``sequence`` is in the mailbox."""
        idle = self._answered.sequence >= self._asked.sequence
        self._asked = _Asked(sequence, steady_ns if idle else self._asked.since_ns)

    def answered(self, sequence: int, steady_ns: int) -> None:
        """Note the worker's answer to ``sequence``."""
        self._answered = _Answered(max(sequence, self._answered.sequence), steady_ns)

    def excuse(self, steady_ns: int) -> None:
        """Count from ``steady_ns`` at the earliest: the worker was not there, or we were not."""
        self._answered = _Answered(self._answered.sequence, steady_ns)

    def waiting_ns(self, steady_ns: int) -> int:
        """Time for which a request has been unanswered; 0 when none is."""
        asked, answered = self._asked, self._answered
        if asked.sequence <= answered.sequence:
            return 0
        return steady_ns - max(asked.since_ns, answered.at_ns)


class Executor:
    """Runs one policy in a worker process. Start once, close once, then make another.

    ``on_result`` gets a Result for every request that the worker took (newer requests
    replace older ones that were not taken yet), ``on_event`` a WorkerLost when the worker
    crashed, hung or was killed, then a WorkerReady when its replacement is ready, or a
    WorkerGaveUp. ``loader`` is an importable function, for policies of one's own.
    """

    def __init__(
        self,
        spec: PolicySpec,
        clock: Clock,
        limits: WorkerLimits,
        on_result: Callable[[WorkerResult], None],
        on_event: Callable[[Event], None],
        loader: Loader = load_policy,
    ) -> None:
        self._spec, self._loader, self._clock, self._limits = spec, loader, clock, limits
        self._on_result, self._on_event = on_result, on_event
        self._mailbox = MailboxWriter(HEAD_ROOM, limits.max_image_bytes)
        self._bell = Doorbell()
        self._watchdog = Watchdog()
        self._submitting = threading.Lock()
        self._closed = False
        self._hang_timeout_s = limits.hang_timeout_s
        self._load_timeout_ns = round(limits.load_timeout_s * SECOND)
        self._first: Future[PolicyLoaded] = (
            Future()
        )  # resolved when the first worker is ready or refused
        self._orders = Doorbell()
        self._restart: deque[bool] = deque(maxlen=1)  # an order: kill it, and start another or not
        self._stopping = False  # an order, final
        self._stop_timeout_s = 0.5  # how long the worker is waited for at the end
        self._budget = RespawnBudget(limits.max_respawns, limits.respawn_window_s)
        self._worker: WorkerProcess | None = None
        self._serving: PolicyLoaded | None = None  # the report of the worker that has loaded
        self._after = 0  # requests up to this number were another worker's
        self._spare = SpareWorker(self._start_spare, _no_room, limits, self._tell)
        self._zombies: list[WorkerProcess] = []  # killed, not yet reaped
        self._unexplained: set[WorkerProcess] = (
            set()
        )  # those whose exit reason was not reported yet
        self._replace = False  # start another once the zombies are gone
        self._since_ns = 0  # when the worker was started, or killed
        self._failure = ""  # the reason that the worker gave for its own end
        self._thread = threading.Thread(target=self._run, name="vla_ros_worker", daemon=True)

    def start(self, timeout_s: float, cancelled: threading.Event | None = None) -> PolicyLoaded:
        """Load and warm up; blocks until the worker is ready.

        Raises PolicyRefused with the reason in one line, also after ``timeout_s`` and within
        0.1 s of ``cancelled``; there is no worker then and the executor is closed.
        """
        self._thread.start()
        until = self._clock.steady_ns() + round(timeout_s * SECOND)
        try:
            while True:
                with contextlib.suppress(FutureTimeout):
                    return self._first.result(min(_LOOK_S, timeout_s))
                if cancelled is not None and cancelled.is_set():
                    raise PolicyRefused("it was told to end while the policy was loading")
                if self._clock.steady_ns() >= until:
                    raise PolicyRefused(
                        f"the policy was not ready within {timeout_s:g} s: allow more or use a"
                        " smaller one"
                    )
        except BaseException:
            self.close()
            raise

    def submit(self, observation: Observation, instruction: Instruction) -> None:
        """Post a frame; it replaces one that the worker has not taken yet. Never waits for it.

        A request of another ``instruction`` (text or epoch) than the one before makes the
        worker reset its policy first. While a worker loads, the newest frame is kept for it.
        After :meth:`close` nobody is there to take it. Raises FrameRefused for a frame that cannot
        be handed over.
        """
        head, images = encode_request(observation, instruction)
        with self._submitting:
            if self._closed:
                return
            try:
                sequence = self._mailbox.write(head, images)
            except ValueError as error:
                raise FrameRefused(f"the frame is too large: {error}") from error
            self._watchdog.submitted(sequence, self._clock.steady_ns())
        self._bell.ring()

    def restart(self) -> None:
        """Replace the worker and forget earlier losses. Returns at once; WorkerReady follows.

        Raises WorkerGone where nobody is left to do it: after :meth:`close`, or a bug.
        """
        if not self._thread.is_alive():
            raise WorkerGone("the worker's supervisor has ended: clean up and configure again")
        self._order(True)

    def halt(self) -> None:
        """Kill the worker and start no other before ``restart``; no event follows. Returns at
        once. Results that were on their way may still come."""
        self._order(False)

    def set_hang_timeout(self, seconds: float) -> None:
        """A request unanswered for longer than this means that the worker hangs."""
        if seconds <= 0:
            raise ValueError(f"the hang timeout is {seconds}: give more than 0")
        self._hang_timeout_s = seconds

    def close(self, timeout_s: float = 0.8) -> bool:
        """End the worker, by force if need be. True when it and the thread are gone in time."""
        self._stop_timeout_s = timeout_s / 2
        self._stopping = True
        self._orders.ring()
        if self._thread.is_alive():
            if self._thread is threading.current_thread():
                return True
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                for worker in (self._worker, *self._zombies, self._spare.process):
                    if worker is not None:
                        worker.kill()
                return False
        # Who called may be part of a cycle that Python's collector finds much later: what the
        # kernel has only so much of is given back now.
        with self._submitting:
            self._closed = True
            self._mailbox.close()
        self._bell.close()
        self._orders.close()
        return True

    def _order(self, restart: bool) -> None:
        """Kill the worker, and start another if ``restart``: the newest order counts."""
        self._restart.append(restart)
        self._orders.ring()

    # The thread

    def _run(self) -> None:
        """Supervise workers until ordered to stop."""
        try:
            if not self._stopping:
                self._start_worker()
            last = self._clock.steady_ns()
            while not self._stopping:
                self._pause()
                now = self._clock.steady_ns()
                if now - last > LATE_NS:
                    self._watchdog.excuse(now)
                last = now
                self._turn(now)
        except Exception as error:  # a bug, or a machine out of processes or descriptors
            _log.exception("the supervisor of the worker ended")
            self._give_up(f"the worker cannot be supervised: {error}")
        finally:
            self._end()

    def _pause(self) -> None:
        waiting = select.poll()
        waiting.register(self._orders.fileno(), select.POLLIN)
        for worker in (self._worker, self._spare.process):
            if worker is not None:
                waiting.register(worker.channel.fileno(), select.POLLIN)
        # No event comes when a killed process is gone: whoever waits for that polls.
        pause_s = 0.0 if self._zombies and self._replace else min(TURN_S, self._hang_timeout_s / 4)
        waiting.poll(1000 * max(0.005, pause_s))
        self._orders.answer()

    def _turn(self, now: int) -> None:
        if self._restart:
            self._terminate(now)
            self._spare.renew()
            self._replace = self._restart.pop()
            if self._replace:
                self._budget.clear()
        self._reap(now)
        if self._worker is not None:
            self._read(self._worker, now)
            self._watch(now)
        self._spare.turn(now, None if self._zombies else self._serving)
        if self._replace and self._worker is None and not self._zombies and self._spare.gone():
            self._replace = False
            self._start_worker()

    def _read(self, worker: WorkerProcess, now: int) -> None:
        try:
            reports = worker.read(now)
        except ValueError as error:
            self._lost(f"the worker sent something unreadable: {error}", now)
            return
        if reports is None:
            self._lost(self._failure, now)
            return
        for report in reports:
            self._take(report, now)

    def _take(self, report: WorkerReport, now: int) -> None:
        match report:
            case WorkerResult() if report.sequence > self._after:
                self._watchdog.answered(report.sequence, now)
                self._call(self._on_result, report)
            case PolicyLoaded():
                self._serving = report
                self._watchdog.excuse(now)
                if self._first.done():
                    self._tell(WorkerReady(report, (now - self._since_ns) / SECOND))
                else:
                    self._first.set_result(report)
            case LoadRefused():  # trying again would end the same way
                self._terminate(now)
                self._give_up(report.reason)
            case WorkerFailed():
                self._failure = report.reason

    def _watch(self, now: int) -> None:
        if self._worker is None:
            return
        loading = self._serving is None
        waiting_s = 0.0 if loading else self._watchdog.waiting_ns(now) / SECOND
        if (loading or waiting_s > CRASHED_S) and (how := self._worker.crashed()):
            self._lost(f"the worker {how}; its core file was not waited for", now)
        elif waiting_s > self._hang_timeout_s:
            self._lost(f"the worker has not answered for {waiting_s:.2f} s", now)
        elif loading and self._first.done() and now > self._since_ns + self._load_timeout_ns:
            self._lost(f"the worker was not ready in {self._limits.load_timeout_s:g} s", now)

    # The life of a worker

    def _start_worker(self) -> None:
        self._since_ns = self._clock.steady_ns()
        self._failure = ""
        self._serving = None
        try:
            self._worker = self._new_worker(self._void_requests(self._since_ns))
        except PolicyRefused as error:
            self._give_up(str(error))
        except Exception as error:
            self._give_up(f"the worker cannot be started: {error}")

    def _start_spare(self, serving: PolicyLoaded) -> WorkerProcess:
        """For a GPU it may use all CPUs: most of its loading is done there."""
        worker = self._new_worker(0, standby=True, device_bytes=serving.device_bytes)
        worker.step_back(self._spec.num_threads)
        return worker

    def _new_worker(self, after: int, **options: Any) -> WorkerProcess:
        loads = self._spec, self._loader
        return WorkerProcess(*loads, self._mailbox, self._bell, after, **options)

    def _void_requests(self, now: int) -> int:
        """What a lost worker left behind may be what killed it: from which number on requests are
        the next one's."""
        self._after = self._mailbox.sequence
        self._watchdog.answered(self._after, now)
        return self._after

    def _lost(self, reason: str, now: int) -> None:
        """``reason`` "": it has closed its channel, and how it ended may be known in a moment. A
        spare that stands by takes over before that."""
        within = self._first.done() and self._budget.take(now)
        taken = self._spare.take(self._void_requests(now)) if within else None
        if self._worker is not None:
            reason = reason or self._worker.exit_reason(NEWS_SWITCHED_S if taken else NEWS_S)
            explained = bool(self._failure or self._worker.how())
            self._terminate(now, explained)
        if not self._first.done():
            self._give_up(f"the worker was lost while loading: {reason}")
        elif taken is not None:
            self._worker, self._serving = taken
            self._failure = ""
            self._tell(WorkerSwitched(reason, taken[1]))
        elif within:
            self._tell(WorkerLost(reason))
            self._replace = True
        else:
            self._tell(WorkerLost(reason))
            self._spare.terminate()
            count, window_s = self._limits.max_respawns, self._limits.respawn_window_s
            self._give_up(
                f"the worker was lost again after {count} replacements in {window_s:g} s: {reason}"
            )

    def _terminate(self, now: int, explained: bool = True) -> None:
        """Kill the worker. ``explained``: its exit reason was reported, or need not be."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.channel.close()
            self._zombies.append(self._worker)
            if not explained:
                self._unexplained.add(self._worker)
            self._worker = None
            self._since_ns = now
            self._serving = None

    def _reap(self, now: int) -> None:
        gone = [worker for worker in self._zombies if worker.ended()]
        self._zombies = [worker for worker in self._zombies if worker not in gone]
        for worker in self._unexplained.intersection(gone):
            self._unexplained.remove(worker)
            if worker.ended_unasked():
                self._tell(WorkerDied(worker.pid, worker.how()))
        if self._replace and now - self._since_ns > REAP_NS:
            pid = next((worker.pid for worker in (*self._zombies, *self._spare.zombies)), 0)
            if pid:
                self._replace = False
                self._give_up(f"the killed worker {pid} does not end: is the driver stuck?")

    def _give_up(self, reason: str) -> None:
        """Give up: nothing more will come by itself."""
        if self._first.done():
            self._tell(WorkerGaveUp(reason))
        else:
            self._first.set_exception(PolicyRefused(reason))

    def _end(self) -> None:
        self._spare.terminate()  # killed now, it is gone by the time that the worker is
        for worker in (self._worker, *self._zombies, *self._spare.zombies):
            if worker is not None and not worker.close(self._stop_timeout_s):
                _log.warning(NOT_GONE, worker.pid, self._stop_timeout_s)
        self._worker = None
        if not self._first.done():
            self._first.set_exception(PolicyRefused("closed while the policy was loading"))

    def _tell(self, event: Event) -> None:
        self._call(self._on_event, event)

    def _call(self, callback: Callable[..., None], value: WorkerResult | Event) -> None:
        try:
            callback(value)
        except Exception:
            _log.exception("a callback of the executor failed")


def _no_room(serving: PolicyLoaded) -> str:
    return memory.refusal(serving.pid)
