"""Progress on stderr: one line that is rewritten on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

PLAIN_EVERY_S = 5.0


class Progress:
    """``say`` for events, ``update`` for what changes all the time. One thread."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._open = False  # a line without its end is on the screen
        self._kind = ""
        self._last_s = float("-inf")

    def say(self, text: str) -> None:
        """One line that stays."""
        self.end()
        print(text, file=self._stream, flush=True)

    def update(self, kind: str, text: str) -> None:
        """The current state. ``kind`` is the part whose change is worth a line of its own."""
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{text[:width]:<{width}}")
            self._stream.flush()
            self._open = True
        elif kind != self._kind or time.monotonic() - self._last_s >= PLAIN_EVERY_S:
            self._kind, self._last_s = kind, time.monotonic()
            print(text, file=self._stream, flush=True)

    def end(self) -> None:
        """Leave the line that is being rewritten."""
        if self._open:
            self._stream.write("\n")
            self._stream.flush()
            self._open = False
