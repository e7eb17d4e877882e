"""`vla-ros roofline`: what a model can reach on a device, and whether a schedule can pay."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.cli import UserError
from vla_ros.cli.roofline_options import (
    add_model_options,
    bench_of,
    check_draft_options,
    device_of,
    devices_of,
    draft_of,
    model_of,
    precision_of,
    roofline_of,
)

if TYPE_CHECKING:
    from vla_ros.analysis.bench_file import BenchFile
    from vla_ros.analysis.roofline import Roofline
    from vla_ros.analysis.schedules import ScheduleTime
    from vla_ros.analysis.shapes import ModelShape

DESCRIPTION = """\
Calculate, without running it, how fast a VLA can be on a device: operations, bytes and time of
each stage; rate, latency and passes of each schedule; what a draft must be worth to pay.
Bounds, not promises: `--compare` puts a benchmark beside them."""

EPILOG = """\
examples:
  vla-ros roofline                                  OpenVLA-7B on every known device
  vla-ros roofline --device orin-64 --dtype int4    one device in full, int4 weights
  vla-ros roofline --model small --device this      this machine, measured on the spot
  vla-ros roofline --compare bench.json             measured beside possible
  vla-ros roofline --device h200 --plots out/       landscape, break-even and rate against age
  vla-ros roofline --reproduce                      the ETH report's tables, from its inputs"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The options of this verb."""
    parser = verbs.add_parser(
        "roofline",
        help="what a model can reach on a device",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add_model_options(parser)
    add("--device", help="a known device, this (measured now), or all (all)")
    add("--camera-hz", type=float, default=30.0, help="for clocked latency (30)")
    add("--compare", type=Path, metavar="BENCH", help="output of `vla-ros bench` to put beside")
    add("--plots", type=Path, metavar="DIR", help="write three PNG pictures there")
    add("--reproduce", action="store_true", help="the ETH report's tables 5 and 6")
    add("--list", action="store_true", help="known models and devices, with their sources")
    add("--json", action="store_true", help="add everything as one last line of JSON")


def run(args: argparse.Namespace) -> int:
    """Calculate and print. Returns the exit status."""
    check_draft_options(args)
    if not args.camera_hz > 0:
        raise UserError(f"--camera-hz {args.camera_hz:g}: must be above 0")
    if args.list:
        result = _list(args)
    elif args.reproduce:
        result = _reproduce(args)
    else:
        result = _calculate(args)
    if args.json:
        from vla_ros.analysis.report import rounded

        print(json.dumps(rounded(result)))
    return 0


def _list(args: argparse.Namespace) -> dict[str, Any]:
    from vla_ros.analysis import tables
    from vla_ros.analysis.models import MODELS

    known = devices_of(args)
    print(tables.model_list(MODELS.values()), tables.device_list(known.values()), sep="\n\n")
    return {"models": list(MODELS), "devices": list(known)}


def _reproduce(args: argparse.Namespace) -> dict[str, Any]:
    from vla_ros.analysis import published, report, tables

    figures = {
        "table_5": published.table_5(),
        "table_6": published.table_6(),
        "measured": (published.measured_speedup(),),
    }
    print("The ETH report's inputs: H100 NVL, 3958 GB/s, 989 TFLOPS, bf16, 281 tokens, gamma 6\n")
    for title, found in figures.items():
        print(f"{title.replace('_', ' ').capitalize()}\n{tables.figure_table(found)}\n")
    print(f"Where a figure is not what a roofline gives\n{tables.not_reproduced()}")
    result: dict[str, Any] = {name: report.figures(f) for name, f in figures.items()}
    result["remarks"] = list(published.NOT_REPRODUCED)
    if args.plots:
        result["plots"] = _published_plots(args.plots)
    return result


def _published_plots(folder: Path) -> list[str]:
    from vla_ros.analysis import published
    from vla_ros.analysis.models import MINIVLA, OPENVLA

    target, draft = published.genz_times(OPENVLA), published.genz_times(MINIVLA)
    measured = published.MEASURED_TARGET_HZ / published.MEASURED_DRAFT_HZ
    points = [
        ("calculated", published.ALPHA, draft.decode / target.decode),
        ("measured", published.ALPHA, measured),
    ]
    subtitle = "OpenVLA-7B with MiniVLA as draft on an H100 NVL, figures of the ETH report"
    return _draw(folder, points, published.GAMMA, subtitle, (), 30.0)


def _calculate(args: argparse.Namespace) -> dict[str, Any]:
    bench = bench_of(args.compare)
    model = model_of(args, bench)
    draft = draft_of(args, model)
    name = args.device or (_device_of_bench(bench, args) if bench else "all")
    if name == "all":
        if args.plots or bench:
            raise UserError("--plots and --compare need one --device")
        return _all_devices(args, model, draft)
    return _one_device(args, model, draft, name, bench)


def _device_of_bench(bench: BenchFile, args: argparse.Namespace) -> str:
    """``this`` for a benchmark of a CPU, else the known device that the GPU's name names."""
    if not bench.device.startswith("cuda"):
        return "this"
    for name in devices_of(args):
        words = name.replace("-", " ").split()
        if all(word in bench.machine.lower() for word in words if word not in ("sxm", "nvl")):
            return name
    raise UserError(f"{bench.path} was measured on {bench.machine!r}: say which --device that is")


def _all_devices(
    args: argparse.Namespace, model: ModelShape, draft: ModelShape | None
) -> dict[str, Any]:
    from vla_ros.analysis import report, tables
    from vla_ros.analysis.schedules import schedules

    precision_of(args)
    roofs, refused = [], {}
    for device in devices_of(args).values():
        try:
            roofs.append(roofline_of(args, model, device))
        except UserError as error:
            refused[device.name] = str(error)
    found = [schedules(roof, args.alpha, args.gamma, draft) for roof in roofs]
    rates = "peak" if args.peak else "achieved"
    print(
        f"{model.name}, {args.dtype or 'bf16'}, {model.images} image(s), {model.prompt} prompt"
        f" tokens, {rates} rates; ms an answer (answers/s), alpha {args.alpha:g}\n"
    )
    print(tables.device_table(roofs, found))
    for line in refused.values():
        print(f"left out: {line}")
    print("\nOne device in full: --device NAME. Where the rates come from: --list.")
    return {
        "devices": {
            roof.device.name: report.roofline(roof, times, args.camera_hz)
            for roof, times in zip(roofs, found, strict=True)
        },
        "left_out": refused,
    }


def _one_device(
    args: argparse.Namespace, model: ModelShape, draft: ModelShape | None, name: str,
    bench: BenchFile | None,
) -> dict[str, Any]:  # fmt: skip
    from vla_ros.analysis import report, tables
    from vla_ros.analysis.schedules import schedules

    roof = roofline_of(args, model, device_of(name, args, model, bench), bench)
    found = schedules(roof, args.alpha, args.gamma, draft)
    print(tables.heading(roof), tables.stage_table(roof.stages()), sep="\n\n")
    print(f"\n{tables.schedule_table(found, args.camera_hz)}")
    print(f"\n{tables.share_table(found)}")
    result = report.roofline(roof, found, args.camera_hz)
    if model.kind == "tokens":
        result["speculation"] = _speculation(args, roof, draft)
    if bench:
        result["compare"] = _compare(roof, bench, draft)
    if args.plots:
        gamma = args.gamma or model.action_tokens - 1
        points = _points(args, roof, draft) if model.kind == "tokens" else []
        subtitle = f"{model.name} on {roof.device.title}, decoder {roof.precision.decoder}"
        result["plots"] = _draw(args.plots, points, gamma, subtitle, found, args.camera_hz)
    return result


def _cost(roof: Roofline, draft: ModelShape | None) -> float:
    """c of the draft model; the temporal drafter costs nothing."""
    return roof.for_model(draft).decode().seconds / roof.decode().seconds if draft else 0.0


def _speculation(
    args: argparse.Namespace, roof: Roofline, draft: ModelShape | None
) -> dict[str, Any]:
    from vla_ros.analysis import report
    from vla_ros.analysis.speculation import best_gamma, break_even, fused, speedup
    from vla_ros.analysis.tables import ms, table

    tokens = roof.model.action_tokens
    gamma, c = args.gamma or tokens - 1, _cost(roof, draft)
    first, verify = roof.prefill(gamma).seconds, roof.decode(gamma + 1).seconds
    vision = roof.vision().seconds + roof.projector().seconds
    plain = vision + roof.prefill().seconds + (tokens - 1) * roof.decode().seconds
    rows = []
    for alpha in sorted({0.0, 0.275, 0.5, 0.7, 0.9, 1.0, args.alpha}):
        passes = fused(alpha, tokens, gamma).passes
        seconds = vision + first + (passes - 1) * verify
        rows.append((
            f"{alpha:g}", f"{passes:.2f}", ms(seconds), f"{plain / seconds:.2f}",
            f"{speedup(alpha, gamma, c):.2f}", f"{best_gamma(alpha, c, tokens - 1)}",
        ))  # fmt: skip
    name = draft.name if draft else "free"
    heads = ("alpha", "passes", "fused ms", "x autoreg.", f"x unfused, {name}", "best gamma")
    even = break_even(gamma, c)
    need = "never" if even is None else f"from alpha {even:.2f}"
    print(f"\nspeculation, gamma {gamma}; draft {name}: c = {c:.3f}, unfused it pays {need}")
    print(table(heads, rows))
    return report.speculation(c, gamma, args.alpha, tokens)


def _compare(roof: Roofline, bench: BenchFile, draft: ModelShape | None) -> dict[str, Any]:
    from vla_ros.analysis import report, tables
    from vla_ros.analysis.compare import compare_schedules, compare_stages

    by_schedule = compare_schedules(roof, bench, draft)
    by_stage = compare_stages(roof, bench)
    print(f"\n{bench.path}: {bench.checkpoint} on {bench.machine or bench.device}")
    print(tables.efficiency_table("schedule", by_schedule))
    if by_stage:
        print(f"\n{tables.efficiency_table('stage', by_stage)}")
    return {
        "schedules": report.efficiencies(by_schedule),
        "stages": report.efficiencies(by_stage),
    }


def _points(
    args: argparse.Namespace, roof: Roofline, draft: ModelShape | None
) -> list[tuple[str, float, float]]:
    points = [("temporal", args.alpha, 0.0)]
    return [*points, (draft.name, args.alpha, _cost(roof, draft))] if draft else points


def _draw(
    folder: Path, points: list[tuple[str, float, float]], gamma: int, subtitle: str,
    found: tuple[ScheduleTime, ...], camera_hz: float,
) -> list[str]:  # fmt: skip
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError("--plots needs matplotlib: pip install 'vla_ros[plots]'") from None
    from vla_ros.analysis import plots

    marks = [plots.Point(*point) for point in points]
    paths = []
    if marks:
        paths.append(plots.plot_landscape(folder / "landscape.png", gamma, marks, subtitle))
        paths.append(plots.plot_break_even(folder / "break_even.png", marks, subtitle))
    if found:
        paths.append(plots.plot_rate_age(folder / "rate_age.png", found, camera_hz, subtitle))
    for path in paths:
        print(f"wrote {path}")
    return [str(path) for path in paths]
