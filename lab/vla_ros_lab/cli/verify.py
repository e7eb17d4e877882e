"""`vla-ros verify`: a policy in a lower precision held to itself in float32."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.cli.arguments import Verbs, add_fields, add_flag, add_verb
from vla_ros.cli.defaults import CHECKPOINT, refuse_unreadable
from vla_ros.core.console import Progress, Report, json_text, print_json
from vla_ros.core.errors import UserError, user_errors
from vla_ros.engine.options import EngineOptions
from vla_ros_lab.precision.frames import FrameSource
from vla_ros_lab.precision.judge import Thresholds

if TYPE_CHECKING:
    from vla_ros.policies.base import PolicySpec
    from vla_ros_lab.precision.run import Broken, Result

ENGINE = (
    "device", "dtype", "weights", "unnorm_key", "state_normalization", "tokenizer",
    "state_in_prompt", "num_threads",
)  # fmt: skip
THRESHOLDS = tuple(field.name for field in fields(Thresholds))
DESCRIPTION = """\
Is a policy in a lower precision still the same policy? It and its float32 original look at the
same frames. Compared are: every stage (pixels, vision, projector, each layer, logits, or velocities
of a flow policy), the tokens, the actions in mm, degrees and opening of the gripper, and every
discrete choice: which position a patch or a token was given, which token won, which side of its
middle the gripper is on. Without frames of yours, the built-in simulation renders some.

With --exact another question, in one precision: does every lossless way of decoding (decodings,
drafters, graphs, RTC) give what a plain reference gives? The answer is a certificate, which
--recheck repeats."""

EPILOG = """\
The verdict is kept with the checkpoint's hash: in its folder, or in the cache where that cannot be
written. A policy node with the parameter require_verified runs only what passed.

exit status: 0 it passed, 1 it did not, 2 it could not be judged

examples:
  vla-ros verify --dtype bfloat16
  vla-ros verify --weights int4
  vla-ros verify --exact --dtype float32 --output certificate
  vla-ros verify --recheck certificate/certificate.json
  vla-ros verify --checkpoint DIR --dtype bfloat16 --device cuda --bag run.mcap --html it.html"""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "verify", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--checkpoint", metavar="C", help=f"({CHECKPOINT})")
    add_fields(parser, EngineOptions, *ENGINE, dtype="bfloat16")
    add("--reference", default="", metavar="C", help="what it is held to (the same checkpoint; of"
        " one that `vla-ros quantize` made, the one that it was made of)")  # fmt: skip
    add("--html", type=Path, metavar="FILE", help="write a page with an image of every stage")
    add_flag(parser, "--json")
    exact = parser.add_argument_group("lossless ways against a plain reference")
    exact.add_argument("--exact", action="store_true", help="make a certificate, in --dtype")
    exact.add_argument("--output", type=Path, metavar="DIR", help="folder for certificate.json and"
                       " certificate.md")  # fmt: skip
    exact.add_argument("--recheck", type=Path, metavar="FILE", help="make a certificate again, with"
                       " its options; --checkpoint names another copy of the same one")  # fmt: skip
    add_fields(exact, EngineOptions, "draft_checkpoint")
    frames = parser.add_argument_group("frames, the tabletop's where none are given")
    add_fields(frames, FrameSource, "frames", "bag")
    add_flag(frames, "--remap", metavar="ROLE=TOPIC", help="of the bag, such as"
             " image=/camera/color")  # fmt: skip
    add_fields(frames, FrameSource, "images", "synthetic", "instruction", "seed")
    limits = parser.add_argument_group("thresholds")
    add_fields(limits, Thresholds, *THRESHOLDS, **dict.fromkeys(THRESHOLDS))


def run(args: argparse.Namespace) -> int:
    """Measure, judge, keep, print; returns the exit status."""
    from vla_ros.engine.verdicts import directory_of, store
    from vla_ros_lab.precision.report import page, show_result
    from vla_ros_lab.precision.run import Broken

    if args.recheck:
        return _recheck(args)
    args.checkpoint = args.checkpoint or CHECKPOINT
    source = FrameSource(**{field.name: getattr(args, field.name) for field in fields(FrameSource)})
    if args.exact:
        return _exact(args, source)
    spec = _spec(args)
    if args.output or args.draft_checkpoint:
        raise UserError("--output and --draft-checkpoint are of --exact")
    most = _thresholds(args)
    if args.html and not args.html.parent.is_dir():
        raise UserError(f"--html {args.html}: {args.html.parent} is no folder")
    try:
        result = _measured(args, spec, source, most)
    except Broken as broken:
        return _broken(args, spec, broken)
    show_result(result)
    if args.html:
        args.html.write_text(page(result), encoding="utf-8")
        print(args.html)
    kept = store(result.stored(), directory_of(args.checkpoint))
    print(f"kept in {kept}", flush=True)
    if args.json:
        print_json({**result.as_json(), "kept": str(kept)})
    return 0 if result.verdict.passed else 1


def _exact(args: argparse.Namespace, source: FrameSource) -> int:
    """Make, show and write a certificate."""
    if args.html or args.reference or args.weights or _origin(args.checkpoint)[0]:
        raise UserError(
            "--exact holds float weights to a plain reference in the same precision: leave out"
            " --html, --reference and --weights, and give no quantized checkpoint"
        )
    return _shown(args, _certified(args, _spec(args), source))


def _recheck(args: argparse.Namespace) -> int:
    """Make a certificate once more, and compare both."""
    from vla_ros_lab.exact.certificate import differences, read, spec_of

    before = read(args.recheck)
    spec, source = spec_of(before)
    if args.checkpoint:
        spec = replace(spec, engine=replace(spec.engine, checkpoint=args.checkpoint))
    refuse_unreadable(spec.engine.checkpoint, spec.engine.tokenizer)
    import torch

    threads = int(before["machine"].get("threads", 0))
    if threads and not spec.engine.num_threads:  # other bits with others
        torch.set_num_threads(threads)
    now = _certified(args, spec, source)
    status = _shown(args, now)
    wrong, other_bits = differences(before, now)
    for line in wrong:
        print(f"- {line}")
    if wrong:
        print("NOT repeated")
        return 1
    same = "to the bit" if not other_bits else f"with other bits in {', '.join(other_bits)}"
    print(f"repeated, {same}")
    return status


def _certified(args: argparse.Namespace, spec: PolicySpec, source: FrameSource) -> dict[str, Any]:
    from vla_ros.engine.errors import InvalidAction
    from vla_ros_lab.exact.certificate import certify

    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
    with Progress() as progress:
        try:
            return certify(spec, source, _report(progress))
        except (InvalidAction, ValueError) as error:
            raise UserError(f"{spec.engine.checkpoint}: {error}") from error


def _report(progress: Progress) -> Report:
    return lambda what, done, total: progress.update(what, what, done, total)


def _shown(args: argparse.Namespace, content: dict[str, Any]) -> int:
    from vla_ros_lab.exact.certificate import page

    text = page(content)
    print(text, end="", flush=True)
    if args.output:
        (args.output / "certificate.md").write_text(text, encoding="utf-8")
        written = json_text(content) + "\n"
        (args.output / "certificate.json").write_text(written, encoding="utf-8")
    if args.json:
        print(json.dumps(content))
    return 0 if content["passed"] else 1


def _broken(args: argparse.Namespace, spec: PolicySpec, broken: Broken) -> int:
    """Keep and print that there was nothing to compare."""
    from vla_ros.engine.verdicts import Precision, StoredVerdict, directory_of, store

    precision = Precision(args.dtype, spec.engine.weights, args.device)
    reasons = (f"it gives no action: {broken}",)
    verdict = StoredVerdict(broken.sha256, precision, False, reasons)
    kept = store(verdict, directory_of(args.checkpoint))
    print(f"- {reasons[0]}\nFAILED\nkept in {kept}", flush=True)
    if args.json:
        found = {"passed": False, "reasons": reasons, "checkpoint_sha256": broken.sha256}
        print_json({**found, "kept": str(kept)})
    return 1


def _spec(args: argparse.Namespace) -> PolicySpec:
    """The policy that is measured. UserError: what is known before anything is loaded."""
    if args.dtype == "float32" and not args.reference and not args.exact:
        raise UserError("float32 is the reference itself: give --dtype bfloat16 or float16")
    from vla_ros.engine.formats import parse_formats
    from vla_ros.engine.layers.devices import usable_device
    from vla_ros.engine.load import refuse_weights
    from vla_ros.policies.base import PolicySpec

    args.device = str(usable_device(args.device))
    with user_errors(ValueError):
        weights = str(parse_formats(args.weights))
        refuse_weights(args.checkpoint, weights, args.device, args.dtype)
    refuse_unreadable(args.checkpoint, args.tokenizer)
    given: dict[str, Any] = {name: getattr(args, name) for name in (*ENGINE, "seed")}
    if args.draft_checkpoint:
        given |= {"decoding": "speculative", "drafter": "model",
                  "draft_checkpoint": args.draft_checkpoint}  # fmt: skip
    with user_errors(ValueError):
        engine = EngineOptions(args.checkpoint, **given | {"weights": weights})
    return PolicySpec(name="vla", engine=engine)


def _thresholds(args: argparse.Namespace) -> Thresholds:
    from vla_ros_lab.precision.judge import allowed

    formats = f"{args.weights} {_origin(args.checkpoint)[0]}"
    with user_errors(ValueError):
        return allowed(args.dtype, formats, **{name: getattr(args, name) for name in THRESHOLDS})


def _origin(checkpoint: str) -> tuple[str, str]:
    """Formats of a quantized directory, and what it was made of; "" for any other."""
    from vla_ros.engine.families.random import PREFIX
    from vla_ros.engine.io.hub import resolve
    from vla_ros.engine.io.quantize import read_origin

    found = None if checkpoint.startswith(PREFIX) else read_origin(resolve(checkpoint))
    return ("", "") if found is None else (str(found.formats), found.source)


def _reference(args: argparse.Namespace) -> str:
    """The checkpoint that it is held to. UserError: it cannot be read, or is not what it was."""
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


def _measured(
    args: argparse.Namespace, spec: PolicySpec, source: FrameSource, most: Thresholds
) -> Result:
    from vla_ros.engine.errors import InvalidAction
    from vla_ros.engine.verdicts import Precision
    from vla_ros.policies.conventions import settle
    from vla_ros_lab.precision.frames import frames_of
    from vla_ros_lab.precision.judge import judge
    from vla_ros_lab.precision.run import Result, measure

    used, _ = settle(spec)
    named = _reference(args)
    exact = replace(spec.engine, checkpoint=named, dtype="float32", weights="")
    with Progress() as progress:
        report = _report(progress)
        frames, frames_from = frames_of(source, used, report)
        try:
            measured = measure(spec, frames, report, replace(spec, engine=exact))
        except (InvalidAction, ValueError) as error:
            raise UserError(f"{args.checkpoint}: {error}") from error
    return Result(
        checkpoint=args.checkpoint,
        reference=named,
        sha256=measured.sha256,
        precision=Precision(args.dtype, spec.engine.weights, args.device),
        frames_from=frames_from,
        comparison=measured.comparison,
        thresholds=most,
        verdict=judge(measured.comparison, most),
    )
