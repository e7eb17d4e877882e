"""`vla-ros roofline`: what a model can reach on a device, and whether a schedule can pay."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.cli.roofline import sections
from vla_ros.cli.roofline.options import (
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
from vla_ros.errors import UserError

if TYPE_CHECKING:
    from vla_ros.analysis.bench_file import BenchFile
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
  vla-ros roofline --model openvla-7b --chunk 8 --head --device h200
                                                    chunks token by token, a recursive draft head
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
        result["plots"] = sections.published_plots(args.plots)
    return result


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
    machine = bench.machine.lower()
    for name in devices_of(args):
        words = [word for word in name.split("-") if word not in ("sxm", "64")]
        if all(word in machine for word in words) and not (
            "pcie" in machine and name.endswith("sxm")
        ):
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
    found = [
        schedules(roof, args.alpha, args.gamma, draft, args.head, args.coverage) for roof in roofs
    ]
    rates = "peak" if args.peak else "achieved"
    print(
        f"{model.name}, {args.weights or args.dtype or 'bf16'}, {model.images} image(s),"
        f" {model.prompt} prompt tokens, {rates} rates; ms an answer (answers/s), alpha"
        f" {args.alpha:g}\n"
    )
    print(tables.device_table(roofs, found))
    left_out = sections.left_out(model)
    covered = [s.coverage for times in found for s in times if s.coverage is not None]
    if covered and args.coverage is None:
        print(
            f"assumed: the head's coverage is {min(covered):.2f} to {max(covered):.2f}, from"
            " --alpha; say --coverage if you know it"
        )
    for line in refused.values():
        print(f"left out: {line}")
    print("\nOne device in full: --device NAME. Where the rates come from: --list.")
    return {
        "devices": {
            roof.device.name: report.roofline(roof, times, args.camera_hz)
            for roof, times in zip(roofs, found, strict=True)
        },
        "left_out": refused,
        **left_out,
    }


def _one_device(
    args: argparse.Namespace, model: ModelShape, draft: ModelShape | None, name: str,
    bench: BenchFile | None,
) -> dict[str, Any]:  # fmt: skip
    from vla_ros.analysis import report, tables
    from vla_ros.analysis.schedules import schedules

    roof = roofline_of(args, model, device_of(name, args, model, bench), bench)
    found = schedules(roof, args.alpha, args.gamma, draft, args.head, args.coverage)
    print(tables.heading(roof), tables.stage_table(roof.stages()), sep="\n\n")
    print(f"\n{tables.schedule_table(found, args.camera_hz)}")
    result = report.roofline(roof, found, args.camera_hz)
    result |= sections.left_out(model)
    if model.chunk > 1:
        result["chunk"] = sections.chunks(found, args.camera_hz, args.executed)
    print(f"\n{tables.share_table(found)}")
    if model.kind == "tokens":
        result["speculation"] = sections.speculation(args, roof, draft)
        if args.head and model.chunk > 1:
            result["draft_head"] = sections.recursive_head(args, roof, found)
    if bench:
        result["compare"] = sections.compare(roof, bench, draft)
    if args.plots:
        gamma = args.gamma or model.action_tokens - 1
        points = sections.operating_points(args, roof, draft) if model.kind == "tokens" else []
        subtitle = f"{model.name} on {roof.device.title}, decoder {roof.precision.decoder}"
        result["plots"] = sections.draw(args.plots, points, gamma, subtitle, found, args.camera_hz)
    return result
