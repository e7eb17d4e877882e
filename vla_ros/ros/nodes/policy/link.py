"""Link between the control loop and its surroundings: frames to the worker, its answers to the
loop, commands to the topics, changes to the log.

Threads: the methods of the sink are called with the loop's lock held, by whoever called the
loop; :meth:`LoopLink.on_result` and :meth:`LoopLink.on_event` by the worker's reader,
without it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from vla_ros.core.clock import Clock
from vla_ros.core.types import Command, CommandKind, Instruction, Observation, PolicyState
from vla_ros.ros.nodes.policy.shadow import Shadow
from vla_ros.ros.nodes.policy.topics import (
    DraftShares,
    LatencyWindows,
    PolicyTopics,
    chunk_message,
)
from vla_ros.runtime.control.control import Control
from vla_ros.runtime.control.drivers import Ticker
from vla_ros.runtime.control.queue import PolicyAnswer
from vla_ros.runtime.safety import Safety
from vla_ros.runtime.worker.executor import Executor
from vla_ros.runtime.worker.wire import (
    ErrorKind,
    Event,
    FrameRefused,
    PolicyLoaded,
    SpareLost,
    SpareReady,
    WorkerDied,
    WorkerGaveUp,
    WorkerLost,
    WorkerReady,
    WorkerResult,
    WorkerSwitched,
)

_FIGURES = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?")
AGAIN_S = 60.0  # a reason that holds is logged again after this, doubled each time
OVER_S = 10.0  # after so long without it, a reason is a new one


class Throttle:
    """Log throttle: of a kind one warning a second, and one that differs from the last by its
    figures alone after a minute, then two, then four, while it goes on. A line has the count of
    those held back before it. ``now``: a steady clock, s."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._kinds: dict[str, _Repeated] = {}

    def text(self, kind: str, text: str) -> str | None:
        """The line to log now, or None."""
        now, reason = self._now(), _FIGURES.sub("", text)
        last = self._kinds.get(kind)
        if last is None or now - last.seen > OVER_S:
            self._kinds[kind] = _Repeated(reason, now, now)
            return text
        last.seen = now
        same = last.reason == reason
        if now - last.logged < (last.patience if same else 1.0):
            last.held += 1
            return None
        held = last.held if same else 0
        patience = 2 * last.patience if same else AGAIN_S
        self._kinds[kind] = _Repeated(reason, now, now, patience)
        return f"{text} (and {held} more like it)" if held else text


@dataclass(slots=True)
class _Repeated:
    """The last warning of a kind, with steady times in s."""

    reason: str  # without its figures
    logged: float
    seen: float
    patience: float = AGAIN_S
    held: int = 0


class Asker(Protocol):
    """Somebody beside the loop who asks the same worker, while the loop does not."""

    def result(self, result: WorkerResult) -> bool:
        """Take a result of its own; False: it is the loop's."""

    def lost(self, reason: str) -> None:
        """Expect no result: the worker is gone."""


