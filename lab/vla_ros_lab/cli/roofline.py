"""`vla-ros roofline`: what a model can reach on a device, and whether a way of decoding can pay."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.cli.arguments import Verbs, add_verb
from vla_ros.core.console import print_json
from vla_ros.core.errors import UserError, user_errors
from vla_ros.core.names import known_or_nearest

if TYPE_CHECKING:
    from vla_ros_lab.roofline.bench_file import BenchFile
    from vla_ros_lab.roofline.devices import Device
    from vla_ros_lab.roofline.roofline import Roofline
    from vla_ros_lab.roofline.shapes import ModelShape
    from vla_ros_lab.roofline.work import Precision


# What `vla-ros roofline` and `vla-ros advise` share: model, device, formats, from options.


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Options that choose what is calculated."""
    add = parser.add_argument
    add("--model", help="a known shape (see --list) or a checkpoint directory (openvla-7b)")
    add("--draft", metavar="MODEL", help="the draft model, or none (minivla for openvla-7b)")
    add("--devices", type=Path, metavar="FILE", help="a table of devices instead of the shipped")
    add("--dtype", help="bf16, fp32, fp8, int8, int4, ternary, or decoder=int4,vision=fp8 (bf16)")
    add("--weights", metavar="F", help="instead: formats as this engine stores and computes them,"
        " such as int8 or decoder=int4,head=fp8")  # fmt: skip
    add("--prompt-tokens", type=int, metavar="N", help="of the whole prompt, images included")
    add("--images", type=int, metavar="N", help="cameras the model sees")
    add("--chunk", type=int, metavar="C", help="a policy that decodes C actions, token by token")
    add("--alpha", type=float, default=0.5, help="acceptance of drafts, 0 to 1 (0.5)")
    add("--head", action="store_true", help="a draft head was trained: vla-ros train --head")
    add(
        "--coverage",
        type=float,
        metavar="C",
        help="--head of a chunk policy: chance that the right token is among those a node has"
        " behind it (what --alpha gives)",
    )
    add("--executed", type=int, metavar="S", help="actions executed of each chunk")
    add("--gamma", type=int, help="longest draft (the rest of the action)")
    add("--peak", action="store_true", help="the maker's rates, not the achieved ones")
    add(
        "--accounting",
        choices=("stage", "operator"),
        default="stage",
        help="count each stage as one fused kernel, or operator by operator (stage)",
    )


def bench_of(path: Path | None) -> BenchFile | None:
    """The benchmark that was given, if any."""
    from vla_ros_lab.roofline.bench_file import read_bench

    with user_errors(ValueError):
        return None if path is None else read_bench(path)


def model_of(args: argparse.Namespace, bench: BenchFile | None = None) -> ModelShape:
    """The chosen model, with the chosen prompt and images."""
    from vla_ros_lab.roofline.compare import fit_shape
    from vla_ros_lab.roofline.shapes import load_model

    measured = bench.checkpoint if bench else ""
    try:
        model = load_model(args.model or measured or "openvla-7b")
    except ValueError as error:
        if bench is None or args.model:
            raise UserError(str(error)) from None
        raise UserError(f"{bench.path} is of {measured!r}: give --model; {error}") from None
    with user_errors(ValueError):
        if args.images is not None:
            if args.images < 1:
                raise ValueError(f"--images {args.images}: give at least 1")
            model = model.with_images(args.images)
        if args.chunk is not None:
            model = model.with_chunk(args.chunk)
        if bench:
            model = fit_shape(model, bench)
        model = model.with_prompt(args.prompt_tokens) if args.prompt_tokens else model
    _check_chunk_options(args, model)
    return model


def _check_chunk_options(args: argparse.Namespace, model: ModelShape) -> None:
    """Refuse options about chunks that do not fit the model."""
    if args.coverage is not None and not (args.head and model.kind == "tokens" and model.chunk > 1):
        raise UserError(
            "--coverage is about the recursive head of a policy that decodes chunks token by token:"
            " give --head, and --chunk or such a policy"
        )
    if args.executed is not None and not 1 <= args.executed <= model.chunk:
        raise UserError(
            f"--executed {args.executed}: a chunk of {model.name} has {model.chunk} action(s)"
        )


