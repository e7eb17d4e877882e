"""`vla-ros verify`: a policy in a lower precision held to itself in float32."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.cli.arguments import Verbs, add_fields, add_flag, add_verb
from vla_ros.cli.defaults import CHECKPOINT, refuse_unreadable
from vla_ros.core.console import Table, json_text, print_json, show
from vla_ros.core.errors import UserError, user_errors
from vla_ros.engine.options import EngineOptions

if TYPE_CHECKING:
    from vla_ros.policies.base import PolicySpec
    from vla_ros_lab.precision.compare import Thresholds
    from vla_ros_lab.precision.frames import FrameSource
    from vla_ros_lab.precision.run import Broken, Result


def folder_of(path: Path) -> Path:
    """Where a page may be written. UserError."""
    if not path.parent.is_dir():
        raise UserError(f"--html {path}: {path.parent} is no folder")
    return path


FRAMES = 24
DESCRIPTION = """\
Is a policy in a lower precision still the same policy? It and its float32 original look at the
same frames. Compared are: every stage (pixels, vision, projector, each layer, logits, or velocities
of a flow policy), the tokens, the actions in mm, degrees and opening of the gripper, and every
discrete choice: which position a patch or a token was given, which token won, which side of its
middle the gripper is on. Without frames of yours, the built-in simulation renders some.

With --exact another question, in one precision: does every lossless way of decoding (decodings,
drafters, graphs, RTC) say what a plain reference says? The answer is a certificate, which
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
    add_fields(
        parser, EngineOptions, "device", "dtype", "weights", "unnorm_key", "state_normalization",
        "tokenizer", "state_in_prompt", "num_threads", dtype="bfloat16",
    )  # fmt: skip
    add("--reference", default="", metavar="C", help="what it is held to (the same checkpoint; of"
        " one that `vla-ros quantize` made, the one that it was made of)")  # fmt: skip
    add("--html", type=Path, metavar="FILE", help="write a page with an image of every stage")
    add_flag(parser, "--json")
    exact = parser.add_argument_group("lossless ways against a plain reference")
    exact.add_argument("--exact", action="store_true", help="make a certificate, in --dtype")
    exact.add_argument("--output", type=Path, metavar="DIR", help="folder for certificate.json and"
                       " certificate.md")  # fmt: skip
    exact.add_argument("--recheck", type=Path, metavar="FILE", help="do again what a certificate"
                       " says, with its options; --checkpoint names another place of the same"
                       " one")  # fmt: skip
    add_fields(exact, EngineOptions, "draft_checkpoint")
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
    from vla_ros.engine.verdicts import directory_of, store
    from vla_ros_lab.precision.run import Broken, page

    if args.recheck:
        return _recheck(args)
    args.checkpoint = args.checkpoint or CHECKPOINT
    if args.exact:
        return _exact(args)
    if args.output or args.draft_checkpoint:
        raise UserError("--output and --draft-checkpoint are of --exact")
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
        print_json({**result.as_json(), "kept": str(kept)})
    return 0 if result.verdict.passed else 1


def _exact(args: argparse.Namespace) -> int:
    """A certificate: made, shown, written."""
    if args.html or args.reference or args.weights or _origin(args.checkpoint)[0]:
        raise UserError(
            "--exact holds float weights to a plain reference in the same precision: leave out"
            " --html, --reference and --weights, and give no quantized checkpoint"
        )
    return _shown(args, _certified(args, _spec(args), _source(args)))


def _recheck(args: argparse.Namespace) -> int:
    """A certificate once more, and whether it says the same."""
    from vla_ros_lab.exact.certificate import differences, read, spec_of

    before = read(args.recheck)
    spec, source = spec_of(before)
    if args.checkpoint:
        spec = replace(spec, engine=replace(spec.engine, checkpoint=args.checkpoint))
    refuse_unreadable(spec.engine.checkpoint, spec.engine.tokenizer)
    import torch

    threads = int(before["machine"].get("threads", 0))
    if threads and not spec.engine.num_threads:  # nobody said how many: other bits with others
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
    from vla_ros.core.console import Progress
    from vla_ros.engine.errors import InvalidAction
    from vla_ros_lab.exact.certificate import certify

    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
    with Progress() as progress:
        try:
            return certify(spec, source, lambda what, done, total: progress.update(
                what, what, done, total))  # fmt: skip
        except (InvalidAction, ValueError) as error:
            raise UserError(f"{spec.engine.checkpoint}: {error}") from error


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
    """Keep and say that there was nothing to compare."""
    from vla_ros.engine.verdicts import Precision, StoredVerdict, directory_of, store

    precision = Precision(args.dtype, spec.engine.weights, args.device)
    reasons = (f"it says no action: {broken}",)
    kept = store(
        StoredVerdict(broken.sha256, precision, False, reasons), directory_of(args.checkpoint)
    )
    print(f"- {reasons[0]}\nFAILED\nkept in {kept}", flush=True)
    if args.json:
        found = {"passed": False, "reasons": reasons, "checkpoint_sha256": broken.sha256}
        print_json({**found, "kept": str(kept)})
    return 1


