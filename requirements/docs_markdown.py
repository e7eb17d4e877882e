"""Markdown as GitHub reads it, written so that Python-Markdown reads it the same way.

Line by line, and only what the pages here use: fences, lists, tables. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_FENCE = re.compile(r"^( *)(```+)(.*)$")
_ITEM = re.compile(r"^( *)([-*]|\d+\.)( +)(.*)$")
_COMMENT = re.compile(r"^ *<!--.*-->$")


def outside_code(text: str) -> Iterator[tuple[str, bool]]:
    """The text in pieces: (piece, whether it is text and no code). Joined, they are the text."""
    for at, block in enumerate(re.split(r"(^ *```.*?^ *```[^\n]*$)", text, flags=re.M | re.S)):
        if at % 2:
            yield block, False
            continue
        for inner, piece in enumerate(re.split(r"(`[^`]*`)", block)):
            yield piece, inner % 2 == 0


def plain(text: str) -> str:
    """The page with blank lines before lists, tables and fences, and four columns a list level.

    Comments on a line of their own are left out; a fence without a language is a shell's.
    """
    out: list[str] = []
    offsets: list[int] = []  # where the text of each open list item begins, in columns
    fence = 0  # columns that the lines of an open fence are moved by
    inside = False
    last = 0  # the newest item's line
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        found = _FENCE.match(line)
        if inside:
            out.append(("    " * len(offsets) + line[min(fence, indent) :]).rstrip())
            if found and not found[3]:
                inside = False
                out.append("")
        elif _COMMENT.match(line):
            continue
        elif not line.strip():
            out.append("")
        elif found:
            _close(offsets, indent)
            _blank(out)
            out.append("    " * len(offsets) + found[2] + (found[3] or "sh"))
            inside, fence = True, indent
        elif item := _ITEM.match(line):
            if not offsets or "" in out[last:]:  # the item before has more than one paragraph
                _blank(out)
            _close(offsets, indent)
            last = len(out)
            out.append("    " * len(offsets) + f"{item[2]} {item[4]}")
            offsets.append(len(item[1] + item[2] + item[3]))
        else:
            if out and not out[-1]:  # else the line goes on with the item's
                _close(offsets, indent)
            if line.lstrip().startswith("|") and not (out and out[-1].lstrip().startswith("|")):
                _blank(out)
            out.append("    " * len(offsets) + line.lstrip())
    return "\n".join(out) + "\n"


def _close(offsets: list[int], indent: int) -> None:
    """End the items that a line with this indent is not inside of."""
    while offsets and indent < offsets[-1]:
        offsets.pop()


def _blank(out: list[str]) -> None:
    if out and out[-1]:
        out.append("")
