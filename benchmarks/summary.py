"""What the stages of run.py have written, as one table, one JSON and one figure."""

from __future__ import annotations

import json
from pathlib import Path

from groups import combined, ended, number
from peers import peers_table

DONE = "done.json"  # of a stage: how it ended
#: What was expected of an H200 before anything ran on one: milliseconds, from and to, by stage and
#: passes (added up) or row. OpenVLA-7B in bf16 unless the stage is another. From the roofline
#: (4.6 TB/s, 790 TFLOP/s) with 2 to 4 us and a gap of 1 us for each small kernel.
ESTIMATES: dict[str, tuple[str, tuple[str, ...], float, float]] = {
    "vision and projector": ("passes", ("vision", "projector"), 1.5, 2.2),
    "prefill": ("passes", ("prefill",), 8.5, 10.5),
    "packed pass": ("passes", ("packed pass",), 9.0, 10.5),
    "decode, 1 row": ("passes", ("decode",), 3.9, 4.2),
    "decode and draft, 7 rows": ("passes", ("decode + draft",), 4.1, 4.4),
    "decode in fp8": ("passes-fp8", ("decode",), 2.2, 2.5),
    "action, autoregressive": ("engine-autoregressive", (), 35.0, 36.0),
    "action, a draft that is right": ("engine-speculative_hit", (), 11.5, 12.5),
    "pi0's chunk, two views, 10 steps": (
        "passes-pi0-auto", ("vision", "prefill", "all steps"), 12.0, 15.0
    ),
}  # fmt: skip


def status(folder: Path) -> dict:
    """What was written when the stage ended; {} where it was never run, or not to its end."""
    return read(folder, DONE)


def read(folder: Path, name: str) -> dict:
    try:
        found: dict = json.loads((folder / name).read_text())
    except (OSError, ValueError):
        return {}
    return found


def report(out: Path, stages: dict[str, str]) -> None:
    """table.md for people and report.json for programs, of all stages (name -> group)."""
    whole: dict = {"stages": {}}
    lines = [f"# {out.name}", ""]
    for name, group in stages.items():
        folder = out / name
        found = {"group": group, "end": status(folder)}
        found |= {kind: read(folder, f"{kind}.json") for kind in ("bench", "passes")}
        whole["stages"][name] = found
        whole.setdefault("machine", (found["bench"] or found["passes"]).get("machine"))
        if not whole["machine"]:
            del whole["machine"]
    machine = whole.get("machine") or {}
    shown = [f"{k} {machine[k]}" for k in ("gpu", "cuda", "cpu", "torch") if machine.get(k)]
    lines += ["; ".join(shown) or "nothing measured yet"]
    whole["estimates"] = estimates(whole["stages"])
    if machine.get("gpu"):
        lines += estimates_table(whole["estimates"])
        lines += peers_table(whole["stages"])
    tables, rest = combined(whole["stages"])
    lines += tables
    for name in rest:
        found = whole["stages"][name]
        lines += passes_table(name, found["passes"]) + rows_table(name, found["bench"])
    lines += ["", "## All stages", "", "| stage | ended | s | its last line |", "|---|---|---|---|"]
    for name, found in whole["stages"].items():
        end = found["end"]
        how, last = ended(end), ""
        if name == "tests" or how != "done":
            last = str(end.get("skipped") or end.get("last", "")).replace("|", "/")
        lines.append(f"| {name} | {how} | {end.get('seconds', '')} | {last} |")
    write(out / "table.md", "\n".join(lines) + "\n")
    write(out / "report.json", json.dumps(whole, indent=1) + "\n")


