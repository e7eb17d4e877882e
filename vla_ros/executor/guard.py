"""A worker ends with the process that started it, and what it started ends with it. Linux.

Native code may hold Python's lock for ever, so no thread of the worker can see to that. The
kernel does: it kills the worker with its parent's thread. What a policy started in turn, such as
compilers and loaders, is in the worker's process group; a small process of that group waits for
the parent's end, and kills the group.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def end_with_parent(parent: int, life_fd: int) -> None:
    """Call it first in a worker that leads its process group and has no thread yet.

    ``parent``: the process that started it. ``life_fd``: the end for reading of a pipe whose
    other end that process alone holds; it is closed here.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:  # it had ended before the line above
        os._exit(0)
    if os.fork() == 0:
        _kill_group_after(life_fd)
    os.close(life_fd)


def _kill_group_after(life_fd: int) -> None:
    """Holds nothing but the pipe: whoever waits for the worker's end of anything else sees it."""
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        os.closerange(3, life_fd)
        os.closerange(life_fd + 1, os.sysconf("SC_OPEN_MAX"))
        while os.read(life_fd, 1):
            pass
    finally:
        os.killpg(0, signal.SIGKILL)
