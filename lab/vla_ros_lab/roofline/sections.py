"""The parts of a roofline behind its tables: drafts, chunks, a benchmark beside the bound, figures.
Each prints its part and returns it for the line of JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros_lab.roofline import report

if TYPE_CHECKING:
    from vla_ros_lab.roofline.bench_file import BenchFile
    from vla_ros_lab.roofline.decodings import DecodingTime
    from vla_ros_lab.roofline.plots import Point
    from vla_ros_lab.roofline.roofline import Roofline
    from vla_ros_lab.roofline.shapes import ModelShape


def published_plots(folder: Path) -> list[str]:
    from vla_ros_lab.roofline import published
    from vla_ros_lab.roofline.plots import Point

    target, draft = published.both_times()
    measured = published.MEASURED_TARGET_HZ / published.MEASURED_DRAFT_HZ
    points = [
        Point("calculated", published.ALPHA, draft.decode / target.decode),
        Point("measured", published.ALPHA, measured),
    ]
    subtitle = "OpenVLA-7B with MiniVLA as draft on an H100 NVL, figures of the ETH report"
    return draw(folder, points, published.GAMMA, subtitle, (), 30.0)


def cost(roof: Roofline, draft: ModelShape | None) -> float:
    """c of the draft model; the temporal drafter costs nothing."""
    return roof.for_model(draft).decode().seconds / roof.decode().seconds if draft else 0.0


def speculation(
    roof: Roofline, draft: ModelShape | None, alpha: float, gamma: int | None
) -> dict[str, Any]:
    from vla_ros_lab.roofline.report import ms, table
    from vla_ros_lab.roofline.speculation import best_gamma, break_even, fused, speedup

    tokens = roof.model.action_tokens
    gamma, c = gamma or tokens - 1, cost(roof, draft)
    first, verify = roof.prefill(gamma).seconds, roof.decode(gamma + 1).seconds
    vision = roof.vision().seconds + roof.projector().seconds
    plain = vision + roof.prefill().seconds + (tokens - 1) * roof.decode().seconds
    rows = []
    for each in sorted({0.0, 0.275, 0.5, 0.7, 0.9, 1.0, alpha}):
        passes = fused(each, tokens, gamma).passes
        seconds = vision + first + (passes - 1) * verify
        rows.append((
            f"{each:g}", f"{passes:.2f}", ms(seconds), f"{plain / seconds:.2f}",
            f"{speedup(each, gamma, c):.2f}", f"{best_gamma(each, c, tokens - 1)}",
        ))  # fmt: skip
    name = draft.name if draft else "free"
    heads = ("alpha", "passes", "fused ms", "x autoreg.", f"x unfused, {name}", "best gamma")
    even = break_even(gamma, c)
    need = "never" if even is None else f"from alpha {even:.2f}"
    print(f"\nspeculation, gamma {gamma}; draft {name}: c = {c:.3f}, unfused it pays {need}")
    print(table(heads, rows))
    return report.speculation(c, gamma, alpha, tokens)


def left_out(model: ModelShape) -> dict[str, Any]:
    """Decodings that refuse the model, and why; {} where none does."""
    from vla_ros_lab.roofline.decodings import refused

    found = refused(model)
    for name, why in found.items():
        print(f"left out: {name} {why}")
    return {"decodings_left_out": found} if found else {}


def chunks(
    found: tuple[DecodingTime, ...], camera_hz: float, executed: int | None
) -> dict[str, Any]:
    """Actions a second that a chunk gives, and their age."""
    from vla_ros_lab.roofline.decodings import served

    given = {s.name: served(s, camera_hz, executed) for s in found}
    columns = report.served_columns(given, found[0], camera_hz)
    print(f"\n{columns.table(found)}")
    return {s.name: columns.json(s) for s in found}


def recursive_head(
    roof: Roofline, found: tuple[DecodingTime, ...], alpha: float, coverage: float | None
) -> dict[str, Any]:
    """Costs of the head, and its gain by coverage."""
    from vla_ros_lab.roofline.decodings import head_time, recursive_decoding

    times = {s.name: s for s in found}
    given = times["speculative_head"]
    head = head_time(roof)
    print(f"\n{report.head_line(head, given, coverage is None)}")
    rows = [recursive_decoding(roof, alpha, c) for c in (0.5, 0.6, 0.7, 0.8, 0.9)]
    columns = report.coverage_columns(times["autoregressive"])
    print(columns.table([*rows, given]))
    return {
        "width": head.width,
        "level": report.STAGES.json(head.level),
        "taps": report.STAGES.json(head.taps),
        "levels": given.draft_levels,
        "coverage": given.coverage,
        "coverage_assumed": coverage is None,
        "by_coverage": [columns.json(s) for s in rows],
    }


def compare(roof: Roofline, bench: BenchFile, draft: ModelShape | None) -> dict[str, Any]:
    from vla_ros_lab.roofline.compare import compare_decodings, compare_stages

    by_decoding = compare_decodings(roof, bench, draft)
    by_stage = compare_stages(roof, bench)
    print(f"\n{bench.path}: {bench.checkpoint} on {bench.machine or bench.device}")
    decodings, stages = map(report.efficiency_columns, ("decoding", "stage"))
    print(decodings.table(by_decoding))
    if by_stage:
        print(f"\n{stages.table(by_stage)}")
    return {
        "decodings": {e.name: decodings.json(e) for e in by_decoding},
        "stages": {e.name: stages.json(e) for e in by_stage},
    }


def operating_points(roof: Roofline, draft: ModelShape | None, alpha: float) -> list[Point]:
    """The operating points of the temporal drafter and of a draft model."""
    from vla_ros_lab.roofline.plots import Point

    points = [Point("temporal", alpha, 0.0)]
    return [*points, Point(draft.name, alpha, cost(roof, draft))] if draft else points


def draw(
    folder: Path, points: Sequence[Point], gamma: int, subtitle: str,
    found: tuple[DecodingTime, ...], camera_hz: float,
) -> list[str]:  # fmt: skip
    from vla_ros_lab.roofline import plots

    paths = []
    if points:
        paths.append(plots.plot_landscape(folder / "landscape.png", gamma, points, subtitle))
        paths.append(plots.plot_break_even(folder / "break_even.png", points, subtitle))
    if found:
        paths.append(plots.plot_rate_age(folder / "rate_age.png", found, camera_hz, subtitle))
    for path in paths:
        print(f"wrote {path}")
    return [str(path) for path in paths]
