"""Consoles for stdout and stderr, what is shown on them, and the line that says what is wrong."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDTH = 80  # of everything that does not go to a terminal


def console_of(stream: TextIO, width: int = WIDTH) -> Console:
    """A console that writes to ``stream``, and never an escape code where it is no terminal.

    Text is shown as it is: neither markup nor highlighting nor emoji. ``width`` counts where it
    is no terminal.
    """
    from rich.console import Console

    terminal = stream.isatty()
    return Console(
        file=stream,
        force_terminal=terminal,
        width=None if terminal else width,
        markup=False,
        highlight=False,
        emoji=False,
    )


def show(*what: RenderableType) -> None:
    """One below the other on stdout."""
    console = console_of(sys.stdout)
    for one in what:
        console.print(one)
    sys.stdout.flush()


def text_of(*what: RenderableType, width: int = WIDTH) -> str:
    """The same as plain text, for a file."""
    file = io.StringIO()
    console = console_of(file, width)
    for one in what:
        console.print(one)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def error(who: str, message: object) -> None:
    """``who: message`` on stderr: one line, whatever the message has in it."""
    text = " ".join(str(message).split())
    try:
        from rich.text import Text

        line = Text.assemble((f"{who}:", "bold red"), " ", text)
        console_of(sys.stderr).print(line, soft_wrap=True)
    except ImportError:  # a copy without its dependencies must be able to say so
        print(f"{who}: {text}", file=sys.stderr, flush=True)
