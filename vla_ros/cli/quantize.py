"""`vla-ros quantize`: a checkpoint with weights of fewer bits, made once."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from vla_ros.cli.defaults import refuse_unreadable
from vla_ros.errors import UserError

DESCRIPTION = """\
Write a policy with its weights in int8, int4 or fp8, and read it back: what `--weights` of eval,
bench and gate does whenever they load, done once. The new directory goes wherever a checkpoint
does, with --dtype bfloat16 on a CPU or on CUDA. Parts: vision, decoder (the language model), head
(of tokens or actions; the action expert of a flow policy)."""

EPILOG = """\
examples:
  vla-ros quantize --checkpoint shipped:tabletop --weights int8 --out tabletop-int8
  vla-ros gate --checkpoint tabletop-int8            against what it was made of
  vla-ros eval --checkpoint tabletop-int8 --dtype bfloat16 --no-ros"""


def add_parser(verbs: Any) -> None:
    """The options of this verb."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "quantize",
        help="write a checkpoint with weights of fewer bits",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="C", help="a directory, a hub id or shipped:NAME")
    add("--weights", required=True, metavar="F", help="int8, int4 or fp8 (of all but vision), or"
        " by part, such as vision=int8,decoder=int4,head=int8")  # fmt: skip
    add("--tokenizer", default="", metavar="DIR", help="flow policies: of the language model")
    add("--embodiment", default="", metavar="TAG", help="GR00T: which robot's file is read; the"
        " weights of all robots are kept")  # fmt: skip
    add("--out", required=True, type=Path, metavar="DIR", help="to write; it must not exist")
    add("--json", action="store_true", help="end with one line of JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Quantise and say what came of it."""
    from vla_ros.engine.checkpoints.openvla import resolve
    from vla_ros.engine.checkpoints.quantise import quantise_checkpoint
    from vla_ros.engine.checkpoints.random import PREFIX
    from vla_ros.engine.flow.families import is_flow
    from vla_ros.engine.flow.family import Choice
    from vla_ros.engine.flow.quantise import quantise_flow
    from vla_ros.engine.inspection import refuse_weights
    from vla_ros.engine.quantised.formats import parse_formats

    try:
        formats = parse_formats(args.weights)
    except ValueError as wrong:
        raise UserError(str(wrong)) from None
    if not formats:
        raise UserError(f"--weights {args.weights}: that quantises nothing")
    if args.checkpoint.startswith(PREFIX):
        raise UserError("random weights are made anew each time: give --weights to the verb itself")
    refuse_weights(args.checkpoint, args.weights, "cpu", "bfloat16")
    refuse_unreadable(args.checkpoint, args.tokenizer)
    if is_flow(resolve(args.checkpoint)):
        choice = Choice(tokenizer=args.tokenizer or None, embodiment=args.embodiment or None)
        done = quantise_flow(args.checkpoint, formats, args.out, choice)
    else:
        done = quantise_checkpoint(args.checkpoint, formats, args.out)
    share = done.after / done.before
    print(f"{args.out}: {formats}, {done.after / 1e6:.1f} MB of weights, {share:.0%} of those in"
          f" {done.dtype}")  # fmt: skip
    if args.json:
        found = {"out": str(args.out), "weights": str(formats), "bytes": done.after,
                 "bytes_before": done.before, "dtype_before": done.dtype}  # fmt: skip
        print(json.dumps(found), flush=True)
    return 0
