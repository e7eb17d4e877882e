"""ROS domain ids that no other test on this machine uses at the same time."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Above 101 the ports of a domain lie in Linux's range of ephemeral ports; 0 is the user's own.
FIRST, LAST = 1, 101
_next = itertools.count(os.getpid())


@contextlib.contextmanager
def leased_domain() -> Iterator[int]:
    """A domain id held by a file lock, so other workers and other test runs choose another."""
    folder = Path(tempfile.gettempdir()) / "vla_ros_test_domains"
    folder.mkdir(exist_ok=True)
    for _ in range(LAST):
        domain = FIRST + next(_next) % (LAST - FIRST + 1)
        with open(folder / str(domain), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            yield domain
            return
    raise RuntimeError(f"all ROS domains {FIRST}..{LAST} are taken; see {folder}")
