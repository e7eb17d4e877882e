"""Output of a verb: consoles, error lines, tables and progress for people, all of it rich; and the
line of JSON for programs.

On a terminal there is color (none with NO_COLOR) and a line that is rewritten; everywhere else
plain text without any escape code, 80 columns wide, so that it can be kept and searched. What is
shown passes :mod:`vla_ros.core.text` here, so that escape codes are this program's own.
rich is imported only when something is shown: `vla-ros --help` needs neither it nor its time.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO, cast

from vla_ros.core.text import log_text, printable, printable_lines

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.live import Live
    from rich.segment import Segment
    from rich.table import Table as Lines


#: called with what is done, how much of it, and of how much (0: not counted)
Report = Callable[[str, int, int], None]

# Consoles for stdout and stderr, and error lines.


WIDTH = 80  # of everything that does not go to a terminal
_LONGEST = 2000  # characters of a line of an error or a log


class _PlainText:
    """A text stream in which nothing is left that a terminal would obey: no control characters but
    line ends and tabs."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(printable_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class LogFormatter(logging.Formatter):
    """Format of a log: no text in it looks like a record of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = log_text(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return printable_lines(super().formatException(ei))


def show_traceback(error: BaseException) -> None:
    """Print an error of the program on stderr, with where it happened."""
    sys.stderr.write(printable_lines("".join(traceback.format_exception(error))))


def _uncaught(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
    show_traceback(error)


def plain_errors() -> None:
    """Make Python's logs that nobody set up, and the traceback that ends a program, fit to be
    shown."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LogFormatter())
    sys.excepthook = _uncaught


@contextlib.contextmanager
def plain_output() -> Iterator[None]:
    """A program's output: print, logs and tracebacks, made fit to be shown, whoever wrote the text.

    stderr is not wrapped: progress of other libraries is drawn there. This program writes to it by
    :func:`error`, :func:`log_line` and :class:`Progress`.
    """
    plain_errors()
    stdout, plain = sys.stdout, cast(TextIO, _PlainText(sys.stdout))
    sys.stdout = plain
    try:
        yield
    finally:
        if sys.stdout is plain:
            sys.stdout = stdout


def console_of(stream: TextIO, width: int = WIDTH) -> Console:
    """A console that writes to ``stream``, and never an escape code where it is no terminal.

    Text is shown as it is: neither markup nor highlighting nor emoji. ``width`` counts where it
    is no terminal.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Plain(Console):
        """Console whose escape codes are rich's own."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for part in super().render(renderable, options):
                text = part.text if part.control else printable_lines(part.text)
                yield Segment(text, part.style, part.control)

        def on_broken_pipe(self) -> None:  # rich's ends the process
            raise BrokenPipeError

    if isinstance(stream, _PlainText):
        stream = stream.stream
    terminal = stream.isatty()
    return Plain(
        file=stream,
        force_terminal=terminal,
        width=None if terminal else width,
        markup=False,
        highlight=False,
        emoji=False,
    )


def show(*what: RenderableType) -> None:
    """Print renderables one below the other on stdout."""
    console = console_of(sys.stdout)
    for one in what:
        console.print(one)
    sys.stdout.flush()


def text_of(*what: RenderableType, width: int = WIDTH) -> str:
    """Renderables as plain text, for a file."""
    file = io.StringIO()
    console = console_of(file, width)
    for one in what:
        console.print(one)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def error(who: str, message: object) -> None:
    """``who: message`` on stderr: one line, whatever the message has in it."""
    text = printable(" ".join(str(message).split()), _LONGEST)
    try:
        from rich.text import Text

        line = Text.assemble((f"{who}:", "bold red"), " ", text)
        console_of(sys.stderr).print(line, soft_wrap=True)
    except ImportError:  # without its dependencies it must report that too
        print(f"{who}: {text}", file=sys.stderr, flush=True)


def log_line(text: str) -> None:
    """One line on stderr, written whole: several threads write there. Where nobody reads it any
    more it is no error."""
    with contextlib.suppress(OSError):
        sys.stderr.write(printable(text, _LONGEST) + "\n")
        sys.stderr.flush()


# Tables as every verb shows them: no lines, names on the left, figures on the right.


