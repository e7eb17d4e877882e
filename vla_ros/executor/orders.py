"""What other threads want of the supervisor: they leave a note and ring, and wait for nothing."""

from __future__ import annotations

from collections import deque

from vla_ros.executor.mailbox import Doorbell


class Orders:
    """Left by any thread, read by the supervisor's alone. The newest of ``restart`` and ``halt``
    counts; ``stop`` is final.

    ``stop_timeout_s``: how long the worker is waited for at the end.
    """

    def __init__(self) -> None:
        self._bell = Doorbell()
        self._again: deque[bool] = deque(maxlen=1)
        self.stopping = False
        self.stop_timeout_s = 0.5

    def stop(self, timeout_s: float) -> None:
        """End the worker and the supervisor's thread."""
        self.stop_timeout_s = timeout_s
        self.stopping = True
        self._bell.ring()

    def restart(self) -> None:
        """Replace the worker, whatever its state, and forget earlier losses."""
        self._again.append(True)
        self._bell.ring()

    def halt(self) -> None:
        """Kill the worker and start no other before ``restart``."""
        self._again.append(False)
        self._bell.ring()

    def take(self) -> bool | None:
        """The worker is to be killed now: whether another is to follow. None: nothing was asked."""
        try:
            return self._again.pop()
        except IndexError:
            return None

    def fileno(self) -> int:
        """Readable from an order to :meth:`heard`: to poll."""
        return self._bell.fileno()

    def heard(self) -> None:
        """Whatever is asked from now on rings anew."""
        self._bell.answer()

    def close(self) -> None:
        """Give the descriptor back. The supervisor's thread has ended."""
        self._bell.close()
