"""CHANGELOG.rst of CHANGELOG.md, as catkin tools and bloom read it (REP 132).

`make changelog` writes it; a test holds it fresh. A version that has no date yet is "Forthcoming".
Standard library only.
"""

from __future__ import annotations

import re
import sys

from sources import ROOT

SOURCE, TARGET = ROOT / "CHANGELOG.md", ROOT / "CHANGELOG.rst"
TITLE = "Changelog for package vla_ros"
_VERSION = re.compile(r"## \[?(\d+\.\d+\.\d+)\]?(?:\s*(?:-|–|\()\s*(\d{4}-\d\d-\d\d)\)?)?\s*$")
_CODE = re.compile(r"``.+?``|`[^`]+`")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_WRITTEN = re.compile(r"([*_|\\])")


def inline(text: str) -> str:
    """A line's Markdown as reStructuredText: code, and links by their words. Marks that mean
    something there stand as they are written."""
    parts, end = [], 0
    for found in _CODE.finditer(text):
        parts.append(_plain(text[end : found.start()]))
        glued = re.match(r"\w", text[found.end() :]) is not None
        parts.append(f"``{found[0].strip('`').strip()}``" + ("\\ " if glued else ""))
        end = found.end()
    return "".join([*parts, _plain(text[end:])])


def _plain(text: str) -> str:
    return _WRITTEN.sub(r"\\\1", _LINK.sub(r"\1", text).replace("**", ""))


def bullets(lines: list[str]) -> list[str]:
    """The points of one version, a line each."""
    found: list[str] = []
    section, nested = "", False
    for line in lines:
        if line.startswith("#"):
            section = line.lstrip("# ")
            nested = line.startswith("####")
        elif line.startswith("- "):
            found.append(f"{section}: {line[2:]}" if nested else line[2:])
        elif line.strip() and found:
            found[-1] += " " + line.strip()
    return [inline(re.sub(r"\s+", " ", text)) for text in found]


def rst(markdown: str) -> str:
    """The whole file. ValueError: no version is in it."""
    versions: list[tuple[str, list[str]]] = []
    for line in markdown.splitlines():
        if line.startswith("## "):
            found = _VERSION.match(line)
            if found is None:
                raise ValueError(f"CHANGELOG.md: {line!r} names no version")
            dated = f"{found[1]} ({found[2]})" if found[2] else "Forthcoming"
            versions.append((dated, []))
        elif versions:
            versions[-1][1].append(line)
    if not versions:
        raise ValueError("CHANGELOG.md has no version")
    rule = "^" * len(TITLE)
    parts = [f"{rule}\n{TITLE}\n{rule}\n"]
    for title, lines in versions:
        points = "\n".join(f"* {point}" for point in bullets(lines))
        parts.append(f"{title}\n{'-' * len(title)}\n{points}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    text = rst(SOURCE.read_text(encoding="utf-8"))
    if "--check" in sys.argv and TARGET.read_text(encoding="utf-8") != text:
        sys.exit("CHANGELOG.rst is older than CHANGELOG.md: make changelog")
    TARGET.write_text(text, encoding="utf-8")