def draft_of(args: argparse.Namespace, model: ModelShape) -> ModelShape | None:
    """The draft model on the same prompt, or None."""
    from vla_ros_lab.roofline.shapes import load_model

    usual = "minivla" if model.name == "openvla-7b" and model.chunk == 1 else "none"
    name = args.draft or usual
    if name == "none" or model.kind != "tokens":
        return None
    with user_errors(ValueError):
        draft = load_model(name)
        if draft.kind != "tokens":
            raise ValueError(f"{name} makes no action tokens: it cannot draft")
        if args.chunk is not None:
            draft = draft.with_chunk(args.chunk)
        if draft.chunk != model.chunk:
            raise ValueError(
                f"{name} makes {draft.chunk} action(s), {model.name} {model.chunk}: it cannot draft"
            )
        return draft.with_prompt(draft.images * draft.vision_tokens + model.text_tokens)


def precision_of(args: argparse.Namespace, bench: BenchFile | None = None) -> Precision:
    """The chosen formats."""
    from vla_ros_lab.roofline.work import parse_precision, precision_of_weights

    if args.weights:
        if args.dtype:
            raise UserError("--dtype or --weights: one of them")
        with user_errors(ValueError):
            return precision_of_weights(args.weights)
    try:
        return parse_precision(args.dtype or (bench.dtype if bench else "bf16"))
    except ValueError as error:
        raise UserError(f"--dtype: {error}") from None


def devices_of(args: argparse.Namespace) -> dict[str, Device]:
    """The table of devices."""
    from vla_ros.core.resources import config_path
    from vla_ros_lab.roofline.devices import load_devices

    with user_errors(ValueError, FileNotFoundError):
        return load_devices(args.devices or config_path("devices.yaml"))


def device_of(
    name: str, args: argparse.Namespace, model: ModelShape, bench: BenchFile | None = None
) -> Device:
    """One device by name; ``this`` is measured now, on what the model reads in a pass."""
    from vla_ros_lab.roofline import roofline as stages
    from vla_ros_lab.roofline.devices import measure

    if name == "this":
        precision = precision_of(args, bench)
        last = stages.flow_prefix(model) if model.kind != "tokens" else stages.decode(model)
        read = sum(precision.traffic(op, activations=False) for op in last)
        gpu = bench is None or bench.device.startswith("cuda")
        return measure(read, threads=bench.threads if bench else None, gpu=gpu)
    known = devices_of(args)
    if name not in known:
        raise UserError(f"no device {name!r}{known_or_nearest(name, [*known, 'this', 'all'])}")
    return known[name]


def roofline_of(
    args: argparse.Namespace, model: ModelShape, device: Device, bench: BenchFile | None = None
) -> Roofline:
    """Model and device together; refuses a format the device cannot compute in."""
    from vla_ros_lab.roofline.roofline import Roofline

    rates = "peak" if args.peak else "achieved"
    roof = Roofline(model, device, precision_of(args, bench), args.accounting, rates)
    with user_errors(ValueError):
        roof.stages()
    return roof


def check_draft_options(args: argparse.Namespace) -> None:
    """Acceptance and draft length within their bounds."""
    if not 0.0 <= args.alpha <= 1.0:
        raise UserError(f"--alpha {args.alpha:g}: it is a probability, 0 to 1")
    if args.coverage is not None and not 0.0 <= args.coverage <= 1.0:
        raise UserError(f"--coverage {args.coverage:g}: it is a probability, 0 to 1")
    if args.executed is not None and args.executed < 1:
        raise UserError(f"--executed {args.executed}: give at least 1")
    if args.gamma is not None and args.gamma < 1:
        raise UserError(f"--gamma {args.gamma}: give at least 1")