class LoopLink:
    """The control loop's sink and the executor's listener. Of use after :meth:`attach`.

    ``ready`` is the newest report of a worker that has loaded, ``worker_pid`` 0 where there is
    none; ``deserted``: none will come by itself. ``spare`` is the state of a spare worker in words,
    "" where none is wanted. ``ticker`` gets the times of answers while there is one.
    ``asker``: whose results are its own. ``report_status`` is called when the status is another
    one. ``shadow`` compares commands that nothing executes with a person's.
    """

    executor: Executor
    ready: PolicyLoaded

    def __init__(
        self,
        log: Any,
        clock: Clock,
        topics: PolicyTopics,
        windows: LatencyWindows,
        report_status: Callable[[], None],
        renewed: Callable[[PolicyLoaded], None],
    ) -> None:
        self._log = log
        self._clock = clock
        self._topics = topics
        self._windows = windows
        self._report_status = report_status
        self._renewed = renewed  # raises ValueError for a worker that cannot meet the limits
        self._throttle = Throttle()
        self._control: Control | None = None
        self.drafts = DraftShares()
        self._captures = 0  # of this worker
        self.graphs_captured = 0  # of all
        self.ticker: Ticker | None = None
        self.asker: Asker | None = None
        self.worker_pid = 0
        self.worker_restarts = 0
        self.deserted = False
        self.spare = ""
        self.shadow: Shadow | None = None

    def attach(self, executor: Executor, ready: PolicyLoaded, control: Control) -> None:
        """Let frames, answers and commands flow from now on."""
        self.executor, self.ready, self.worker_pid = executor, ready, ready.pid
        self._control = control

    # Sink of the loop

    def submit(self, observation: Observation, instruction: Instruction) -> None:
        try:
            self.executor.submit(observation, instruction)
        except FrameRefused as error:
            assert self._control is not None
            self._control.drop(str(error))

    def publish(self, command: Command) -> None:
        self._topics.command(command, self.ready.info)
        if command.kind is CommandKind.POLICY:
            self._windows.command(command, self._clock.steady_ns())
        if self.shadow is not None:
            self.shadow.command(command)

    def rest(self, command: Command) -> None:
        self._topics.rest(command)

    def changed(self, before: Safety, after: Safety) -> None:
        if after.state is PolicyState.FAULT and before.state is not after.state:
            self.executor.halt()  # until recover: what is broken must not go on computing
            self.worker_pid = 0
            self.deserted = True
            self.spare = self.spare and "none: FAULT"
        if before.state != after.state:
            line = f"{before.state.name} -> {after.state.name}: {after.said}"
            # rclpy allows one severity a line of source, and raises for a second one.
            if after.state in (PolicyState.HOLD, PolicyState.FAULT):
                self._log.error(line)
            else:
                self._log.info(line)
        self._report_status()

    def warn(self, kind: str, text: str) -> None:
        if line := self._throttle.text(kind, text):
            self._log.warning(line)

    # The worker

    def on_result(self, result: WorkerResult) -> None:
        control = self._control
        if control is None or (self.asker is not None and self.asker.result(result)):
            return
        if result.error is ErrorKind.INVALID:
            control.invalid(result.epoch, result.error_text)
        elif result.error is ErrorKind.LINK:
            control.unanswered(result.epoch, result.error_text)
        elif result.error is ErrorKind.MEMORY:
            control.fault(f"out of memory: {result.error_text}")
        elif result.error is ErrorKind.FAILED:
            self._log.error(f"the policy failed: {result.error_text}")
        elif result.inference is None:
            control.result(result.epoch, None)
        else:
            answer = PolicyAnswer(result.inference, result.received_ns, result.received_steady_ns)
            self._count_captures(result.inference.captures)
            with control.lock:
                self.drafts.add(answer)
                control.result(result.epoch, answer)
            if (ticker := self.ticker) is not None:
                ticker.arrived(self._clock.steady_ns())
            chunk = chunk_message(answer, result, self.ready.info, control.loop.limits)
            self._topics.chunk(chunk, self._clock.now_ns())

    def _count_captures(self, count: int) -> None:
        """Warn of graphs captured in service: each held the robot up for a second."""
        if count > self._captures:
            self.graphs_captured += count - self._captures
            self._log.warning(
                f"{count} CUDA graphs were captured in service, each while the robot waited: a"
                " shape came that nobody prepared for; cuda_graphs: false avoids it"
            )
        self._captures = count  # of a new worker 0 again

    def need_worker(self) -> None:
        """Start another worker where none would come by itself. With the loop's lock held.

        Raises WorkerGone where that is not possible.
        """
        if self.deserted:
            self.executor.restart()
            self.deserted = False
            assert self._control is not None
            self._control.worker_lost("waits for a new worker to load")

    def on_event(self, event: Event) -> None:
        """Take note of a worker, or its spare, that came or went."""
        if isinstance(event, SpareReady | SpareLost):
            self._log_spare(event)
            return
        if isinstance(event, WorkerDied):
            self._log.error(f"the lost worker, pid {event.pid}, {event.how}")
            return
        control = self._control
        if control is None:
            return
        self.spare = self.spare and "waits for the worker"
        if self.asker is not None and not isinstance(event, WorkerReady):
            self.asker.lost(f"the worker was lost: {event.reason}")
        match event:
            case WorkerLost():
                self.worker_restarts += 1
                self.worker_pid = 0
                control.worker_lost(event.reason)
                self._log.error(f"worker lost: {event.reason}")
            case WorkerSwitched():
                self.worker_restarts += 1
                self.ready, self.worker_pid = event.ready, event.ready.pid
                self.spare = "loading"
                control.worker_switched(event.reason)
                self._log.error(
                    f"worker lost: {event.reason}; the spare took over, pid {event.ready.pid}"
                )
            case WorkerGaveUp():
                self.worker_pid, self.deserted = 0, True
                self._log.error(f"there is no worker: {event.reason}")
                control.fault(event.reason)
            case WorkerReady():
                self.spare = self.spare and "loading"
                self.ready, self.worker_pid = event.ready, event.ready.pid
                self._log.info(
                    f"worker is back, pid {event.ready.pid}, loaded in {event.load_s:.2f} s,"
                    f" inference p99 {event.ready.inference_p99_ms:.1f} ms"
                )
                try:
                    self._renewed(event.ready)
                except ValueError as error:
                    control.fault(f"the new worker is too slow: {error}")
                else:
                    control.worker_ready()
        self._report_status()

    def _log_spare(self, event: SpareReady | SpareLost) -> None:
        if isinstance(event, SpareReady):
            self.spare = f"pid {event.pid}"
            self._log.info(
                f"a spare worker stands by, pid {event.pid}, loaded in {event.load_s:.2f} s"
            )
        elif event.final:
            self.spare = f"none: {event.reason}"
            self._log.warning(f"no spare worker, the service goes on without: {event.reason}")
        else:
            self.spare = "loading"
            self._log.info(f"the spare worker was lost, another one is loaded: {event.reason}")
