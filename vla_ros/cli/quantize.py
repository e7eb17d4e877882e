"""`vla-ros quantize`: a checkpoint with weights of fewer bits, made once."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from vla_ros.cli.defaults import refuse_unreadable
from vla_ros.errors import UserError

DESCRIPTION = """\
Write a token policy with its weights in int8 or int4, and read it back: what `--weights` of eval,
bench and gate does whenever they load, done once. The new directory goes wherever a checkpoint
does, with --dtype bfloat16 on a CPU."""

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
    add("--weights", required=True, metavar="F", help="int8, int4 (of the language model), or by"
        " part, such as vision=int8,decoder=int4,head=int8")  # fmt: skip
    add("--out", required=True, type=Path, metavar="DIR", help="to write; it must not exist")
    add("--json", action="store_true", help="end with one line of JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Quantise and say what came of it."""
    from vla_ros.engine.checkpoints.openvla import resolve
    from vla_ros.engine.checkpoints.quantise import quantise_checkpoint
    from vla_ros.engine.checkpoints.random import PREFIX
    from vla_ros.engine.flow.families import is_flow
    from vla_ros.engine.quantised.formats import parse_formats

    try:
        formats = parse_formats(args.weights)
    except ValueError as wrong:
        raise UserError(str(wrong)) from None
    if not formats:
        raise UserError(f"--weights {args.weights}: that quantises nothing")
    if args.checkpoint.startswith(PREFIX):
        raise UserError("random weights are made anew each time: give --weights to the verb itself")
    if is_flow(resolve(args.checkpoint)):
        raise UserError(f"{args.checkpoint} is a flow policy: weights of fewer bits are for token"
                        " policies so far")  # fmt: skip
    refuse_unreadable(args.checkpoint)
    done = quantise_checkpoint(args.checkpoint, formats, args.out)
    share = done.after / done.before
    print(f"{args.out}: {formats}, {done.after / 1e6:.1f} MB of weights, {share:.0%} of bfloat16's")
    if args.json:
        found = {"out": str(args.out), "weights": str(formats), "bytes": done.after,
                 "bytes_bfloat16": done.before}  # fmt: skip
        print(json.dumps(found), flush=True)
    return 0
