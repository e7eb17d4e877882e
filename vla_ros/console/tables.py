"""Tables as every verb shows them: no lines, names on the left, figures on the right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table as Lines


class Table:
    """``rows`` of cells under ``heads``; the first column has the names.

    Where there is no room, the columns called ``spare`` are left out, first the first; then
    names are cut in two. A figure never is.
    """

    def __init__(
        self, heads: Sequence[str], rows: Iterable[Sequence[str]], spare: Sequence[str] = ()
    ) -> None:
        self._heads, self._rows, self._spare = list(heads), [list(row) for row in rows], spare

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

        places = [i for i, head in enumerate(self._heads) if head not in left_out]
        lines = Lines(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        lines.add_column(self._heads[0], overflow="fold", vertical="bottom")
        for i in places[1:]:
            lines.add_column(self._heads[i], justify="right", no_wrap=True)
        for row in self._rows:
            lines.add_row(*(Text(row[i]) for i in places))
        return lines