class Table:
    """Table of ``rows`` of cells under ``heads``; the first column has the names.

    Where there is no room, the columns called ``spare`` are left out, first the first; then
    names are cut in two. A figure never is. Columns called ``left`` have text too.
    """

    def __init__(
        self,
        heads: Sequence[str],
        rows: Iterable[Sequence[str]],
        spare: Sequence[str] = (),
        left: Sequence[str] = (),
    ) -> None:
        self._heads, self._rows, self._spare = list(heads), [list(row) for row in rows], spare
        self._left = left

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.measure import Measurement

        unbound = options.update(width=10_000)
        left_out: set[str] = set()
        lines = self._lines(left_out)
        for head in self._spare:
            if Measurement.get(console, unbound, lines).maximum <= options.max_width:
                break
            left_out.add(head)
            lines = self._lines(left_out)
        yield lines

    def _lines(self, left_out: set[str]) -> Lines:
        from rich.table import Table as Lines
        from rich.text import Text

        columns = [i for i, head in enumerate(self._heads) if head not in left_out]
        lines = Lines(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        lines.add_column(self._heads[0], overflow="fold", vertical="bottom")
        for i in columns[1:]:
            head = self._heads[i]
            lines.add_column(head, justify="left" if head in self._left else "right", no_wrap=True)
        for row in self._rows:
            lines.add_row(*(Text(printable(row[i])) for i in columns))
        return lines


# Progress on stderr: one line that is rewritten on a terminal, a few plain lines elsewhere.


PLAIN_EVERY_S = 5.0
_REWRITE_EVERY_S = 0.1
_BAR = 16  # columns


@dataclass(frozen=True, slots=True)
class _State:
    """State of a progress line. ``total`` 0: nothing that could be counted. ``left_s`` None:
    unknown."""

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
    """Progress line: ``say`` for events, ``update`` for what changes all the time. One thread.

    It draws in the caller's thread and only when called, so that what is being measured does
    not share its time with it. Leave it by :meth:`end` or a ``with``. Once its stream is gone (a
    terminal that was closed, a pipe that nobody reads) it shows nothing: what is done goes on.
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
        self._gone = False  # the stream is

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def say(self, text: str) -> None:
        """One line that stays."""
        with self._heedless():
            self._console.print(printable(text, _LONGEST), soft_wrap=True)

    def update(self, kind: str, text: str, done: int = 0, total: int = 0) -> None:
        """The current state. ``kind`` is the part whose change is worth a line of its own.

        With ``total`` there is a bar, and the time left by the pace since the first update of
        this kind: what an earlier sitting had ``done`` says nothing about this machine, nor does
        what was counted before a count that begins anew.
        """
        now = time.monotonic()
        if kind != self._kind or done < self._state.done:
            self._began = None
        self._state = _State(printable(text), done, total, self._left_s(done, total, now))
        every = _REWRITE_EVERY_S if self._terminal else PLAIN_EVERY_S
        if kind != self._kind or 0 < total == done or now - self._last_s >= every:
            self._kind, self._last_s = kind, now
            self._show()

    def end(self) -> None:
        """Show the last state, and leave its line."""
        if self._state != self._shown:
            self._show()
        if self._live is not None:
            with self._heedless():
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
        with self._heedless():
            self._draw()

    @contextlib.contextmanager
    def _heedless(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._gone = self._console.quiet = True

    def _draw(self) -> None:
        if self._gone:
            return
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
    """Duration as text: ``42 s``, ``12 min``, ``3 h 05 min``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


# The last line of a verb with --json.


def rounded(value: Any) -> Any:
    """Floats to six significant digits, at any depth; null for what is no number."""
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(v) for v in value]
    return value


def print_json(content: Mapping[str, Any]) -> None:
    """One line on stdout, the last of a verb with --json."""
    print(json.dumps(content), flush=True)


def json_text(content: Any, width: int = 100, indent: int = 0) -> str:
    """JSON for a file that is read and compared by people too: what fits into ``width`` columns is
    one line, the rest a line an entry."""
    line = json.dumps(content)
    if len(line) + indent <= width or not content or not isinstance(content, dict | list):
        return line
    inner, pad = indent + 1, " " * (indent + 1)
    if isinstance(content, dict):
        entries = [
            f"{pad}{json.dumps(str(key))}: {json_text(value, width, inner)}"
            for key, value in content.items()
        ]
        opened, closed = "{", "}"
    else:
        entries = [pad + json_text(value, width, inner) for value in content]
        opened, closed = "[", "]"
    return opened + "\n" + ",\n".join(entries) + "\n" + " " * indent + closed
