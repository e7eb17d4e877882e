"""Fast paths are tried once, before anything depends on them; what fails is said in one line.

That a library can be imported does not say that it runs: Triton wants a C compiler, FlashAttention
a generation of GPU. Found out in the first pass of a robot, or inside a graph, it is too late.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
_log = logging.getLogger("vla_ros.engine")


def first_that_runs(
    what: str, ways: Mapping[str, Callable[[], T]], otherwise: str
) -> tuple[str, T | None]:
    """The name of the first way that can be made, and what it made; ``otherwise`` and None.

    A way raises where it does not run here, or does not give what its reference gives.
    """
    failed = []
    for name, make in ways.items():
        try:
            made = make()
        except Exception as error:  # whatever a library raises: the next one is tried
            failed.append(f"{name} fails ({reason(error)})")
            continue
        if failed:
            say(f"{what}: {', '.join(failed)}: {name} runs instead")
        return name, made
    if failed:
        say(f"{what}: {', '.join(failed)}: {otherwise} runs instead")
    return otherwise, None


def reason(error: BaseException) -> str:
    """An exception in one line of at most 160 characters."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__
    return text if len(text) <= 160 else f"{text[:157]}..."


@lru_cache(64)  # a target and its draft model would say it twice
def say(line: str) -> None:
    """One line to whoever runs this, once."""
    _log.warning(line)
