"""SIGINT and SIGTERM as one event that a loop looks at."""

from __future__ import annotations

import signal
import threading


def set_on_signal(stop: threading.Event) -> None:
    """From now on SIGINT and SIGTERM set ``stop`` and do nothing else. In the main thread.

    A second signal may come while the handler of the first is within ``Event.set``, whose lock is
    held then: set from there it would wait for itself for ever, and the process would end by
    SIGKILL alone. So only the first one sets it.
    """
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        if not asked:
            asked = True
            stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
