"""`vla-ros quantize`: a checkpoint with weights of fewer bits, made once."""

from __future__ import annotations

import argparse
from pathlib import Path

from vla_ros.cli.arguments import Verbs, add_fields, add_flag, add_verb
from vla_ros.cli.defaults import refuse_unreadable
from vla_ros.core.console import print_json
from vla_ros.core.errors import UserError, user_errors
from vla_ros.engine.options import EngineOptions

DESCRIPTION = """\
Write a policy with its weights in int8, int4 or fp8, and read it back: what `--weights` of eval,
bench and gate does whenever they load, done once. The new directory goes wherever a checkpoint
does, with --dtype bfloat16 on a CPU or on CUDA. Parts: vision, decoder (the language model), head
(of tokens or actions; the action expert of a flow policy)."""

EPILOG = """\
examples:
  vla-ros quantize --checkpoint shipped:tabletop --weights int8 --out tabletop-int8
  vla-ros verify --checkpoint tabletop-int8            against what it was made of
  vla-ros eval --checkpoint tabletop-int8 --dtype bfloat16 --no-ros"""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "quantize", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="C", help="a directory, a hub id or shipped:NAME")
    add("--weights", required=True, metavar="F", help="int8, int4 or fp8 (of all but vision), or"
        " by part, such as vision=int8,decoder=int4,head=int8")  # fmt: skip
    add_fields(parser, EngineOptions, "tokenizer", "embodiment")
    add("--out", required=True, type=Path, metavar="DIR", help="to write; it must not exist")
    add_flag(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """Quantize and say what came of it."""
    from vla_ros.engine.families.base import LoadOptions
    from vla_ros.engine.families.random import PREFIX
    from vla_ros.engine.formats import parse_formats
    from vla_ros.engine.load import refuse_weights
    from vla_ros.engine.quantize import quantize_checkpoint

    with user_errors(ValueError):
        formats = parse_formats(args.weights)
    if not formats:
        raise UserError(f"--weights {args.weights}: that quantizes nothing")
    if args.checkpoint.startswith(PREFIX):
        raise UserError("random weights are made anew each time: give --weights to the verb itself")
    refuse_weights(args.checkpoint, args.weights, "cpu", "bfloat16")
    refuse_unreadable(args.checkpoint, args.tokenizer)
    choice = LoadOptions(tokenizer=args.tokenizer or None, embodiment=args.embodiment or None)
    done = quantize_checkpoint(args.checkpoint, formats, args.out, choice)
    share = done.after / done.before
    print(f"{args.out}: {formats}, {done.after / 1e6:.1f} MB of weights, {share:.0%} of those in"
          f" {done.dtype}")  # fmt: skip
    if args.json:
        found = {"out": str(args.out), "weights": str(formats), "bytes": done.after,
                 "bytes_before": done.before, "dtype_before": done.dtype}  # fmt: skip
        print_json(found)
    return 0
