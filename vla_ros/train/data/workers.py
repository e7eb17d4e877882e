"""Processes for simulated episodes: they leave Ctrl-C to their parent and never outlive it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait


def pool(workers: int) -> ProcessPoolExecutor:
    """A pool of fresh interpreters: OpenGL and torch do not survive a fork.

    Ctrl-C reaches every process of a terminal; here it is the parent who decides what ends, so
    an episode that runs is finished. When the parent is killed its workers end at once.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, initializer=_begin)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
