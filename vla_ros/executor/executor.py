"""The worker as the node sees it: frames in, results and events out, never a wait.

Threads: ``submit`` from any thread, never from a signal handler; ``on_result`` and
``on_event`` are called from one thread of the executor's own, never concurrently and never
after ``close`` has returned True. Hold no lock that these callbacks take while calling
``start`` or ``close``. ``close`` may be called from a signal handler.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout

from vla_ros.core import Instruction, Observation
from vla_ros.executor.mailbox import Doorbell, MailboxWriter
from vla_ros.executor.messages import Event, FrameRefused, Ready, Result, WorkerGone, WorkerLimits
from vla_ros.executor.supervisor import Supervisor
from vla_ros.executor.watchdog import Watchdog
from vla_ros.executor.wire import HEAD_ROOM, encode_request
from vla_ros.executor.worker import Loader
from vla_ros.policies.base import PolicyRefused, PolicySpec
from vla_ros.policies.load import load_policy
from vla_ros.timing import SECOND, Clock

_LOOK_S = 0.1  # between two looks at whether loading was cancelled


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
        on_result: Callable[[Result], None],
        on_event: Callable[[Event], None],
        loader: Loader = load_policy,
    ) -> None:
        self._clock = clock
        self._mailbox = MailboxWriter(HEAD_ROOM, limits.max_image_bytes)
        self._bell = Doorbell()
        self._watchdog = Watchdog()
        self._submitting = threading.Lock()
        self._closed = False
        self._supervisor = Supervisor(
            spec,
            loader,
            clock,
            limits,
            self._mailbox,
            self._bell,
            self._watchdog,
            on_result,
            on_event,
        )

    def start(self, timeout_s: float, cancelled: threading.Event | None = None) -> Ready:
        """Load and warm up; blocks until the worker is ready.

        Raises PolicyRefused with the reason in one line, also after ``timeout_s`` and within
        0.1 s of ``cancelled``; there is no worker then and the executor is closed.
        """
        self._supervisor.start()
        until = self._clock.steady_ns() + round(timeout_s * SECOND)
        try:
            while True:
                with contextlib.suppress(FutureTimeout):
                    return self._supervisor.first.result(min(_LOOK_S, timeout_s))
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
        if not self._supervisor.is_alive():
            raise WorkerGone("the worker's supervisor has ended: clean up and configure again")
        self._supervisor.orders.restart()

    def halt(self) -> None:
        """Kill the worker and start no other before ``restart``; no event follows. Returns at
        once. Results that were on their way may still come."""
        self._supervisor.orders.halt()

    def set_hang_timeout(self, seconds: float) -> None:
        """A request unanswered for longer than this means that the worker hangs."""
        if seconds <= 0:
            raise ValueError(f"the hang timeout is {seconds}: give more than 0")
        self._supervisor.hang_timeout_s = seconds

    def close(self, timeout_s: float = 0.8) -> bool:
        """End the worker, by force if need be. True when it and the thread are gone in time."""
        supervisor = self._supervisor
        supervisor.orders.stop(timeout_s / 2)
        if supervisor.is_alive():
            if supervisor is threading.current_thread():
                return True
            supervisor.join(timeout_s)
            if supervisor.is_alive():
                supervisor.kill()
                return False
        # Who called may be part of a cycle that Python's collector finds much later: what the
        # kernel has only so much of is given back now.
        with self._submitting:
            self._closed = True
            self._mailbox.close()
        self._bell.close()
        supervisor.orders.close()
        return True
