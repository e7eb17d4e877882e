"""Warnings that may come with every frame, at the pace of a reader."""

from __future__ import annotations

import time


class Throttle:
    """Lets a kind of warning through at most once a second, and counts what it held back."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._held: dict[str, int] = {}

    def text(self, kind: str, text: str) -> str | None:
        """The line to log now, or None."""
        now = time.monotonic()
        if now - self._last.get(kind, -1.0) < 1.0:
            self._held[kind] = self._held.get(kind, 0) + 1
            return None
        self._last[kind] = now
        held = self._held.pop(kind, 0)
        return f"{text} (and {held} more like it)" if held else text
