"""Waiting for something to become true, instead of sleeping and hoping."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

Value = TypeVar("Value")

#: How many times longer than it says a wait lasts before it fails. In pytest conftest.py gives more
#: to a machine that does other work: a wait says when to give up, and no limit that a test judges
#: (see support.timing).
patience = 1.0


def wait_until(
    predicate: Callable[[], Value],
    timeout: float = 5.0,
    what: str | Callable[[], str] = "",
    every: float = 0.01,
) -> Value:
    """The first true value of ``predicate``; fails the test after ``timeout`` x patience seconds.

    ``what`` says what was waited for; a function is asked only on failure.
    """
    limit = timeout * patience
    until = time.monotonic() + limit
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > until:
            text = what() if callable(what) else what
            raise AssertionError(f"not within {limit:g} s: {text or predicate}; last: {value!r}")
        time.sleep(every)


@contextlib.contextmanager
def repeating(call: Callable[[], None], every: float) -> Iterator[None]:
    """``call`` again and again from a thread, ``every`` so many seconds, while the block runs."""
    done = threading.Event()

    def work() -> None:
        while not done.wait(every):
            call()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
