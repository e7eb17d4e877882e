"""Pieces of a page: tables, figures, small bars. Strings in, HTML out; nothing loads anything.

The colours are Okabe and Ito's, which colour-blind readers can tell apart; every colour is
also said in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

STYLE = """
:root{--ink:#1f2933;--soft:#52606d;--rule:#cbd2d9;--pale:#eef1f4;--bar:#7fa8cc;--dark:#0b3c61}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;
color:var(--ink);max-width:1120px;margin:2.2em auto 4em;padding:0 1.2em}
h1{font-size:1.55em;line-height:1.25;margin:0 0 .2em;letter-spacing:-.01em}
h2{font-size:1.12em;margin:2.4em 0 .4em;padding-top:.5em;border-top:1px solid var(--rule)}
p{max-width:54em;margin:.5em 0}.sub{color:var(--soft);margin:0}
.note{border-left:4px solid #d55e00;background:#fdf3ec;padding:.5em .9em;margin:1em 0;
font-weight:600;max-width:none}
.lead{font-size:1.07em;margin:1.1em 0}
figure{margin:1em 0 1.6em}figure svg{display:block;max-width:100%;height:auto}
figcaption,.cap{color:var(--soft);font-size:.9em;max-width:66em;margin:.35em 0 .6em}
figcaption b,.cap b{color:var(--ink)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.9em;line-height:1.35;font-variant-numeric:tabular-nums;
border-top:1.5px solid var(--ink);border-bottom:1.5px solid var(--ink);margin:.4em 0 1em}
th,td{padding:.26em .55em;text-align:right;vertical-align:middle;white-space:nowrap}
th{font-weight:600;vertical-align:bottom;border-bottom:1px solid var(--ink)}
th:first-child,td:first-child,.l{text-align:left;padding-left:.1em}
td:last-child{padding-right:.2em}
th.k{white-space:normal;max-width:9em}
td.w{white-space:normal;text-align:left;max-width:34em}th.w{text-align:left}
tr.g td{font-weight:600;border-top:1px solid var(--rule);padding-top:.5em}
tr.t td{border-top:1px solid var(--rule);font-weight:600}
th.b,td.b{text-align:left}.n{display:inline-block;min-width:3.3em;text-align:right}
td small,th small,.ci{color:var(--soft);font-size:.86em;font-weight:400}
td svg{vertical-align:-.2em;margin-right:.45em}
code,pre{font:.92em/1.45 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace}
pre{background:var(--pale);padding:.6em .8em;white-space:pre-wrap;overflow-wrap:anywhere;
margin:.4em 0;border-radius:3px}
.strips{display:grid;grid-template-columns:repeat(auto-fill,minmax(460px,1fr));gap:14px 24px}
.strips figure{margin:0;break-inside:avoid}.strips img{display:block;width:100%;height:auto}
.strips figcaption{margin:.25em 0 0}
.strips h3{grid-column:1/-1;font-size:1em;margin:.6em 0 0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15em 1.4em;font-size:.93em;margin:.6em 0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
details summary{cursor:pointer;color:var(--soft);margin:.4em 0}
@media (max-width:620px){.strips{grid-template-columns:1fr}}
@media print{@page{size:A4;margin:14mm}body{font-size:9.5pt;margin:0;padding:0;max-width:none}
h2{break-after:avoid}figure,tr{break-inside:avoid}.scroll{overflow:visible}
table{font-size:.82em}th,td{padding:.18em .32em}.strips{grid-template-columns:1fr 1fr;gap:8px 12px}
details::details-content{content-visibility:visible;block-size:auto}summary{display:none}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table: trusted HTML. ``kind``: "" number, "l" text, "w" text that wraps."""

    html: str
    kind: str = ""
    style: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a table. ``kind``: "" plain, "g" heads a group, "t" a total."""

    cells: Sequence[Cell]
    kind: str = ""


def text(value: object, kind: str = "") -> Cell:
    """A cell of plain text."""
    return Cell(escape(str(value)), kind)


def table(heads: Sequence[Cell], lines: Iterable[Line], caption: str = "") -> str:
    """A table with rules above, below and under its head; ``caption`` is trusted HTML."""
    head = "".join(_cell(cell, "th") for cell in heads)
    body = "".join(
        f"<tr{_kind(line.kind)}>{''.join(_cell(c, 'td') for c in line.cells)}</tr>\n"
        for line in lines
    )
    above = f'<p class="cap">{caption}</p>' if caption else ""
    return (
        f'{above}<div class="scroll"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>\n"
    )


def _cell(cell: Cell, tag: str) -> str:
    style = f' style="{cell.style}"' if cell.style else ""
    return f"<{tag}{_kind(cell.kind)}{style}>{cell.html}</{tag}>"


def _kind(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def figure(picture: str, caption: str) -> str:
    """``picture`` (SVG or an img) above ``caption``; both trusted HTML."""
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>\n"


def success_bar(rate: float, low: float, high: float, width: int) -> str:
    """A bar from 0 to ``rate`` with its interval as a whisker, all in 0..1; a light full scale."""
    high_px, middle = 13, 6.5

    def x(value: float) -> float:
        return 0.5 + min(max(value, 0.0), 1.0) * (width - 1)

    return (
        f'<svg width="{width}" height="{high_px}" role="img" aria-hidden="true">'
        f'<rect width="{width}" height="{high_px}" fill="#eef1f4"/>'
        f'<rect width="{x(rate):.1f}" height="{high_px}" fill="#7fa8cc"/>'
        f'<path d="M{x(low):.1f} {middle}H{x(high):.1f}M{x(low):.1f} 3v7M{x(high):.1f} 3v7"'
        ' stroke="#0b3c61" stroke-width="1.3" fill="none"/></svg>'
    )


def shade(share: float) -> str:
    """A background that grows bluer with ``share`` (0..1), always light enough for black text."""
    part = min(max(share, 0.0), 1.0)
    red, green, blue = (round(255 - part * (255 - end)) for end in (140, 185, 222))
    return f"background:rgb({red},{green},{blue})"


def page(title: str, body: str) -> str:
    """The whole document, HTML 5, one file."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )
