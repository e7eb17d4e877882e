"""`vla-ros gate`: a policy in a lower precision held to itself in float32."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.cli.defaults import CHECKPOINT, refuse_unreadable
from vla_ros.errors import UserError

if TYPE_CHECKING:
    from vla_ros.policies.base import PolicySpec
    from vla_ros.precision.judge import Thresholds
    from vla_ros.precision.result import Result
    from vla_ros.precision.run import Broken

FRAMES = 24
DESCRIPTION = """\
Is a policy in a lower precision still the same policy? It and its float32 original look at the
same frames. Compared are: every stage (pixels, vision, projector, each layer, logits, or velocities
of a flow policy), the tokens, the actions in mm, degrees and opening of the gripper, and every
discrete choice: which position a patch or a token was given, which token won, which side of its
middle the gripper is on. Without frames of yours, the built-in simulation renders some."""

EPILOG = """\
The verdict is kept with the checkpoint's hash: in its folder, or in the cache where that cannot be
written. A policy node with the parameter require_gate runs only what passed.

exit status: 0 it passed, 1 it did not, 2 it could not be judged

examples:
  vla-ros gate --dtype bfloat16
  vla-ros gate --weights int4
  vla-ros gate --checkpoint DIR --dtype bfloat16 --device cuda --bag run.mcap --html gate.html"""


def add_parser(verbs: Any) -> None:
    """The options of this verb."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "gate",
        help="is a policy in a lower precision still the same policy?",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--checkpoint", default=CHECKPOINT, metavar="C", help=f"({CHECKPOINT})")
    add("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16",
        help="of what is measured (bfloat16)")  # fmt: skip
    add("--weights", default="", metavar="F", help="formats of the weights: int8, int4, fp8, or"
        " such as decoder=int4,head=int8 (as stored)")  # fmt: skip
    add("--reference", default="", metavar="C", help="what it is held to (the same checkpoint; of"
        " one that `vla-ros quantize` made, the one that it was made of)")  # fmt: skip
    add("--device", default="cpu", help="torch device, of both (cpu)")
    add("--unnorm-key", default="", metavar="KEY", help="whose action statistics")
    add("--tokenizer", default="", metavar="DIR", help="flow policies: of the language model")
    add("--threads", type=int, default=0, metavar="N", help="compute threads (torch's choice)")
    add("--html", type=Path, metavar="FILE", help="write a page with a picture of every stage")
    add("--json", action="store_true", help="end with one line of JSON on stdout")
    seen = parser.add_argument_group("frames, the tabletop's where none are given").add_argument
    seen("--frames", type=int, default=FRAMES, metavar="N", help=f"how many ({FRAMES})")
    seen("--bag", type=Path, metavar="BAG", help="evenly of a recording")
    seen("-r", "--remap", action="append", default=[], metavar="ROLE=TOPIC", help="of the bag, such"
         " as image=/camera/color")  # fmt: skip
    seen("--images", type=Path, metavar="FILE", help=".npz with uint8 images [N, h, w, 3]")
    seen("--synthetic", action="store_true", help="drawn squares; needs no simulation")
    seen("--instruction", default="", metavar="TEXT", help="of --images, --synthetic, or instead of"
         " the bag's")  # fmt: skip
    seen("--seed", type=int, default=0, help="of the simulation, of random weights, of noise (0)")
    most = parser.add_argument_group("thresholds").add_argument
    most("--max-error", type=float, metavar="X", help="relative error of a stage (bfloat16"
         " 0.05, float16 0.01, int8 0.1, fp8 0.15, int4 0.16)")  # fmt: skip
    most("--min-agreement", type=float, metavar="X", help="share of equal tokens (not"
         " judged)")  # fmt: skip
    most("--max-margin", type=float, metavar="X", help="of a token that flips: how much surer the"
         " reference was of its own, (p - q) / (p + q) of both probabilities (0.3)")  # fmt: skip
    most("--max-clear", type=float, metavar="X", help="share of tokens that may flip by more (0,"
         " int4 0.01)")  # fmt: skip
    most("--max-mm", type=float, metavar="X", help="displacement of an action (10)")
    most("--max-degrees", type=float, metavar="X", help="rotation of an action (10)")
    most("--max-gripper", type=float, metavar="X", help="opening of the gripper, 0 to 1,"
         " (0.5)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Measure, judge, keep, print; returns the exit status."""
    from vla_ros.cli.gate.frames import folder_of
    from vla_ros.cli.gate.table import show_result
    from vla_ros.precision.page import page
    from vla_ros.precision.run import Broken
    from vla_ros.precision.store import directory_of, store

    spec = _spec(args)
    most = _thresholds(args)
    if args.html:
        folder_of(args.html)
    try:
        result = _measured(args, spec, most)
    except Broken as broken:
        return _broken(args, spec, broken)
    show_result(result)
    if args.html:
        args.html.write_text(page(result), encoding="utf-8")
        print(args.html)
    kept = store(result.stored(), directory_of(args.checkpoint))
    print(f"kept in {kept}", flush=True)
    if args.json:
        print(json.dumps({**result.as_json(), "kept": str(kept)}), flush=True)
    return 0 if result.verdict.passed else 1


def _broken(args: argparse.Namespace, spec: PolicySpec, broken: Broken) -> int:
    """Keep and say that there was nothing to compare."""
    from vla_ros.precision.store import Precision, StoredGate, directory_of, store

    precision = Precision(args.dtype, spec.weights, args.device)
    reasons = (f"it says no action: {broken}",)
    kept = store(
        StoredGate(broken.sha256, precision, False, reasons), directory_of(args.checkpoint)
    )
    print(f"- {reasons[0]}\nFAILED\nkept in {kept}", flush=True)
    if args.json:
        found = {"passed": False, "reasons": reasons, "checkpoint_sha256": broken.sha256}
        print(json.dumps({**found, "kept": str(kept)}), flush=True)
    return 1


def _spec(args: argparse.Namespace) -> PolicySpec:
    """What is measured. UserError for what can be told before anything is loaded."""
    if args.frames < 1 or args.threads < 0:
        raise UserError("--frames must be at least 1, --threads 0 or more")
    if sum((args.bag is not None, args.images is not None, args.synthetic)) > 1:
        raise UserError("--bag, --images or --synthetic: one of them")
    if args.dtype == "float32" and not args.reference:
        raise UserError("float32 is the reference itself: give --dtype bfloat16 or float16")
    from vla_ros.engine.device import usable_device
    from vla_ros.engine.inspection import refuse_weights
    from vla_ros.engine.quantised.formats import parse_formats
    from vla_ros.policies.base import PolicySpec

    usable_device(args.device)
    try:
        weights = str(parse_formats(args.weights))
        refuse_weights(args.checkpoint, weights, args.device, args.dtype)
    except ValueError as wrong:
        raise UserError(str(wrong)) from None
    refuse_unreadable(args.checkpoint, args.tokenizer)
    return PolicySpec(
        name="vla",
        checkpoint=args.checkpoint,
        device=args.device,
        dtype=args.dtype,
        weights=weights,
        unnorm_key=args.unnorm_key,
        seed=args.seed,
        num_threads=args.threads,
        schedule_options={"tokenizer": args.tokenizer} if args.tokenizer else {},
    )


def _thresholds(args: argparse.Namespace) -> Thresholds:
    from vla_ros.precision.judge import Thresholds, allowed_clear, allowed_error

    formats = f"{args.weights} {_origin(args.checkpoint)[0]}"
    error = args.max_error
    if error is None:
        error = allowed_error(args.dtype, formats)
    given = {
        "clear": allowed_clear(formats) if args.max_clear is None else args.max_clear,
        "agreement": args.min_agreement,
        "margin": args.max_margin,
        "mm": args.max_mm,
        "degrees": args.max_degrees,
        "gripper": args.max_gripper,
    }
    try:
        return Thresholds(error, **{n: v for n, v in given.items() if v is not None})
    except ValueError as wrong:
        raise UserError(str(wrong)) from None


def _origin(checkpoint: str) -> tuple[str, str]:
    """Of a quantised directory its formats and what it was made of; "" for any other."""
    from vla_ros.engine.checkpoints.openvla import resolve
    from vla_ros.engine.checkpoints.quantised import read_origin
    from vla_ros.engine.checkpoints.random import PREFIX

    found = None if checkpoint.startswith(PREFIX) else read_origin(resolve(checkpoint))
    return ("", "") if found is None else (str(found.formats), found.source)


def _reference(args: argparse.Namespace) -> str:
    """What it is held to. UserError: it cannot be read, or is not what it was."""
    if args.reference:
        refuse_unreadable(args.reference, args.tokenizer)
        return str(args.reference)
    formats, source = _origin(args.checkpoint)
    if not formats:
        return str(args.checkpoint)
    try:
        refuse_unreadable(source, args.tokenizer)
        return source
    except UserError as wrong:
        raise UserError(f"{args.checkpoint} was made of {source or 'something unknown'}: give"
                        f" --reference ({wrong})") from wrong  # fmt: skip


def _measured(args: argparse.Namespace, spec: PolicySpec, most: Thresholds) -> Result:
    from vla_ros.cli.gate.frames import frames_of
    from vla_ros.console.progress import Progress
    from vla_ros.engine.errors import InvalidAction
    from vla_ros.policies.conventions import settle
    from vla_ros.precision.judge import judge
    from vla_ros.precision.result import Result
    from vla_ros.precision.run import measure
    from vla_ros.precision.store import Precision

    used, _ = settle(spec)
    named = _reference(args)
    reference = replace(spec, checkpoint=named, dtype="float32", weights="")
    with Progress() as progress:

        def report(what: str, done: int, total: int) -> None:
            progress.update(what, what, done, total)

        frames, source = frames_of(args, used, report)
        try:
            measured = measure(spec, frames, report, reference)
        except (InvalidAction, ValueError) as error:
            raise UserError(f"{args.checkpoint}: {error}") from error
    return Result(
        checkpoint=args.checkpoint,
        reference=named,
        sha256=measured.sha256,
        precision=Precision(args.dtype, spec.weights, args.device),
        frames_from=source,
        comparison=measured.comparison,
        thresholds=most,
        verdict=judge(measured.comparison, most),
    )
