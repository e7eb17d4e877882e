"""Tables as every verb shows them: no lines, names on the left, figures on the right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1) -> Table:
    """Cells under ``heads``. The first ``names`` columns may be cut in two where there is no
    room; a figure never is."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for place, head in enumerate(heads):
        if place < names:
            made.add_column(head, overflow="fold")
        else:
            made.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    return made
