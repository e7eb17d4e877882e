"""The benchmark as a table, as JSON and as a picture."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vla_ros.benchmark.measure import RowResult

COLUMNS = (
    ("median_ms", "median ms", "{:.1f}"),
    ("p95_ms", "p95 ms", "{:.1f}"),
    ("rate_hz", "rate Hz", "{:.1f}"),
    ("latency_ms", "latency ms", "{:.1f}"),
    ("passes_per_action", "passes", "{:.2f}"),
    ("acceptance", "accepted", "{:.2f}"),
    ("speedup_vs_generate", "x generate", "{:.2f}"),
    ("speedup_vs_autoregressive", "x own AR", "{:.2f}"),
    ("token_match", "tokens =", "{:.3f}"),
    ("peak_memory_mb", "peak MB", "{:.0f}"),
)


def table(rows: Mapping[str, RowResult]) -> str:
    """One line a row; "-" where a figure does not apply, "lossy" behind the lossy ones."""
    width = max(len(name) for name in rows) + 1
    head = " " * width + "".join(f"{title:>12}" for _, title, _ in COLUMNS)
    lines = [head]
    for name, row in rows.items():
        values = asdict(row)
        cells = [_cell(values[key], form) for key, _, form in COLUMNS]
        note = "" if row.lossless else "  lossy"
        lines.append(f"{name:<{width}}" + "".join(f"{c:>12}" for c in cells) + note)
    return "\n".join(lines)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None or math.isnan(value) else form.format(value)


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