DESCRIPTION = """\
Calculate, without running it, how fast a VLA can be on a device: operations, bytes and time of
each stage; rate, latency and passes of each decoding; what a draft must be worth to pay.
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


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "roofline", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add_model_options(parser)
    add("--device", help="a known device, this (measured now), or all (all)")
    add("--camera-hz", type=float, default=30.0, help="for clocked latency (30)")
    add("--compare", type=Path, metavar="BENCH", help="output of `vla-ros bench` to put beside")
    add("--plots", type=Path, metavar="DIR", help="write three PNG images there")
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
        from vla_ros.core.console import rounded

        print_json(rounded(result))
    return 0


def _list(args: argparse.Namespace) -> dict[str, Any]:
    from vla_ros_lab.roofline import report
    from vla_ros_lab.roofline.shapes import KNOWN, load_model

    known = devices_of(args)
    models = report.model_list(map(load_model, KNOWN))
    print(models, report.device_list(known.values()), sep="\n\n")
    return {"models": list(KNOWN), "devices": list(known)}


def _reproduce(args: argparse.Namespace) -> dict[str, Any]:
    from vla_ros_lab.roofline import published, report, sections

    figures = {
        "table_5": published.table_5(),
        "table_6": published.table_6(),
        "measured": (published.measured_speedup(),),
    }
    print("The ETH report's inputs: H100 NVL, 3958 GB/s, 989 TFLOPS, bf16, 281 tokens, gamma 6\n")
    for title, found in figures.items():
        print(f"{title.replace('_', ' ').capitalize()}\n{report.FIGURES.table(found)}\n")
    print(f"Where a figure is not what a roofline gives\n{report.not_reproduced()}")
    result: dict[str, Any] = {
        name: list(map(report.FIGURES.json, f)) for name, f in figures.items()
    }
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
    raise UserError(f"{bench.path} was measured on {bench.machine!r}: give --device")


def _all_devices(
    args: argparse.Namespace, model: ModelShape, draft: ModelShape | None
) -> dict[str, Any]:
    from vla_ros_lab.roofline import report, sections
    from vla_ros_lab.roofline.decodings import decodings

    precision_of(args)
    roofs, refused = [], {}
    for device in devices_of(args).values():
        try:
            roofs.append(roofline_of(args, model, device))
        except UserError as error:
            refused[device.name] = str(error)
    found = [
        decodings(roof, args.alpha, args.gamma, draft, args.head, args.coverage) for roof in roofs
    ]
    rates = "peak" if args.peak else "achieved"
    print(
        f"{model.name}, {args.weights or args.dtype or 'bf16'}, {model.images} image(s),"
        f" {model.prompt} prompt tokens, {rates} rates; ms an answer (answers/s), alpha"
        f" {args.alpha:g}\n"
    )
    print(report.device_table(roofs, found))
    missing = sections.left_out(model)
    covered = [s.coverage for times in found for s in times if s.coverage is not None]
    if covered and args.coverage is None:
        print(
            f"assumed: the head's coverage is {min(covered):.2f} to {max(covered):.2f}, from"
            " --alpha; give --coverage if you know it"
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
        **missing,
    }


def _one_device(
    args: argparse.Namespace, model: ModelShape, draft: ModelShape | None, name: str,
    bench: BenchFile | None,
) -> dict[str, Any]:  # fmt: skip
    from vla_ros_lab.roofline import report, sections
    from vla_ros_lab.roofline.decodings import decodings

    roof = roofline_of(args, model, device_of(name, args, model, bench), bench)
    found = decodings(roof, args.alpha, args.gamma, draft, args.head, args.coverage)
    print(report.heading(roof), report.STAGES.table(roof.stages()), sep="\n\n")
    print(f"\n{report.decoding_columns(args.camera_hz, found[0]).table(found)}")
    result = report.roofline(roof, found, args.camera_hz)
    result |= sections.left_out(model)
    if model.chunk > 1:
        result["chunk"] = sections.chunks(found, args.camera_hz, args.executed)
    print(f"\n{report.share_table(found)}")
    if model.kind == "tokens":
        result["speculation"] = sections.speculation(roof, draft, args.alpha, args.gamma)
        if args.head and model.chunk > 1:
            result["draft_head"] = sections.recursive_head(roof, found, args.alpha, args.coverage)
    if bench:
        result["compare"] = sections.compare(roof, bench, draft)
    if args.plots:
        gamma = args.gamma or model.action_tokens - 1
        points = (
            sections.operating_points(roof, draft, args.alpha) if model.kind == "tokens" else []
        )
        subtitle = f"{model.name} on {roof.device.title}, decoder {roof.precision.decoder}"
        result["plots"] = sections.draw(args.plots, points, gamma, subtitle, found, args.camera_hz)
    return result