def _spec(args: argparse.Namespace) -> PolicySpec:
    """What is measured. UserError for what can be told before anything is loaded."""
    if args.frames < 1 or args.num_threads < 0:
        raise UserError("--frames must be at least 1, --num-threads 0 or more")
    if sum((args.bag is not None, args.images is not None, args.synthetic)) > 1:
        raise UserError("--bag, --images or --synthetic: one of them")
    if args.dtype == "float32" and not args.reference and not args.exact:
        raise UserError("float32 is the reference itself: give --dtype bfloat16 or float16")
    from vla_ros.engine.formats import parse_formats
    from vla_ros.engine.layers.devices import usable_device
    from vla_ros.engine.load import refuse_weights
    from vla_ros.policies.base import PolicySpec

    usable_device(args.device)
    with user_errors(ValueError):
        weights = str(parse_formats(args.weights))
        refuse_weights(args.checkpoint, weights, args.device, args.dtype)
    refuse_unreadable(args.checkpoint, args.tokenizer)
    drafted: dict[str, Any] = {}
    if args.draft_checkpoint:
        drafted = {"decoding": "speculative", "drafter": "model",
                   "draft_checkpoint": args.draft_checkpoint}  # fmt: skip
    return PolicySpec(
        name="vla",
        engine=EngineOptions(
            checkpoint=args.checkpoint,
            device=args.device,
            dtype=args.dtype,
            weights=weights,
            unnorm_key=args.unnorm_key,
            state_normalization=args.state_normalization,
            seed=args.seed,
            num_threads=args.num_threads,
            tokenizer=args.tokenizer,
            **drafted,
            state_in_prompt=args.state_in_prompt,
        ),
    )


def _thresholds(args: argparse.Namespace) -> Thresholds:
    from vla_ros_lab.precision.compare import Thresholds, allowed_clear, allowed_error

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
    with user_errors(ValueError):
        return Thresholds(error, **{n: v for n, v in given.items() if v is not None})


def _origin(checkpoint: str) -> tuple[str, str]:
    """Of a quantized directory its formats and what it was made of; "" for any other."""
    from vla_ros.engine.families.random import PREFIX
    from vla_ros.engine.io.hub import resolve
    from vla_ros.engine.io.quantize import read_origin

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


def _source(args: argparse.Namespace) -> FrameSource:
    from vla_ros_lab.precision.frames import FrameSource

    return FrameSource(
        args.frames, args.seed, args.bag, args.remap, args.images, args.synthetic, args.instruction
    )


def _measured(args: argparse.Namespace, spec: PolicySpec, most: Thresholds) -> Result:
    from vla_ros.core.console import Progress
    from vla_ros.engine.errors import InvalidAction
    from vla_ros.engine.verdicts import Precision
    from vla_ros.policies.conventions import settle
    from vla_ros_lab.precision.compare import judge
    from vla_ros_lab.precision.frames import frames_of
    from vla_ros_lab.precision.run import Result, measure

    used, _ = settle(spec)
    named = _reference(args)
    exact = replace(spec.engine, checkpoint=named, dtype="float32", weights="")
    reference = replace(spec, engine=exact)
    with Progress() as progress:

        def report(what: str, done: int, total: int) -> None:
            progress.update(what, what, done, total)

        frames, frames_from = frames_of(_source(args), used, report)
        try:
            measured = measure(spec, frames, report, reference)
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


_FEW = 12  # stages or flips in a table; the page has all


def show_result(result: Result) -> None:
    """Stages, choices, figures, and the verdict last."""
    found, most = result.comparison, result.thresholds
    print(f"{result.precision} against float32, {found.frames} frames of {result.frames_from}\n")
    stages = [
        (one.name, f"{one.worst:.2g}", f"{one.mean:.2g}", "" if one.worst <= most.error else "over")
        for one in found.stages
    ]
    if len(stages) > 2 * _FEW:
        left = len(stages) - 2 * _FEW
        stages[_FEW:-_FEW] = [(f"... {left} more", "", "", "")]
    choices = []
    for name, count in found.checked:
        flips = [flip for flip in found.flips if flip.name == name]
        margin = f"{max(f.margin for f in flips):.3f}" if flips else "-"
        choices.append((name, str(count), str(len(flips)), margin))
    moved = found.displacement
    figures = [
        ("displacement of an action, mm", f"{moved.mm:.2f}", f"{most.mm:g}"),
        ("rotation of an action, degrees", f"{moved.degrees:.2f}", f"{most.degrees:g}"),
        ("opening of the gripper", f"{moved.gripper:.2f}", f"{most.gripper:g}"),
    ]
    if found.agreement is not None:
        share, least = (
            f"{100 * found.agreement:.1f}",
            f"at least {100 * most.agreement:g}" if most.agreement else "-",
        )
        figures.insert(0, ("equal tokens, %", share, least))
    show(
        Table(("stage", "relative error\nworst", "mean", ""), stages), "",
        Table(("discrete choice", "looked at", "flipped", "largest margin"), choices), "",
        Table(("largest", "measured", "threshold"), figures),
        f"judged on {result.verdict.judged} frames, those without a token that flipped in a close"
        " call" if result.verdict.judged < found.frames else "", "",
    )  # fmt: skip
    for reason in result.verdict.reasons:
        print(f"- {reason}")
    print("passed" if result.verdict.passed else "FAILED")
