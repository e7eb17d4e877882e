"""SIGINT and SIGTERM as one event that a loop looks at."""

from __future__ import annotations

import signal
import threading

ENDS = (signal.SIGINT, signal.SIGTERM)


def set_on_signal(stop: threading.Event) -> None:
    """From now on SIGINT and SIGTERM set ``stop`` and do nothing else. In the main thread.

    A second signal may come while the handler of the first is within ``Event.set``, whose lock is
    held then: set from there it would wait for itself for ever, and the process would end by
    SIGKILL alone. So only the first one sets it. After it both are ignored: Python gives a signal
    that it handles back to the system while it ends, and a second Ctrl-C would end the process by
    signal then, however clean its end was.
    """
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        if not asked:
            asked = True
            for known in ENDS:
                signal.signal(known, signal.SIG_IGN)
            stop.set()

    for number in ENDS:
        signal.signal(number, ask)