def write(path: Path, text: str) -> None:
    """All of it or nothing: a visit may be cut off at any moment."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def estimates(stages: dict) -> list[dict]:
    """Of each estimate what was measured; ``ms`` None where nothing was yet."""
    out = []
    for name, (stage, passes, low, high) in ESTIMATES.items():
        found = stages.get(stage, {})
        rows = (found.get("passes") or {}).get("passes", {})
        ms, kernels = None, None
        if passes and all(one in rows for one in passes):
            ms = sum(rows[one]["median_ms"] for one in passes)
            counted = [rows[one]["kernels"] for one in passes]
            kernels = None if None in counted else sum(counted)
        elif not passes:
            row = (found.get("bench") or {}).get("decodings", {}).get(stage.partition("-")[2])
            ms = row["median_ms"] if row else None
        out.append({"what": name, "stage": stage, "from_ms": low, "to_ms": high, "ms": ms,
                    "kernels": kernels})  # fmt: skip
    return out


def estimates_table(rows: list[dict]) -> list[str]:
    """What was expected, beside what was found; nothing where nothing was found."""
    if all(row["ms"] is None for row in rows):
        return []
    lines = [
        "",
        "## Measured against estimate",
        "",
        "Expected of an H200 before anything ran on one; other GPUs differ.",
        "",
        "| | expected ms | measured ms | of the expected | kernels |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        ms, middle = row["ms"], (row["from_ms"] + row["to_ms"]) / 2
        lines.append(
            f"| {row['what']} | {row['from_ms']:g} to {row['to_ms']:g} | {number(ms, '{:.2f}')}"
            f" | {number(None if ms is None else ms / middle, '{:.2f}')}"
            f" | {number(row['kernels'], '{}')} |"
        )
    return lines


def passes_table(name: str, found: dict) -> list[str]:
    """Each pass beside its roofline."""
    if not found.get("passes"):
        return []
    lines = [
        "",
        f"## {name}: `{found['checkpoint']}`, {found['dtype']}, {found.get('attention', '')}",
        "",
        f"{found['prompt_tokens']} prompt tokens; the machine reads"
        f" {found['reached_gb_s']:.0f} GB/s (measured). {found.get('remark', '')}".rstrip(),
        "",
        "| pass | new | ms | best | roofline ms | bound by | reached % | operators | kernels |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for key, row in found["passes"].items():
        share = None if row["efficiency"] is None else 100 * row["efficiency"]
        cells = [
            key, str(row["tokens"]), number(row["median_ms"], "{:.3f}"),
            number(row["best_ms"], "{:.3f}"), number(row["roofline_ms"], "{:.3f}"),
            row["bound"] or "-", number(share, "{:.0f}"), number(row["operators"], "{}"),
            number(row["kernels"], "{}"),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines + products_table(found)


def products_table(found: dict) -> list[str]:
    """Which way was taken for which product of these passes, and what lies around it, beside
    torch's."""
    if not found.get("products"):
        return []
    lines = [
        "",
        "| | rows | N x K | way | us | torch us | times faster |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found["products"]:
        us, own, size = one["us"], one["torch_us"], f"{one['count']} x {one['width']}"
        lines.append(
            f"| {one['kind']} | {one['rows']} | {size} | {one['way']} | {us:.1f} | {own:.1f}"
            f" | {own / us:.2f} |"
        )
    return lines


def runs_of(found: dict) -> dict[str, dict]:
    """Rows by run: one of a plain benchmark, several of a sweep or an ablation."""
    if "sweep" in found:
        shapes = [run["shapes"] for run in found["sweep"]]
        names = [f"{s['action_tokens']} tokens, {s['prompt_tokens']} prompt" for s in shapes]
        return dict(zip(names, found["sweep"], strict=True))
    if "compile_ablation" in found:
        return {f"compiled: {k}": run for k, run in found["compile_ablation"].items()}
    return {"": found} if found.get("decodings") else {}


def rows_table(name: str, found: dict) -> list[str]:
    """Rates and latencies of a benchmark's rows."""
    lines = []
    for run_name, result in runs_of(found).items():
        captures = result.get("captures", {}).get("in_service")
        about = [f"`{found['checkpoint']}`", found["dtype"], run_name, result.get("attention", "")]
        lines += ["", f"## {name}: {', '.join(filter(None, about))}", ""]
        if captures is not None:
            lines += [f"CUDA graphs captured in service: {captures}.", ""]
        heads = (
            "median ms",
            "p95 ms",
            "rate Hz",
            "latency ms",
            "passes",
            "times generate",
            "tokens same",
        )
        lines += [f"| row | {' | '.join(heads)} |", f"|---{'|---' * len(heads)}|"]
        keys = ("median_ms", "p95_ms", "rate_hz", "latency_ms", "passes_per_action",
                "speedup_vs_generate", "token_match")  # fmt: skip
        for row_name, row in result["decodings"].items():
            cells = [number(row.get(key), "{:.2f}") for key in keys]
            lines.append(f"| {row_name} | {' | '.join(cells)} |")
    return lines


def bar(stage: str, run: str, row: str, group: str) -> str:
    """Label of a bar: the stage alone, where it has one row."""
    if group in ("engines", "weights", "families"):
        return stage
    return f"{row} ({' '.join(filter(None, (stage, run)))})"


def plot(out: Path) -> bool:
    """plot.png: how much of the roofline each pass reaches, and the rate of each row."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    whole = read(out, "report.json")["stages"]
    passes = {
        f"{key} ({name})": 100 * row["efficiency"]
        for name, found in whole.items()
        for key, row in found["passes"].get("passes", {}).items()
        if row["efficiency"] is not None
    }
    rates = {
        bar(name, run, key, found["group"]): row["rate_hz"]
        for name, found in whole.items()
        for run, result in runs_of(found["bench"]).items()
        for key, row in result["decodings"].items()
        if row.get("rate_hz")
    }
    if not passes and not rates:
        return False
    tall = 0.25 * max(len(passes), len(rates)) + 1.5
    figure = Figure(figsize=(15, tall), layout="constrained")
    for axis, values, label, color in zip(
        figure.subplots(1, 2), (passes, rates),
        ("% of the roofline that a pass reaches", "actions per second"), ("#2a6f97", "#bc4749"),
        strict=True,
    ):  # fmt: skip
        bars = axis.barh(range(len(values)), list(values.values()), color=color)
        axis.bar_label(bars, fmt="%.3g", padding=3, fontsize=8)
        axis.set_yticks(range(len(values)), list(values), fontsize=8)
        axis.set_xlabel(label)
        axis.margins(x=0.12)
        axis.invert_yaxis()
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(out.name, fontsize=10)
    FigureCanvasAgg(figure).print_png(str(out / "plot.png"))
    return True
