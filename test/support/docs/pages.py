"""The pages of the documentation as its tests read them: fenced blocks, links, headings."""

from __future__ import annotations

import re
import sys
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "requirements"))  # last: its names must hide nothing

import docs_markdown  # noqa: F401
import docs_site

SHELLS = ("bash", "sh")  # a block without a language is a shell's too
_FENCE = re.compile(r"^( *)```(.*)$")
_NEEDS = re.compile(r"^ *<!-- needs: (.+) -->$")


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, the line of its fence, its language, and the reason not to run it
    that a comment before it gives, "" without one."""

    page: str
    line: int
    language: str
    text: str
    needs: str = ""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    """Every fenced block of a page, dedented."""
    return blocks_of(page, read(page))


def blocks_of(page: str, text: str) -> list[Block]:
    found: list[Block] = []
    lines = text.splitlines()
    opened: tuple[int, str] | None = None
    needs = ""
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if opened is not None:
            if fence:
                start, language = opened
                body = textwrap.dedent("\n".join(lines[start : number - 1]))
                found.append(Block(page, start, language, body, needs))
                opened, needs = None, ""
        elif fence:
            opened = (number, "" if fence[2] in SHELLS else fence[2])
        elif said := _NEEDS.match(line):
            needs = said[1]
        elif line.strip():
            needs = ""
    return found


def prose(text: str) -> str:
    """A page without its fenced blocks, line for line."""
    blank = lambda match: "\n" * match[0].count("\n")  # noqa: E731
    return re.sub(r"^ *```.*?^ *```[^\n]*$", blank, text, flags=re.M | re.S)


def inline(page: str) -> list[tuple[int, str]]:
    """(line, text) of every piece of inline code of a page; a line break in it is a space."""
    text = prose(read(page))
    return [
        (text[: match.start()].count("\n") + 1, " ".join(match[1].split()))
        for match in re.finditer(r"`([^`]+)`", text)
    ]


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    shown = re.sub(r"[`*]", "", shown).strip().lower()
    return re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")


@cache
def anchors(page: str) -> frozenset[str]:
    """Every anchor of a page; the second of a name has -1 after it."""
    found: list[str] = []
    for heading in re.findall(r"^#{1,6} +(.+)$", prose(read(page)), re.MULTILINE):
        name = slug(heading)
        count = sum(
            one == name or re.fullmatch(f"{re.escape(name)}-\\d+", one) is not None for one in found
        )
        found.append(f"{name}-{count}" if name in found else name)
    return frozenset(found)


def documented() -> list[str]:
    """The pages whose commands are held: all of the site but what is history."""
    return [page for page in docs_site.pages() if page != "CHANGELOG.md"]
