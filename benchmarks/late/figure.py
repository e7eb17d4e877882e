"""Success against delay, as a picture: python benchmarks/late/figure.py OUT.png

Left: policies of single actions that know their age and that do not; right: the executions of
chunks. Reads the episodes beside this file, which benchmarks/late/run.sh, tokens.sh and
benchmarks/tabletop.sh play (they are not tracked).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vla_ros.data.episodes.store import read_records, read_run
from vla_ros.lab.report.figures import INK, SIZE, late_lines, panels, styles, success_axis, title
from vla_ros.lab.report.rows import Row, rows_of

HERE = Path(__file__).parent
SINGLE = {
    "told-nothing": "told nothing",
    "tabletop": "told its delay",
    "actionflow": "told its delay, ActionFlow",
}  # folder -> what the line is called
PERIOD_MS = 50


def rows(folder: str) -> Sequence[Row]:
    """Of a study's variants, in the order in which they were asked for."""
    _, variants = read_run(HERE / folder)
    return rows_of(variants.values(), read_records(HERE / folder))


def age_steps(row: Row) -> int:
    """Median age of the evidence, in control steps."""
    return round(row.age.p50 / PERIOD_MS)


def draw(path: Path) -> None:
    single = {name: rows(folder) for folder, name in SINGLE.items() if (HERE / folder).is_dir()}
    chunks = late_lines(rows("tabletop-flow"))
    figure, (left, right) = panels(2, width=10.4, height=3.8, same_rows=True)
    title(left, "Single actions: shipped:tabletop, and one told nothing")
    title(right, "Chunks of shipped:tabletop-flow, by execution")
    panel(left, {name: [(age_steps(r), r) for r in own] for name, own in single.items()})
    panel(right, {n: [(r.variant.delay_frames, r) for r in own] for n, own in chunks.items()})
    figure.savefig(path, dpi=110)


def panel(axes: Any, lines: Mapping[str, Sequence[tuple[int, Row]]]) -> None:
    success_axis(axes)
    look = styles(list(lines))
    for place, (name, points) in enumerate(lines.items()):
        aside = 0.06 * place  # later than measured, never below 0
        ordered = sorted(points, key=lambda point: point[0])
        rates = [row.all.rate for _, row in ordered]
        low = [row.all.rate - row.all.interval[0] for _, row in ordered]
        high = [row.all.interval[1] - row.all.rate for _, row in ordered]
        at = [PERIOD_MS * (steps + aside) for steps, _ in ordered]
        axes.errorbar(
            at, rates, (low, high), fmt=f"-{look[name].marker}", color=look[name].color, lw=1.5,
            ms=4.5, elinewidth=0.8, capsize=2, label=name,
        )  # fmt: skip
    axes.set_xlabel(
        "an action is executed so much later than its image, ms", fontsize=SIZE, color=INK
    )
    axes.legend(frameon=False, fontsize=SIZE, loc="lower left")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
