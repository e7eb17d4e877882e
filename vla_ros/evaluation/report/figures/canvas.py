"""Matplotlib figures as SVG inside a page, and labels that do not lie on each other."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from vla_ros.analysis.plots import COLOURS, MARKERS
from vla_ros.evaluation.rows import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, RULE = "#1f2933", "#52606d", "#cbd2d9"
SIZE = 9.0  # of the letters, pt
_FAMILY = 'system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif'.replace('"', "'")


@dataclass(frozen=True, slots=True)
class Style:
    """How one series is drawn."""

    colour: str
    marker: str


def styles(names: Sequence[str]) -> dict[str, Style]:
    """A colour and a marker for every different name, in order."""
    pairs = zip(COLOURS, MARKERS, strict=True)
    cycle = [Style(colour, marker) for colour, marker in pairs]
    return {name: cycle[i % len(cycle)] for i, name in enumerate(dict.fromkeys(names))}


def available() -> bool:
    """Whether matplotlib can be imported."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def panels(
    count: int, width: float = 11.2, height: float = 3.5, same_rows: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` panels in a row (inches); it needs no display.

    ``same_rows``: the panels have the same vertical axis, named once.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(1, count, squeeze=False, sharey=same_rows)
    axes = list(grid[0])
    for one in axes:
        one.xaxis.label.set_color(INK)
        for side in ("top", "right"):
            one.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            one.spines[side].set_color(SOFT)
        one.tick_params(colors=SOFT, labelcolor=INK, labelsize=SIZE, length=3)
        one.grid(color="#e4e7eb", lw=0.6)
        one.set_axisbelow(True)
    return figure, axes


def drawn(name: str) -> str:
    """A name as a figure shows it: a dollar sign begins no formula."""
    return plain(name).replace("$", r"\$")


def title(axes: Axes, words: str) -> None:
    """The panel's name, above its left end."""
    axes.set_title(words, loc="left", fontsize=SIZE + 0.5, fontweight="bold", color=INK)


def success_axis(axes: Axes) -> None:
    """The vertical axis as 0 to 100 %."""
    axes.set_ylim(-0.02, 1.03)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0], ["0", "20", "40", "60", "80", "100 %"])


def logarithmic(axes: Axes) -> None:
    """The horizontal axis in factors of ten, said as 10, 100, 1000."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def svg(figure: Figure, says: str) -> Markup:
    """The figure as an ``<svg>`` element; ``says`` describes it to who cannot see it."""
    import matplotlib

    buffer = io.StringIO()
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": "vla_ros"}
    with matplotlib.rc_context(options):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    picture = buffer.getvalue()
    picture = picture[picture.index("<svg") :]
    picture = re.sub(r"<metadata>.*?</metadata>", "", picture, flags=re.DOTALL)
    picture = re.sub(r"'DejaVu Sans'[^;\"]*", _FAMILY, picture)
    used = set(re.findall(r"#([\w.-]+)", picture))
    picture = re.sub(  # ids that nothing refers to would be there once a figure
        r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", picture
    )
    return Markup(picture.replace("<svg", f'<svg role="img" aria-label="{escape(says)}"', 1))
