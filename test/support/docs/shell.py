"""The commands of a fenced block: lines put together, comments left out, chains taken apart."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from support.docs.pages import Block

_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")


@dataclass(frozen=True)
class Command:
    """One simple command: where it stands, its words, the assignments before it, and the reason
    not to run it."""

    where: str
    words: tuple[str, ...]
    assigned: tuple[str, ...] = ()
    needs: str = ""

    @property
    def text(self) -> str:
        return shlex.join(self.words)


def commands(block: Block) -> list[Command]:
    """Every simple command of a block. ValueError: a quote is not closed.

    A variable that an earlier line of the block sets is put in.
    """
    found: list[Command] = []
    known: dict[str, str] = {}
    begun: list[str] = []
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        begun.append(line.removesuffix("\\"))
        if line.endswith("\\"):
            continue
        for name, value in known.items():
            begun = [re.sub(rf"\${name}\b", value, part) for part in begun]
        for words in simple(" ".join(begun)):
            count = next((i for i, w in enumerate(words) if not _ASSIGNMENT.match(w)), len(words))
            if count == len(words):
                known |= dict(word.split("=", 1) for word in words)
            else:
                where = f"{block.page}:{number - len(begun) + 1}"
                found.append(Command(where, words[count:], words[:count], block.needs))
        begun = []
    return found


def simple(line: str) -> list[tuple[str, ...]]:
    """`a b && c | d  # e` as (a, b), (c,), (d,). ValueError: a quote is not closed."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    parts: list[list[str]] = [[]]
    for word in lexer:
        if word and set(word) <= set("&|;"):
            parts.append([])
        else:
            parts[-1].append(word)
    return [tuple(part) for part in parts if part]
