"""The thread that keeps a worker alive: reads its reports, watches it, replaces it, at once where
a spare one stands by.

One daemon thread does all of it and makes every callback. The other threads only leave
``orders`` and the watchdog's numbers.
"""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from vla_ros.executor import memory
from vla_ros.executor.dying import Dying
from vla_ros.executor.mailbox import Doorbell, MailboxWriter
from vla_ros.executor.messages import (
    Event,
    Ready,
    Result,
    WorkerGaveUp,
    WorkerLimits,
    WorkerLost,
    WorkerReady,
    WorkerSwitched,
)
from vla_ros.executor.orders import Orders
from vla_ros.executor.process import WorkerProcess
from vla_ros.executor.spare import Spare
from vla_ros.executor.watchdog import RespawnBudget, Watchdog
from vla_ros.executor.wire import LoadRefused, WorkerFailed, WorkerReport
from vla_ros.executor.worker import Loader
from vla_ros.policies.base import PolicyRefused, PolicySpec
from vla_ros.timing import MS, SECOND, Clock

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


class Supervisor(threading.Thread):
    """See the module. ``first`` is resolved when the first worker is ready or refused; ``orders``
    are taken from other threads."""

    def __init__(
        self,
        spec: PolicySpec,
        loader: Loader,
        clock: Clock,
        limits: WorkerLimits,
        mailbox: MailboxWriter,
        bell: Doorbell,
        watchdog: Watchdog,
        on_result: Callable[[Result], None],
        on_event: Callable[[Event], None],
    ) -> None:
        super().__init__(name="vla_ros_worker", daemon=True)
        self._spec, self._loader, self._clock, self._limits = spec, loader, clock, limits
        self._mailbox, self._bell, self._watchdog = mailbox, bell, watchdog
        self._on_result, self._on_event = on_result, on_event
        self.hang_timeout_s = limits.hang_timeout_s
        self._load_timeout_ns = round(limits.load_timeout_s * SECOND)
        self.first: Future[Ready] = Future()
        self._budget = RespawnBudget(limits.max_respawns, limits.respawn_window_s)
        self.orders = Orders()
        self._worker: WorkerProcess | None = None
        self._serving: Ready | None = None  # what the worker said when it had loaded its policy
        self._after = 0  # requests up to this number were another worker's
        self._spare = Spare(self._start_spare, _no_room, limits, self._tell)
        self._dying = Dying(self._tell)
        self._replace = False  # start another once the dying ones are gone
        self._since_ns = 0  # when the worker was started, or killed
        self._last_words = ""

    def kill(self) -> None:
        """SIGKILL to whatever worker there is, from any thread. The last resort of a stop that does
        not end."""
        for worker in (self._worker, *self._dying, self._spare.process):
            if worker is not None:
                worker.kill()

    # The thread.

    def run(self) -> None:
        """Until it is ordered to stop."""
        try:
            if not self.orders.stopping:
                self._start_worker()
            last = self._clock.steady_ns()
            while not self.orders.stopping:
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
        waiting.register(self.orders.fileno(), select.POLLIN)
        for worker in (self._worker, self._spare.process):
            if worker is not None:
                waiting.register(worker.channel.fileno(), select.POLLIN)
        # Nothing says that a killed process is gone; who waits for that looks often.
        pause_s = 0.0 if self._dying and self._replace else min(TURN_S, self.hang_timeout_s / 4)
        waiting.poll(1000 * max(0.005, pause_s))
        self.orders.heard()

    def _turn(self, now: int) -> None:
        if (again := self.orders.take()) is not None:
            self._bury(now)
            self._spare.renew()
            self._replace = again
            if again:
                self._budget.clear()
        self._reap(now)
        if self._worker is not None:
            self._read(self._worker, now)
            self._watch(now)
        self._spare.turn(now, None if self._dying else self._serving)
        if self._replace and self._worker is None and not self._dying and self._spare.gone():
            self._replace = False
            self._start_worker()

    def _read(self, worker: WorkerProcess, now: int) -> None:
        try:
            reports = worker.read(now)
        except ValueError as error:
            self._lost(f"the worker sent something unreadable: {error}", now)
            return
        if reports is None:
            self._lost(self._last_words, now)
            return
        for report in reports:
            self._take(report, now)

    def _take(self, report: WorkerReport, now: int) -> None:
        match report:
            case Result() if report.sequence > self._after:
                self._watchdog.answered(report.sequence, now)
                self._call(self._on_result, report)
            case Ready():
                self._serving = report
                self._watchdog.excuse(now)
                if self.first.done():
                    self._tell(WorkerReady(report, (now - self._since_ns) / SECOND))
                else:
                    self.first.set_result(report)
            case LoadRefused():  # trying again would end the same way
                self._bury(now)
                self._give_up(report.reason)
            case WorkerFailed():
                self._last_words = report.reason

    def _watch(self, now: int) -> None:
        if self._worker is None:
            return
        loading = self._serving is None
        waiting_s = 0.0 if loading else self._watchdog.waiting_ns(now) / SECOND
        if (loading or waiting_s > CRASHED_S) and (how := self._worker.crashed()):
            self._lost(f"the worker {how}; its core file was not waited for", now)
        elif waiting_s > self.hang_timeout_s:
            self._lost(f"the worker has not answered for {waiting_s:.2f} s", now)
        elif loading and self.first.done() and now > self._since_ns + self._load_timeout_ns:
            self._lost(f"the worker was not ready in {self._limits.load_timeout_s:g} s", now)

    # The life of a worker.

    def _start_worker(self) -> None:
        self._since_ns = self._clock.steady_ns()
        self._last_words = ""
        self._serving = None
        try:
            self._worker = self._new_worker(self._void_requests(self._since_ns))
        except PolicyRefused as error:
            self._give_up(str(error))
        except Exception as error:
            self._give_up(f"the worker cannot be started: {error}")

    def _start_spare(self, serving: Ready) -> WorkerProcess:
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
        within = self.first.done() and self._budget.take(now)
        taken = self._spare.take(self._void_requests(now)) if within else None
        if self._worker is not None:
            reason = reason or self._worker.obituary(NEWS_SWITCHED_S if taken else NEWS_S)
            explained = bool(self._last_words or self._worker.how())
            self._bury(now, explained)
        if not self.first.done():
            self._give_up(f"the worker was lost while loading: {reason}")
        elif taken is not None:
            self._worker, self._serving = taken
            self._last_words = ""
            self._tell(WorkerSwitched(reason, taken[1]))
        elif within:
            self._tell(WorkerLost(reason))
            self._replace = True
        else:
            self._tell(WorkerLost(reason))
            self._spare.bury()
            count, window_s = self._limits.max_respawns, self._limits.respawn_window_s
            self._give_up(
                f"the worker was lost again after {count} replacements in {window_s:g} s: {reason}"
            )

    def _bury(self, now: int, explained: bool = True) -> None:
        """Kill the worker; it is dying from now on."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.channel.close()
            self._dying.add(self._worker, explained)
            self._worker = None
            self._since_ns = now
            self._serving = None

    def _reap(self, now: int) -> None:
        self._dying.reap()
        if self._replace and now - self._since_ns > REAP_NS:
            pid = next((worker.pid for worker in (*self._dying, *self._spare.dying)), 0)
            if pid:
                self._replace = False
                self._give_up(f"the killed worker {pid} does not end: is the driver stuck?")

    def _give_up(self, reason: str) -> None:
        """Nothing more will come by itself."""
        if self.first.done():
            self._tell(WorkerGaveUp(reason))
        else:
            self.first.set_exception(PolicyRefused(reason))

    def _end(self) -> None:
        self._spare.bury()  # killed now, it is gone by the time that the worker is
        for worker in (self._worker, *self._dying, *self._spare.dying):
            if worker is not None and not worker.close(self.orders.stop_timeout_s):
                _log.warning(NOT_GONE, worker.pid, self.orders.stop_timeout_s)
        self._worker = None
        if not self.first.done():
            self.first.set_exception(PolicyRefused("closed while the policy was loading"))

    def _tell(self, event: Event) -> None:
        self._call(self._on_event, event)

    def _call(self, callback: Callable[..., None], value: Result | Event) -> None:
        try:
            callback(value)
        except Exception:
            _log.exception("a callback of the executor failed")


def _no_room(serving: Ready) -> str:
    return memory.refusal(serving.pid)
