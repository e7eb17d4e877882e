"""HTML pages, each one file: it loads nothing, runs no script, and can be kept or mailed.

A page is a template (``NAME.html.j2``) beside the code that fills it; it extends ``base.html.j2``
of this folder and may use its ``table.html.j2``. Whatever is put in is escaped, but for
``markupsafe.Markup``: pictures that this project drew.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = Path(__file__).parent


@lru_cache(maxsize=8)
def _environment(folder: Path) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader([folder, _HERE]),
        autoescape=True,
        undefined=StrictUndefined,  # a name that nobody gave is an error, not nothing
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(folder: Path, template: str, **values: Any) -> str:
    """The page that ``template`` of ``folder`` makes of ``values``."""
    return _environment(folder).get_template(template).render(**values)
