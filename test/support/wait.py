"""Waiting for something to become true, instead of sleeping and hoping."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

Value = TypeVar("Value")


def wait_until(
    predicate: Callable[[], Value],
    timeout: float = 5.0,
    what: str | Callable[[], str] = "",
    every: float = 0.01,
) -> Value:
    """The first true value of ``predicate``; fails the test after ``timeout`` seconds.

    ``what`` says what was waited for; a function is asked only on failure.
    """
    until = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > until:
            text = what() if callable(what) else what
            raise AssertionError(f"not within {timeout:g} s: {text or predicate}; last: {value!r}")
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
