"""Text of strangers, made fit to be shown: nothing in it that a terminal or a reader would obey.

Control characters, escape sequences, marks that turn the direction of writing, separators of lines
and bytes that are no text are shown as ``\\x1b`` or ``\\u202e``; letters of all languages stay as
they are. It is done where text is shown or sent on (console, log, status, page), not where it
comes in: so no caller can forget it, and doing it twice changes nothing.
"""

from __future__ import annotations

import re

LONGEST = 500  # characters of a text that is shown in one line
_LONGEST_RECORD = 8000  # characters of a log's record

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_OTHERS = "\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff"
_OBEYED = re.compile(f"[\x00-\x1f{_OTHERS}{_BIDI}]")
_OBEYED_IN_LINES = re.compile(f"[\x00-\x08\x0b-\x1f{_OTHERS}{_BIDI}]")  # all but \n and \t


def printable(text: object, most: int = LONGEST) -> str:
    """One line of at most ``most`` characters; what is longer ends with an ellipsis."""
    whole = str(text)
    shown = _OBEYED.sub(_escaped, whole[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def printable_lines(text: str) -> str:
    """Text of any length whose line ends and tabs are its own."""
    return _OBEYED_IN_LINES.sub(_escaped, text)


def log_text(text: object) -> str:
    """Text of a log's record. Its further lines are indented: none looks like another record."""
    return printable_lines(str(text)[:_LONGEST_RECORD]).replace("\n", "\n  ")


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
