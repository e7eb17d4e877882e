"""ROS domain ids that nobody else on this machine uses at the same time."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
from collections.abc import Iterator

from vla_ros.core.private import open_lock, temporary_folder
from vla_ros.ros.bringup.environment import _unused

# Above 101 the ports of a domain lie in Linux's range of ephemeral ports; 0 is the user's own.
FIRST, LAST = 1, 100
_next = itertools.count(os.getpid())


@contextlib.contextmanager
def leased_domain() -> Iterator[int]:
    """A domain id held by a file lock, so other workers and other test runs choose another; so do
    evaluations, whose locks these are, and a demo that runs already is in none of them. Each is
    another than the last: whoever was in that one may still be leaving."""
    folder = temporary_folder("vla_ros_domains")
    for _ in range(LAST):
        domain = FIRST + next(_next) % (LAST - FIRST + 1)
        with os.fdopen(open_lock(folder / str(domain)), "r+b") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            if _unused(domain):
                yield domain
                return
    raise RuntimeError(f"all ROS domains {FIRST}..{LAST} are taken; see {folder}")
