"""End of a process, by force where it hangs.

Fast DDS 3.2.3 can deadlock while it deletes an endpoint: the deleting thread waits for the event
thread, which waits for a mutex of discovery at its next announcement (seen once in 440 nodes
that ended at once, on a busy machine). The deadlocked call holds Python's lock, so no Python
thread can help. Another of the 440 hung while *creating* an endpoint: whoever starts a node gives
each step a time, see :func:`step`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

FORCED = 3  # exit status of a process that did not come to its own end
STUCK = 4  # of a verb, a step of whose graph's start or end did not end in time
STEP_S = 30.0  # for a step that is mere calls of the middleware

_SIGEV_THREAD = 2  # <signal.h>: call a function in a thread of its own
_CLOCK_MONOTONIC = 1
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
#: Variable with the number of the process that starts a node, for :func:`end_with_parent`.
PARENT = "VLA_ROS_PARENT"
_PRINT_S = 0.2  # for the line to get out
_ENDING_S = 6  # a node's own time to end is 5 s


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


def end_with_parent() -> None:
    """Ask the kernel for SIGTERM when the process ends that started this one, where a starter left
    its number in the environment; end at once where that one has ended. Children of this process
    inherit none of it. A debugger may stand between the two."""
    parent = os.environ.pop(PARENT, "")
    if not parent:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))
    if os.getppid() != int(parent) and not Path(f"/proc/{int(parent)}").exists():
        sys.exit(FORCED)  # it had ended before prctl


@contextlib.contextmanager
def bounded(
    seconds: float, status: int, what: str = "", children: Collection[int] = ()
) -> Iterator[None]:
    """Time limit of ``seconds`` for the body, ``what``; after it one line goes to stderr, the
    process ends with ``status``, and the process groups of its ``children`` get SIGTERM, then
    SIGKILL.

    Timers of the kernel do that in threads that know nothing of Python. At that point everything
    that matters must be done: no output is flushed.
    """
    line = f"did not end within {seconds:g} s: ended by force, exit status {status}"
    line = f"{what} {line}" if what else line
    text = ctypes.create_string_buffer(line.encode().replace(b"%", b""))  # it is a format
    groups = " ".join(f"-{pid}" for pid in children)
    ends = f"(kill -TERM -- {groups}; sleep {_ENDING_S}; kill -KILL -- {groups}) >&- 2>&- &"
    command = ctypes.create_string_buffer(ends.encode())
    libc = ctypes.CDLL(None)
    timers = [
        _timer(libc, seconds, libc.warnx, ctypes.addressof(text)),
        _timer(libc, seconds + 2 * _PRINT_S, libc._exit, status),
    ]
    if groups:
        timers.append(_timer(libc, seconds + _PRINT_S / 2, libc.system, ctypes.addressof(command)))
    try:
        yield
    finally:
        for timer in filter(None, timers):
            libc.timer_delete(timer)


def step(
    what: str, seconds: float = STEP_S, children: Collection[int] = ()
) -> contextlib.AbstractContextManager[None]:
    """A step of a graph's start or end, which has so long or the verb ends: see :func:`bounded`."""
    return bounded(seconds, STUCK, what, children)


def _timer(
    libc: ctypes.CDLL, seconds: float, function: Any, argument: int
) -> ctypes.c_void_p | None:
    """Call a function of libc once, in a thread of its own; None where there are no timers."""
    called = ctypes.cast(function, ctypes.c_void_p)
    event = _SignalEvent(value=argument, notify=_SIGEV_THREAD, function=called)
    timer = ctypes.c_void_p()
    whole = int(seconds)
    spec = _TimerSpec(in_s=whole, in_ns=int((seconds - whole) * 1e9))
    if libc.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        return None
    libc.timer_settime(timer, 0, ctypes.byref(spec), None)
    return timer
