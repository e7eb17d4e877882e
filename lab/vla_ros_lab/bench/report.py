"""The benchmark as cells of a table, as JSON and as an image."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from vla_ros.core.console import rounded
from vla_ros_lab.bench.measure import RowResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ReportColumn(NamedTuple):
    """A field of a row, its head and how it is written."""

    field: str
    head: str
    form: str


COLUMNS = (
    ReportColumn("median_ms", "median\nms", "{:.1f}"),
    ReportColumn("p95_ms", "p95\nms", "{:.1f}"),
    ReportColumn("rate_hz", "rate\nHz", "{:.1f}"),
    ReportColumn("latency_ms", "latency\nms", "{:.1f}"),
    ReportColumn("passes_per_action", "passes", "{:.2f}"),
    ReportColumn("acceptance", "drafts\ntaken", "{:.2f}"),
    ReportColumn("speedup_vs_generate", "times\ngen.", "{:.2f}"),
    ReportColumn("speedup_vs_autoregressive", "times\nAR", "{:.2f}"),
    ReportColumn("token_match", "tokens\nsame", "{:.3f}"),
    ReportColumn("peak_memory_mb", "peak\nMB", "{:.0f}"),
)


def cell(row: RowResult, column: ReportColumn) -> str:
    """What stands in the table; "-" where a figure does not apply."""
    value = getattr(row, column.field)
    return "-" if value is None or math.isnan(value) else column.form.format(value)


def json_line(result: Mapping[str, Any]) -> str:
    """Everything on one line; numbers to six significant digits."""
    return json.dumps(rounded(result), sort_keys=False)


def machine(device: torch.device) -> dict[str, Any]:
    """What the figures were taken on."""
    out: dict[str, Any] = {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "os": platform.platform(terse=True),
    }
    try:
        import resource

        out["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    except ImportError:  # not a Unix
        pass
    if device.type == "cuda":
        out["gpu"] = torch.cuda.get_device_name(device)
        out["cuda"] = torch.version.cuda
    return out


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        features = next((line for line in lines if line.startswith("flags")), "")
        extra = [f for f in ("avx512_bf16", "amx_bf16") if f in features]
        return " ".join([*(names[:1] or [platform.machine()]), *extra])
    return platform.processor() or platform.machine()


def expected_ms(rows: Mapping[str, RowResult]) -> dict[str, float]:
    """What a call of each row would take if the target's passes were all that it costs, at the
    price that they had in this run: one pass that holds the prompt (``speculative_hit``) and, for
    every further one, what ``autoregressive`` pays. {} where these two were not measured.

    By the mean number of passes, so a row whose calls are either short or long (a draft that is
    right or not) lies beside its median. Drafts of a model, wider packs and all overhead are what
    a row takes more. A row that serves several frames with a pass has no such figure.
    """
    one, many = rows.get("speculative_hit"), rows.get("autoregressive")
    if one is None or many is None or many.passes_per_action <= one.passes_per_action:
        return {}
    further = many.passes_per_action - one.passes_per_action
    each = (many.median_ms - one.median_ms) / further
    return {
        name: one.median_ms + (row.passes_per_action - one.passes_per_action) * each
        for name, row in rows.items()
        if row.passes_per_action >= one.passes_per_action
    }


def picture(rows: Mapping[str, RowResult], title: str, path: Path) -> bool:
    """A PNG with the time of a call, its spread and what was expected of it, beside the latency;
    False where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        return False
    FigureCanvasAgg(draw(rows, title)).print_png(str(path))
    return True


def draw(rows: Mapping[str, RowResult], title: str) -> Figure:
    """The image as a figure of matplotlib."""
    from matplotlib.figure import Figure

    names = list(rows)
    figure = Figure(figsize=(11, 0.42 * len(names) + 2.0), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    places = {name: place for place, name in enumerate(names)}
    for axis, key, label, color in (
        (left, "median_ms", "a call, ms (less is better)", "#2a6f97"),
        (right, "latency_ms", "observation to action, ms (less is better)", "#bc4749"),
    ):
        bars = axis.barh(list(places.values()), [float(getattr(rows[n], key)) for n in names],
                         color=color)  # fmt: skip
        if axis is right:
            axis.bar_label(bars, fmt="%.3g", padding=3, fontsize=8)
        axis.set_xlabel(label)
        axis.margins(x=0.15)
        axis.spines[["top", "right"]].set_visible(False)
    for name, place in places.items():  # inside the bar: to its right is the spread
        text = f" {rows[name].median_ms:.3g}"
        left.text(0, place, text, va="center", fontsize=8, color="white")
    left.hlines(
        list(places.values()),
        [rows[n].median_ms for n in names],
        [rows[n].p95_ms for n in names],
        color="#012a4a",
        lw=1.6,
        label="median to 95th percentile",
    )
    expected = expected_ms(rows)
    if expected:
        left.plot(
            list(expected.values()),
            [places[name] for name in expected],
            "D",
            ms=5.5,
            mfc="white",
            mec="#d97706",
            mew=1.5,
            ls="none",
            label="expected of its passes (mean)",
        )
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=2, fontsize=8, frameon=False)
    words = {
        n: f"{n}{'' if rows[n].lossless else ' (lossy)'}\n{rows[n].rate_hz:.3g} Hz" for n in names
    }
    left.set_yticks(list(places.values()), list(words.values()), fontsize=8)
    left.invert_yaxis()
    figure.suptitle(title, fontsize=10)
    return figure
