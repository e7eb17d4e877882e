"""The report of a replay as one page: no script, nothing loaded from anywhere.

Shows the verdict, where the time went in both runs, every dimension of the actions of both runs
over the frames, and the differences in numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from vla_ros.core import STAGES
from vla_ros.replay.compare import DIMENSIONS, Comparison
from vla_ros.replay.report import Report, Side
from vla_ros.timing import Distribution

_UNITS = ("m", "m", "m", "rad", "rad", "rad", "(0 closed, 1 open)")
_COLOURS = ("#9aa5b1", "#c9b458", "#7fb8ad", "#4878a8", "#33658a", "#86bbd8", "#b8c4bb")
_WIDE, _HIGH, _PAD = 300, 90, 4  # one plot, px
_MOST_POINTS = 1500  # of one line

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;color:#1f2933;max-width:980px;margin:2em auto;
padding:0 1em}
h1{font-size:1.35em;margin:0}h2{font-size:1.05em;margin:1.8em 0 .5em}
.sub{color:#616e7c;margin:.2em 0 1em}
.verdict{display:inline-block;padding:.35em .8em;border-radius:4px;font-weight:600}
.good{background:#e3f4e8;color:#14532d}.bad{background:#fde8e8;color:#7f1d1d}
.none{background:#eef1f4;color:#3e4c59}
table{border-collapse:collapse}td,th{padding:.22em 1.1em .22em 0;text-align:left;
vertical-align:top}
th{font-weight:600;border-bottom:1px solid #cbd2d9}td.n{font-variant-numeric:tabular-nums}
td:first-child{color:#52606d}
.plots{display:flex;flex-wrap:wrap;gap:14px 22px}.plots figure{margin:0}
figcaption{font-size:.85em;color:#52606d}
svg{display:block}.key span{margin-right:1.3em;font-size:.85em;white-space:nowrap}
.key i{display:inline-block;width:.9em;height:.9em;margin-right:.4em;vertical-align:-.1em}
li{margin:.2em 0}
"""


def page(report: Report) -> str:
    """The whole page, HTML 5."""
    sides = [side for side in (report.before, report.now) if side is not None]
    title = f"Replay of {report.bag}"
    mood = "none" if report.comparison is None else "good" if report.within else "bad"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="sub">{report.frames} frames at {report.camera_rate_hz:.1f} Hz,'
        f" {escape(report.mode)}, replayed in {report.wall_s:.1f} s</p>",
        f'<p class="verdict {mood}">{escape(report.verdict)}</p>',
        _comparison(report.comparison),
        "<h2>Both runs</h2>" if report.before else "<h2>The run</h2>",
        _table(sides),
        "<h2>Where the time went (medians, ms)</h2>",
        _stages(sides),
        "<h2>Actions over the frames</h2>",
        _plots(sides),
    ]
    if report.notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
        parts.append(f"<h2>Notes</h2><ul>{items}</ul>")
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _comparison(found: Comparison | None) -> str:
    if found is None:
        return "<p>Neither recorded nor golden actions were given.</p>"
    lines = [f"{found.compared} actions compared"]
    if found.missing or found.extra:
        lines.append(f"{found.missing} only before, {found.extra} only now")
    if found.tail:
        lines.append(f"{found.tail} still in the pipeline when their episode ended")
    if found.token_match_rate is not None:
        share = f"{found.tokens_equal} of {found.tokens} tokens match"
        lines.append(f"{share} ({100 * found.token_match_rate:.2f} %)")
    if found.first is not None:
        lines.append(f"first difference: {escape(str(found.first))}")
    text = "<br>".join(lines)
    if not found.largest:
        return f"<p>{text}</p>"
    head = "".join(f"<th>{name}</th>" for name in DIMENSIONS)
    row = "".join(f'<td class="n">{off:.3g}</td>' for off in found.max_abs_diff)
    table = f"<table><tr><th></th>{head}</tr><tr><td>largest difference</td>{row}</tr></table>"
    return f"<p>{text}</p>{table}"


def _table(sides: Sequence[Side]) -> str:
    rows = [_row("", [side.name for side in sides], "th")]
    for name in ("policy", "schedule", "checkpoint", "checkpoint_sha256", "device", "dtype"):
        values = [str(getattr(side.run, name)) for side in sides]
        if name == "checkpoint_sha256":
            values = [value[:16] for value in values]
        if any(values):
            rows.append(_row(name.replace("_", " "), values))
    rows.append(_row("actions", [str(len(side.run.actions)) for side in sides]))
    rates = [f"{side.rate_hz:.1f} Hz" if side.rate_hz else "–" for side in sides]
    rows.append(_row("rate", rates))
    rows.append(_row("", ["p50 / p95 / p99 / max, ms" for _ in sides], "th"))
    rows.append(_row("observation age", [_ms(side.age) for side in sides]))
    rows += [_row(stage, [_ms(side.stages[stage]) for side in sides]) for stage in STAGES]
    rows.append(_row("inference", [_ms(side.inference) for side in sides]))
    if sides[-1].run.answer_ms.count:
        answers = ["–"] * (len(sides) - 1) + [_ms(sides[-1].run.answer_ms)]
        rows.append(_row("frame to answer", answers))
    return f"<table>{''.join(rows)}</table>"


