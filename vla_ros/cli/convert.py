"""`vla-ros convert`: a released checkpoint made into one that the engine reads."""

from __future__ import annotations

import argparse
from pathlib import Path

from vla_ros.cli.arguments import Verbs, add_verb
from vla_ros.core.errors import UserError

DESCRIPTION = """\
Make a checkpoint that the engine reads of one as it was released. SOURCE is
  a run of prismatic (MiniVLA is released so, OpenVLA is trained so),
  an OpenVLA-OFT release, with its heads in .pt files,
  a LoRA adapter, merged into --base,
  OpenVLA's own layout with its weights in pytorch_model*.bin,
  an adapter of peft that LeRobot trained, merged into --base,
  a policy of LeRobot's before 0.4, its statistics among its weights,
  a checkpoint of TurboVLA's authors for LIBERO (one .pth).
What it is, is seen from its files. Pickles are read by torch's weights_only loader in a process
of its own: none can run code. TARGET appears when it is complete and has been read back.
"""


def add_parser(verbs: Verbs) -> None:
    """Declare the verb's options."""
    parser = add_verb(verbs, "convert", DESCRIPTION)
    add = parser.add_argument
    add("source", type=Path, metavar="SOURCE", help="a directory on this machine")
    add("target", type=Path, metavar="TARGET", help="the directory to write; it must not exist")
    add("--tokenizer", type=Path, help="tokenizer.json of the language model (prismatic, TurboVLA)")
    add("--base", type=Path, help="the model that an adapter was trained on")
    add("--vq", type=Path, help="the VQ-VAE of a MiniVLA that speaks in its codes")
    add("--step", help="which of several checkpoints or heads (the newest; of heads the only one)")
    add("--chunk", type=int, help="actions of a chunk (OFT; 8 LIBERO, 5 Bridge, 25 ALOHA)")
    add("--images", type=int, choices=(1, 2, 3), help="cameras (OFT; 2 LIBERO, 3 ALOHA, 1 Bridge)")


def run(args: argparse.Namespace) -> int:
    """Convert and say what came of it."""
    try:
        from vla_ros.engine.convert import ConvertOptions, convert
        from vla_ros.engine.convert.lerobot import what_of_lerobot
        from vla_ros.engine.families.registry import family_of
        from vla_ros.engine.options import TOKENS
    except ImportError as error:
        raise UserError(f"{error}: pip install '.[model]' in the checkout") from error
    if args.chunk is not None and args.chunk < 1:
        raise UserError("--chunk needs at least 1")
    source = args.source.expanduser()
    if family_of(source).group != TOKENS and not what_of_lerobot(source):
        raise UserError(f"{args.source} is a policy that is read as it is: nothing to convert")
    options = ConvertOptions(args.tokenizer, args.base, args.vq, args.step, args.chunk, args.images)
    done = convert(source, args.target.expanduser(), options)
    print(done.summary)
    if done.layout is None:
        print(f"{args.target}: a flow policy; `vla-ros doctor --checkpoint {args.target}` says what"
              " it needs")  # fmt: skip
        return 0
    keys = ", ".join(done.layout.norm_stats)
    print(f"{args.target}: {done.layout.parameters / 1e6:.0f} M parameters, unnorm_key {keys}")
    return 0
