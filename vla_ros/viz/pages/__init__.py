"""HTML pages, each one file: it loads nothing, runs no script, and can be kept or mailed.

A page is a template (``NAME.html.j2``) beside the code that fills it; it extends ``base.html.j2``
of this folder and may use its ``table.html.j2``. Whatever is put in is escaped, and shows what a
reader would obey (:mod:`vla_ros.core.text`), but for ``markupsafe.Markup``: images that this
project drew.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.core.text import printable_lines

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = Path(__file__).parent


def _shown(value: Any) -> Any:
    """A value that is put in; of text, Markup excepted, nothing that a reader would obey."""
    return printable_lines(value) if type(value) is str else value


@lru_cache(maxsize=8)
def _environment(folder: Path) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader([folder, _HERE]),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,  # a missing name is an error, not nothing
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(folder: Path, template: str, **values: Any) -> str:
    """The page that ``template`` of ``folder`` makes of ``values``."""
    return _environment(folder).get_template(template).render(**values)


# A table of a page, as data: ``table.html.j2`` shows it.


_HIGH = 13  # px of a bar


@dataclass(frozen=True, slots=True)
class Bar:
    """A share with its interval, all 0..1: a bar to ``rate`` on a light full scale of ``width``
    px, and a whisker."""

    rate: float
    low: float
    high: float
    width: int = 76

    @property
    def height(self) -> int:
        return _HIGH

    def x(self, value: float) -> float:
        """Position of a share, px."""
        return 0.5 + min(max(value, 0.0), 1.0) * (self.width - 1)


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell. ``kind``: "" number, "l" text, "w" text that wraps, "b" bar, "k" head that wraps.

    ``aside``: smaller, behind the text; in a head below it, where the text itself may have lines.
    ``shade`` 0..1: how blue the background is.
    """

    text: str
    kind: str = ""
    aside: str = ""
    bar: Bar | None = None
    shade: float | None = None

    @property
    def background(self) -> str:
        """A color that is always light enough for dark text."""
        part = min(max(self.shade or 0.0, 0.0), 1.0)
        red, green, blue = (round(255 - part * (255 - end)) for end in (140, 185, 222))
        return f"rgb({red},{green},{blue})"


@dataclass(frozen=True, slots=True)
class TableLine:
    """One row of a table. ``kind``: "" plain, "g" heads a group, "t" a total."""

    cells: tuple[Cell, ...]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A head and rows of as many cells."""

    heads: tuple[Cell, ...]
    lines: tuple[TableLine, ...]


def cell(value: object, kind: str = "") -> Cell:
    """A cell of plain text."""
    return Cell(str(value), kind)
