"""The benchmark as tables, as JSON and as a figure."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from vla_ros.core.console import Table, rounded
from vla_ros_lab.bench.measure import Figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Column(NamedTuple):
    """A figure of a row (``a.b``: of a group), its head and how it is written. ``spare``: columns
    are left out in this order where there is no room, 0 none."""

    key: str
    head: str
    form: str = "{}"
    scale: float = 0  # 0: as it is, text too
    spare: int = 0


TOKENS = (
    Column("median_ms", "median\nms", "{:.1f}"),
    Column("p95_ms", "p95\nms", "{:.1f}", spare=1),
    Column("rate_hz", "rate\nHz", "{:.1f}"),
    Column("latency_ms", "latency\nms", "{:.1f}"),
    Column("passes_per_action", "passes", "{:.2f}"),
    Column("acceptance", "drafts\ntaken", "{:.2f}", spare=3),
    Column("speedup_vs_generate", "times\ngen.", "{:.2f}"),
    Column("speedup_vs_autoregressive", "times\nAR", "{:.2f}"),
    Column("token_match", "tokens\nsame", "{:.3f}", spare=2),
    Column("peak_memory_mb", "peak\nMB", "{:.0f}"),
)
SPLIT = (
    Column("split.draft_ms", "draft", "{:.1f}"),
    Column("split.verify_ms", "verify", "{:.1f}"),
    Column("split.other_ms", "other", "{:.1f}"),
    Column("split.verified", "tokens\nverified", "{:.1f}"),
    Column("split.accepted", "taken\na pass", "{:.2f}"),
    Column("passes_per_action", "passes", "{:.2f}"),
    Column("draft_passes_per_action", "draft\npasses", "{:.2f}"),
)
FAST = (
    Column("median_ms", "chunk\nms", "{:.1f}"),
    Column("passes", "passes", "{:.1f}"),
    Column("tokens", "tokens", "{:.1f}"),
    Column("drafted", "drafted", "{:.1f}"),
    Column("accepted", "right\n%", "{:.0f}", 100),
    Column("same", "same\ntokens"),
    Column("chunks", "of"),
)
PASSES = (
    Column("tokens", "new"),
    Column("median_ms", "ms", "{:.3f}"),
    Column("best_ms", "best\nms", "{:.3f}", spare=1),
    Column("roofline_ms", "roofline\nms", "{:.3f}"),
    Column("bound", "bound by"),
    Column("efficiency", "reached\n%", "{:.0f}", 100),
    Column("operators", "operators", spare=2),
    Column("kernels", "kernels"),
)
PRODUCTS = (  # kernels that were taken for products, and what lies around them
    Column("rows", "rows"),
    Column("size", "N x K"),
    Column("way", "way"),
    Column("us", "us", "{:.1f}"),
    Column("torch_us", "torch\nus", "{:.1f}"),
    Column("faster", "times\nfaster", "{:.2f}"),
)
FLEET = (
    Column("robots", "robots"),
    Column("refused", "refused", spare=2),
    Column("answers_hz", "answers\na s", "{:.1f}"),
    Column("share", "answered\n%", "{:.0f}", 100),
    Column("least_share", "least\n%", "{:.0f}", 100),
    Column("age_p50_ms", "age p50\nms", "{:.0f}"),
    Column("age_p99_ms", "p99\nms", "{:.0f}"),
    Column("worst_p99_ms", "worst\nrobot", "{:.0f}"),
    Column("fairness", "fair", "{:.2f}", spare=1),
    Column("robots_a_pass", "a pass", "{:.1f}", spare=3),
    Column("rss_mb", "RSS\nMB", "{:.0f}"),
)


def flow_columns(rows: Mapping[str, Figures]) -> tuple[Column, ...]:
    """The columns of a policy with an action head: phases, the chunk, and the other rows."""
    single = "parallel" in rows
    others = [name for name in rows if name not in ("flow", "flow_eager", "parallel")]
    return (
        Column("stages_ms.vision", "vision\nms", "{:.1f}"),
        Column("stages_ms.prefill", "pass\nms" if single else "prefix\nms", "{:.1f}"),
        Column("step_ms", "head\nms" if single else "step\nms", "{:.1f}"),
        Column("median_ms", "chunk\nms", "{:.1f}"),
        Column("p95_ms", "p95\nms", "{:.1f}", spare=1),
        Column("wall_median_ms", "wall\nms", "{:.1f}", spare=2),
        *(Column(f"speedup.{name}", f"times\n{name}", "{:.2f}") for name in others),
        Column("difference", "differs\nby", "{:.1e}", spare=3),
    )


def table(title: str, rows: Sequence[tuple[str, Figures]], columns: Sequence[Column]) -> Table:
    """A line a row; "-" where a figure does not apply, and no column where it applies to none."""
    lines = [(name, [cell(row, column) for column in columns]) for name, row in rows]
    shown = [i for i in range(len(columns)) if any(cells[i] != "-" for _, cells in lines)]
    spare = sorted((c for c in columns if c.spare), key=lambda column: column.spare)
    return Table(
        [title, *(columns[i].head for i in shown)],
        [[name, *(cells[i] for i in shown)] for name, cells in lines],
        [column.head for column in spare],
    )


def cell(row: Figures, column: Column) -> str:
    value: Any = row
    for key in column.key.split("."):
        value = None if value is None else value.get(key)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return column.form.format(value * column.scale if column.scale else value)


def row_tables(rows: Mapping[str, Figures], hindsight: Figures | None = None) -> list[Table | str]:
    """The rows of any policy; of token policies also where the time of speculation goes, and what
    it verifies, with the bound on it."""
    first = next(iter(rows.values()))
    if "stages_ms" in first:
        return [table("", list(rows.items()), flow_columns(rows))]
    if "tokens" in first:
        return [table("", list(rows.items()), FAST)]
    named = [(name if row["lossless"] else f"{name} *", row) for name, row in rows.items()]
    out: list[Table | str] = [table("* lossy", named, TOKENS), ""]
    split = [(name, row) for name, row in rows.items() if row["split"]]
    if split and hindsight:
        bound = {"split": hindsight, "passes_per_action": hindsight["passes"]}
        split.append(("best in hindsight (not run)", bound))
    return [*out, table("ms an action", split, SPLIT), ""] if split else out


def json_line(result: Mapping[str, Any]) -> str:
    """The result on one line; numbers to six significant digits."""
    return json.dumps(rounded(result), sort_keys=False)


def machine(device: torch.device) -> dict[str, Any]:
    """The machine that the figures were taken on."""
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


def expected_ms(rows: Mapping[str, Figures]) -> dict[str, float]:
    """Milliseconds that a call of each row would take if the target's passes were all that it
    costs, at the price that they had in this run: one pass that holds the prompt
    (``speculative_hit``) and, for every further one, what ``autoregressive`` pays. {} where these
    two were not measured.

    By the mean number of passes, so a row whose calls are either short or long (a draft that is
    right or not) lies beside its median. Drafts of a model, wider packs and all overhead are what
    a row takes more. A row that serves several frames with a pass has no such figure.
    """
    passes = {name: row["passes_per_action"] for name, row in rows.items()}
    if not {"speculative_hit", "autoregressive"} <= rows.keys():
        return {}
    one, further = passes["speculative_hit"], passes["autoregressive"] - passes["speculative_hit"]
    if further <= 0:
        return {}
    least = rows["speculative_hit"]["median_ms"]
    each = (rows["autoregressive"]["median_ms"] - least) / further
    return {name: least + (n - one) * each for name, n in passes.items() if n >= one}


def write_png(figure: Figure | None, path: Path) -> bool:
    """Write a figure; False where there is none, as without matplotlib."""
    if figure is None:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure).print_png(str(path))
    return True


def draw(rows: Mapping[str, Figures], title: str) -> Figure | None:
    """The time of a call, its spread and what was expected of it, beside the latency; None where
    matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    names = list(rows)
    figure = Figure(figsize=(11, 0.42 * len(names) + 2.0), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    lines = range(len(names))
    for axis, key, label, color in (
        (left, "median_ms", "a call, ms (less is better)", "#2a6f97"),
        (right, "latency_ms", "observation to action, ms (less is better)", "#bc4749"),
    ):
        bars = axis.barh(lines, [float(row[key]) for row in rows.values()], color=color)
        if axis is right:
            axis.bar_label(bars, fmt="%.3g", padding=3, fontsize=8)
        axis.set_xlabel(label)
        axis.margins(x=0.15)
        axis.spines[["top", "right"]].set_visible(False)
    medians = [row["median_ms"] for row in rows.values()]
    for line, median in zip(lines, medians, strict=True):  # inside: to the right is the spread
        left.text(0, line, f" {median:.3g}", va="center", fontsize=8, color="white")
    left.hlines(
        lines, medians, [row["p95_ms"] for row in rows.values()], color="#012a4a", lw=1.6,
        label="median to 95th percentile",
    )  # fmt: skip
    if expected := expected_ms(rows):
        left.plot(
            list(expected.values()), [names.index(name) for name in expected], "D", ms=5.5,
            mfc="white", mec="#d97706", mew=1.5, ls="none", label="expected of its passes (mean)",
        )  # fmt: skip
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=2, fontsize=8, frameon=False)
    labels = [
        f"{name}{'' if row['lossless'] else ' (lossy)'}\n{row['rate_hz']:.3g} Hz"
        for name, row in rows.items()
    ]
    left.set_yticks(lines, labels, fontsize=8)
    left.invert_yaxis()
    figure.suptitle(title, fontsize=10)
    return figure
