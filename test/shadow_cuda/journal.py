"""What a program did to the shadow GPU: counts by kind and place, and what was wrong."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

#: Kinds after which the host has waited for the device, or the device for the host's memory.
WAITS = (
    "item", "blocking download", "pageable download", "blocking upload", "pageable upload",
    "synchronize", "event wait", "boolean index", "nonzero", "host index", "malloc", "host malloc",
)  # fmt: skip
_OTHERS = ("/shadow_cuda/", "/torch/", "/contextlib.py")


class CudaError(RuntimeError):
    """What CUDA, or torch with it, would not do."""


class Journal:
    """Counts of (kind, place), the place a line of the program that asked; ``errors`` as lines.

    ``strict``: those kinds raise meanwhile, as ``torch.cuda.set_sync_debug_mode("error")`` does.
    """

    def __init__(self) -> None:
        self.places: Counter[tuple[str, str]] = Counter()
        self.errors: list[str] = []
        self.strict: frozenset[str] = frozenset()

    @property
    def counts(self) -> Counter[str]:
        """How often each kind."""
        found: Counter[str] = Counter()
        for (kind, _), count in self.places.items():
            found[kind] += count
        return found

    @property
    def waits(self) -> dict[str, int]:
        """How often the kinds of :data:`WAITS`."""
        return {kind: count for kind, count in self.counts.items() if kind in WAITS}

    def note(self, kind: str) -> None:
        """Count one."""
        self.places[kind, place()] += 1
        if kind in self.strict:
            self.fail(f"{kind} where nobody may wait")

    def fail(self, what: str) -> None:
        """Raise CudaError, and remember it: the program may catch it."""
        line = f"{what}, at {place()}"
        self.errors.append(line)
        raise CudaError(line)

    @contextmanager
    def watched(self) -> Iterator[Journal]:
        """A journal of what is noted meanwhile alone."""
        before, found = self.places.copy(), Journal()
        yield found
        found.places = self.places - before

    def __str__(self) -> str:
        lines = [f"{n:6d} {kind:20s} {at}" for (kind, at), n in sorted(self.places.items())]
        return "\n".join((*lines, *self.errors))


def place() -> str:
    """The innermost line of the program, not of torch or of the shadow."""
    frame = sys._getframe(1)
    outside = "?"
    while frame is not None:
        name = frame.f_code.co_filename
        if "/vla_ros" in name and "site-packages" not in name:
            return f"{name.rpartition('/vla_ros')[2].lstrip('/')}:{frame.f_lineno}"
        if outside == "?" and name[0] != "<" and not any(part in name for part in _OTHERS):
            outside = f"{name.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return outside
