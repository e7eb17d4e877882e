"""SIGINT and SIGTERM as one event that a loop looks at."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

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
            ignore()
            stop.set()

    for number in ENDS:
        signal.signal(number, ask)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)  # see kept_back


@contextlib.contextmanager
def kept_back() -> Iterator[None]:
    """Start of a process that calls :func:`set_on_signal`: a signal that comes while it still
    imports waits until then, instead of a KeyboardInterrupt wherever it is."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore() -> None:
    """From now on neither ends this process, which ends by itself. In the main thread."""
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)
