"""A process that is to end does end.

Fast DDS 3.2.3 can deadlock while it deletes an endpoint: the deleting thread waits for the event
thread, which waits for a mutex of discovery at its next announcement (seen once in 440 nodes
that ended at once, on a busy machine). The deadlocked call holds Python's lock, so no Python
thread can help. Another of the 440 hung while *creating* an endpoint; that is not covered here:
whoever starts a node must give it a time, as `vla-ros up` does.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

_SIGEV_THREAD = 2  # <signal.h>: call a function in a thread of its own
_CLOCK_MONOTONIC = 1


class _SignalEvent(ctypes.Structure):
    """``struct sigevent`` of Linux, 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_size_t),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("padding", ctypes.c_byte * 32),
    )


class _TimerSpec(ctypes.Structure):
    """``struct itimerspec``: interval and first expiry, seconds and nanoseconds."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "in_s", "in_ns"))


@contextlib.contextmanager
def bounded(seconds: float, status: int) -> Iterator[None]:
    """What runs inside has ``seconds``; after that the process ends with ``status``.

    A timer of the kernel calls ``_exit(status)`` in a thread that knows nothing of Python. At
    that point everything that matters must be done: no output is flushed.
    """
    libc = ctypes.CDLL(None)
    leave = ctypes.cast(libc._exit, ctypes.c_void_p)
    event = _SignalEvent(value=status, notify=_SIGEV_THREAD, function=leave)
    timer = ctypes.c_void_p()
    whole = int(seconds)
    spec = _TimerSpec(in_s=whole, in_ns=int((seconds - whole) * 1e9))
    armed = libc.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) == 0
    if armed:
        libc.timer_settime(timer, 0, ctypes.byref(spec), None)
    try:
        yield
    finally:
        if armed:
            libc.timer_delete(timer)
