"""What `vla-ros roofline` and `vla-ros advise` share: model, device, formats, from options."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vla_ros.errors import UserError

if TYPE_CHECKING:
    from vla_ros.analysis.bench_file import BenchFile
    from vla_ros.analysis.devices import Device
    from vla_ros.analysis.roofline import Roofline
    from vla_ros.analysis.shapes import ModelShape
    from vla_ros.analysis.work import Precision


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
    add("--chunk", type=int, metavar="C", help="a policy that says C actions, token by token")
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
    from vla_ros.analysis.bench_file import read_bench

    try:
        return None if path is None else read_bench(path)
    except ValueError as error:
        raise UserError(str(error)) from None


def model_of(args: argparse.Namespace, bench: BenchFile | None = None) -> ModelShape:
    """The chosen model, with the chosen prompt and images."""
    from vla_ros.analysis.compare import fit_shape
    from vla_ros.analysis.model_files import load_model

    measured = bench.checkpoint if bench else ""
    try:
        model = load_model(args.model or measured or "openvla-7b")
    except ValueError as error:
        if bench is None or args.model:
            raise UserError(str(error)) from None
        raise UserError(f"{bench.path} is of {measured!r}: say --model; {error}") from None
    try:
        if args.images is not None:
            if args.images < 1:
                raise ValueError(f"--images {args.images}: give at least 1")
            model = model.with_images(args.images)
        if args.chunk is not None:
            model = model.with_chunk(args.chunk)
        if bench:
            model = fit_shape(model, bench)
        model = model.with_prompt(args.prompt_tokens) if args.prompt_tokens else model
    except ValueError as error:
        raise UserError(str(error)) from None
    _check_chunk_options(args, model)
    return model


def _check_chunk_options(args: argparse.Namespace, model: ModelShape) -> None:
    """What is about chunks fits the model's."""
    if args.coverage is not None and not (args.head and model.kind == "tokens" and model.chunk > 1):
        raise UserError(
            "--coverage is about the recursive head of a policy that says chunks token by token:"
            " give --head, and --chunk or such a policy"
        )
    if args.executed is not None and not 1 <= args.executed <= model.chunk:
        raise UserError(
            f"--executed {args.executed}: a chunk of {model.name} has {model.chunk} action(s)"
        )


def draft_of(args: argparse.Namespace, model: ModelShape) -> ModelShape | None:
    """The draft model on the same prompt, or None."""
    from vla_ros.analysis.model_files import load_model

    usual = "minivla" if model.name == "openvla-7b" and model.chunk == 1 else "none"
    name = args.draft or usual
    if name == "none" or model.kind != "tokens":
        return None
    try:
        draft = load_model(name)
        if draft.kind != "tokens":
            raise ValueError(f"{name} makes no action tokens: it cannot draft")
        if args.chunk is not None:
            draft = draft.with_chunk(args.chunk)
        if draft.chunk != model.chunk:
            raise ValueError(
                f"{name} says {draft.chunk} action(s), {model.name} {model.chunk}: it cannot draft"
            )
        return draft.with_prompt(draft.images * draft.vision_tokens + model.text_tokens)
    except ValueError as error:
        raise UserError(str(error)) from None


def precision_of(args: argparse.Namespace, bench: BenchFile | None = None) -> Precision:
    """The chosen formats."""
    from vla_ros.analysis.work import parse_precision, precision_of_weights

    if args.weights:
        if args.dtype:
            raise UserError("--dtype or --weights: one of them")
        try:
            return precision_of_weights(args.weights)
        except ValueError as error:
            raise UserError(str(error)) from None
    try:
        return parse_precision(args.dtype or (bench.dtype if bench else "bf16"))
    except ValueError as error:
        raise UserError(f"--dtype: {error}") from None


def devices_of(args: argparse.Namespace) -> dict[str, Device]:
    """The table of devices."""
    from vla_ros.analysis.devices import load_devices
    from vla_ros.resources import config_path

    try:
        return load_devices(args.devices or config_path("devices.yaml"))
    except (ValueError, FileNotFoundError) as error:
        raise UserError(str(error)) from None


def device_of(
    name: str, args: argparse.Namespace, model: ModelShape, bench: BenchFile | None = None
) -> Device:
    """One device by name; ``this`` is measured now, on what the model reads in a pass."""
    from vla_ros.analysis import stages
    from vla_ros.analysis.machine import measure

    if name == "this":
        precision = precision_of(args, bench)
        last = stages.flow_prefix(model) if model.kind != "tokens" else stages.decode(model)
        read = sum(precision.traffic(op, activations=False) for op in last)
        gpu = bench is None or bench.device.startswith("cuda")
        return measure(read, threads=bench.threads if bench else None, gpu=gpu)
    known = devices_of(args)
    if name not in known:
        raise UserError(f"no device {name!r}: there are {', '.join(known)}, this, all")
    return known[name]


def roofline_of(
    args: argparse.Namespace, model: ModelShape, device: Device, bench: BenchFile | None = None
) -> Roofline:
    """Model and device together; refuses a format the device cannot compute in."""
    from vla_ros.analysis.roofline import Roofline

    rates = "peak" if args.peak else "achieved"
    roof = Roofline(model, device, precision_of(args, bench), args.accounting, rates)
    try:
        roof.stages()
    except ValueError as error:
        raise UserError(str(error)) from None
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
