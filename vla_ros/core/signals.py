"""What asks a process to end, as one event that a loop looks at: Ctrl-C, SIGTERM, a terminal that
is closed or a link that is lost (SIGHUP, unless `nohup` has it ignored)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def set_on_signal(stop: threading.Event) -> None:
    """From now on :data:`ENDS` set ``stop`` and do nothing else. In the main thread.

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
            drop_lost_output()
            stop.set()

    for number in ENDS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
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
    """From now on none of them ends this process, which ends by itself. In the main thread."""
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)


def drop_lost_output() -> None:
    """stdout and stderr go nowhere where a terminal was closed or nobody reads the pipe: a line for
    them would else be an error in the middle of an end."""
    for stream in (1, 2):
        looked = select.poll()
        looked.register(stream, 0)
        if any(events & (select.POLLERR | select.POLLHUP) for _, events in looked.poll(0)):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream)
            os.close(nowhere)