def _row(label: str, values: Sequence[str], cell: str = "td") -> str:
    kind = ' class="n"' if cell == "td" else ""
    cells = "".join(f"<{cell}{kind}>{escape(value)}</{cell}>" for value in values)
    return f"<tr><{cell}>{escape(label)}</{cell}>{cells}</tr>"


def _ms(spread: Distribution) -> str:
    if not spread.count:
        return "–"
    return " / ".join(f"{getattr(spread, name):.1f}" for name in ("p50", "p95", "p99", "max"))


def _stages(sides: Sequence[Side]) -> str:
    """One bar a run, cut into the stages, on one scale."""
    sums = [sum(spread.p50 for spread in side.stages.values()) for side in sides]
    longest = max([*sums, 1e-9])
    width, bar = 640, 26
    drawn = []
    for i, side in enumerate(sides):
        y, x = i * (bar + 10), 90.0
        drawn.append(f'<text x="0" y="{y + 18}" font-size="13">{escape(side.name)}</text>')
        for stage, colour in zip(STAGES, _COLOURS, strict=True):
            long = side.stages[stage].p50 / longest * width
            tip = f"<title>{stage} {side.stages[stage].p50:.2f} ms</title>"
            drawn.append(
                f'<rect x="{x:.1f}" y="{y}" width="{long:.1f}" height="{bar}" fill="{colour}">'
                f"{tip}</rect>"
            )
            x += long
        drawn.append(f'<text x="{x + 8:.1f}" y="{y + 18}" font-size="13">{sums[i]:.1f} ms</text>')
    key = "".join(
        f'<span><i style="background:{colour}"></i>{stage}</span>'
        for stage, colour in zip(STAGES, _COLOURS, strict=True)
    )
    high = len(sides) * (bar + 10)
    bars = f'<svg width="820" height="{high}" role="img">{"".join(drawn)}</svg>'
    return f'{bars}<p class="key">{key}</p>'


def _plots(sides: Sequence[Side]) -> str:
    """Every dimension over time: the run before as a wide pale line, this one on top of it."""
    styles = (("#e0a458", 4.0), ("#1d4e89", 1.2))[-len(sides) :]
    stamps = [key[0] for side in sides for key in side.run.actions]
    if not stamps:
        return "<p>The policy did not act.</p>"
    span = (min(stamps), max(stamps))
    figures = []
    for i, name in enumerate(DIMENSIONS):
        series = [_series(side, i) for side in sides]
        values = np.concatenate([s[1] for s in series])
        low, high = float(values.min()), float(values.max())
        lines = "".join(
            _line(s, span, (low, high), *style) for s, style in zip(series, styles, strict=True)
        )
        figures.append(
            f'<figure><svg width="{_WIDE}" height="{_HIGH}" style="background:#f5f7fa">{lines}'
            f"</svg><figcaption>{name}: {low:.3g} to {high:.3g} {_UNITS[i]}</figcaption></figure>"
        )
    key = "".join(
        f'<span><i style="background:{style[0]}"></i>{escape(side.name)}</span>'
        for side, style in zip(sides, styles, strict=True)
    )
    return f'<div class="plots">{"".join(figures)}</div><p class="key">{key}</p>'


def _series(side: Side, dimension: int) -> tuple[list[int], list[float]]:
    """(stamps, values), thinned to what a plot can show."""
    found = sorted(side.run.actions.items())
    found = found[:: max(1, len(found) // _MOST_POINTS)]
    return [key[0] for key, _ in found], [said.action[dimension] for _, said in found]


def _line(
    series: tuple[list[int], list[float]],
    span: tuple[int, int],
    limits: tuple[float, float],
    colour: str,
    width: float,
) -> str:
    begin, end = span
    low, high = limits
    across = (_WIDE - 2 * _PAD) / max(end - begin, 1)
    up = (_HIGH - 2 * _PAD) / (high - low) if high > low else 0.0
    middle = 0.0 if high > low else _HIGH / 2 - _PAD
    points = " ".join(
        f"{_PAD + (stamp - begin) * across:.1f},{_HIGH - _PAD - middle - (value - low) * up:.1f}"
        for stamp, value in zip(*series, strict=True)
    )
    return (
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"'
        ' stroke-linejoin="round"/>'
    )
