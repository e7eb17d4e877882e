"""Progress on stderr: one line that is rewritten on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from vla_ros.console.streams import WIDTH, console_of

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

PLAIN_EVERY_S = 5.0
_REWRITE_EVERY_S = 0.1
_BAR = 16  # columns


@dataclass(frozen=True, slots=True)
class _State:
    """What is shown. ``total`` 0: nothing that could be counted. ``left_s`` None: unknown."""

    text: str = ""
    done: int = 0
    total: int = 0
    left_s: float | None = None

    @property
    def count(self) -> str:
        left = "" if self.left_s is None else f", {duration(self.left_s)} left"
        return f"{self.done}/{self.total}{left}"

    @property
    def plain(self) -> str:
        return (f"{self.count}  {self.text}" if self.total else self.text)[:WIDTH]


class Progress:
    """``say`` for events, ``update`` for what changes all the time. One thread.

    It draws in the caller's thread and only when called, so that what is being measured does
    not share its time with it. Leave it by :meth:`end` or a ``with``.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._console = console_of(self._stream)
        self._terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live: Live | None = None
        self._state = _State()
        self._shown = _State()
        self._kind = ""
        self._began: tuple[int, float] | None = None  # what was done at first, and when
        self._last_s = float("-inf")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def say(self, text: str) -> None:
        """One line that stays."""
        self._console.print(text, soft_wrap=True)

    def update(self, kind: str, text: str, done: int = 0, total: int = 0) -> None:
        """The current state. ``kind`` is the part whose change is worth a line of its own.

        With ``total`` there is a bar, and the time left by the pace since the first update of
        this kind: what an earlier sitting had ``done`` says nothing about this machine.
        """
        now = time.monotonic()
        if kind != self._kind:
            self._began = None
        self._state = _State(text, done, total, self._left_s(done, total, now))
        every = _REWRITE_EVERY_S if self._terminal else PLAIN_EVERY_S
        if kind != self._kind or 0 < total == done or now - self._last_s >= every:
            self._kind, self._last_s = kind, now
            self._show()

    def end(self) -> None:
        """Show the last state, and leave its line."""
        if self._state != self._shown:
            self._show()
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._state = self._shown = _State()
        self._kind, self._began, self._last_s = "", None, float("-inf")

    def _left_s(self, done: int, total: int, now: float) -> float | None:
        if self._began is None:
            self._began = done, now
        first, began = self._began
        return (now - began) / (done - first) * (total - done) if first < done < total else None

    def _show(self) -> None:
        if self._shown == self._state:
            return
        self._shown = self._state
        if not self._terminal:
            print(self._state.plain, file=self._stream, flush=True)
            return
        if self._live is None:
            from rich.live import Live

            # stdout is not redirected: it may be another file than this terminal.
            self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False)
            self._live.start()
        self._live.update(_line(self._state), refresh=True)


def _line(state: _State) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    text = Text(state.text, no_wrap=True, overflow="ellipsis")
    if not state.total:
        return text
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(no_wrap=True)
    line.add_column(no_wrap=True)
    line.add_column()
    line.add_row(ProgressBar(state.total, state.done, width=_BAR), state.count, text)
    return line


def duration(seconds: float) -> str:
    """``42 s``, ``12 min``, ``3 h 05 min``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
