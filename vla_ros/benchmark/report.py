"""The benchmark as cells of a table, as JSON and as a picture."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vla_ros.benchmark.measure import RowResult


class Column(NamedTuple):
    """A field of a row, its head and how it is written."""

    field: str
    head: str
    form: str


COLUMNS = (
    Column("median_ms", "median\nms", "{:.1f}"),
    Column("p95_ms", "p95\nms", "{:.1f}"),
    Column("rate_hz", "rate\nHz", "{:.1f}"),
    Column("latency_ms", "latency\nms", "{:.1f}"),
    Column("passes_per_action", "passes", "{:.2f}"),
    Column("acceptance", "drafts\ntaken", "{:.2f}"),
    Column("speedup_vs_generate", "times\ngen.", "{:.2f}"),
    Column("speedup_vs_autoregressive", "times\nAR", "{:.2f}"),
    Column("token_match", "tokens\nsame", "{:.3f}"),
    Column("peak_memory_mb", "peak\nMB", "{:.0f}"),
)


def cell(row: RowResult, column: Column) -> str:
    """What stands in the table; "-" where a figure does not apply."""
    value = getattr(row, column.field)
    return "-" if value is None or math.isnan(value) else column.form.format(value)


def json_line(result: Mapping[str, Any]) -> str:
    """Everything on one line; numbers to six significant digits."""
    return json.dumps(_rounded(result), sort_keys=False)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(v) for v in value]
    return value


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


def picture(rows: Mapping[str, RowResult], title: str, path: Path) -> bool:
    """A PNG with rate and latency side by side; False where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    names = list(rows)
    figure = Figure(figsize=(11, 0.42 * len(names) + 1.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    places = range(len(names))
    for axis, key, label, colour in (
        (left, "rate_hz", "actions per second (more is better)", "#2a6f97"),
        (right, "latency_ms", "observation to action, ms (less is better)", "#bc4749"),
    ):
        values = [float(getattr(rows[n], key)) for n in names]
        bars = axis.barh(places, values, color=colour)
        axis.bar_label(bars, fmt="%.3g", padding=3, fontsize=8)
        axis.set_xlabel(label)
        axis.margins(x=0.15)
        axis.spines[["top", "right"]].set_visible(False)
    left.set_yticks(places, [n + ("" if rows[n].lossless else " (lossy)") for n in names])
    left.invert_yaxis()
    figure.suptitle(title, fontsize=10)
    FigureCanvasAgg(figure).print_png(str(path))
    return True
