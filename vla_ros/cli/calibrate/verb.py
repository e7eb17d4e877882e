"""`vla-ros calibrate`: from what a policy says to the bins and trees of schedule heterospec."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.cli.calibrate import heads, sources
from vla_ros.cli.defaults import CHECKPOINT, refuse_unreadable
from vla_ros.errors import UserError

if TYPE_CHECKING:
    from vla_ros.analysis.calibration import Fitted

LEAST = 500  # frames that bins may rest on
SEED = 1000  # evaluations begin at 0: their episodes stay unseen
DESCRIPTION = """\
Fit what schedule heterospec goes by: how sure the alternatives to the last action are (Phi, the
entropy of the best path), and what became of them. Verification rounds are replayed on a fixed
tree, from episodes that are played here or were recorded; every second episode is fitted on, and
the others are what the tables are judged by.

With --drafter head it is how sure the recursive draft head is; its target's rollouts are played, or
those are taken that its training has held out.

Written is heterospec.json, beside the checkpoint (beside the head), where the schedule looks for
it."""

EPILOG = """\
examples:
  vla-ros calibrate --checkpoint runs/small/policy
  vla-ros calibrate --checkpoint shipped:tabletop --output my.json --episodes 4
  vla-ros calibrate --checkpoint DIR --tokens runs/eval     of eval --keep-tokens; nothing is played
  vla-ros calibrate --checkpoint DIR --bag run.mcap
  vla-ros calibrate --checkpoint DIR --drafter head --rollouts runs/head/rollouts"""


def add_parser(verbs: Any) -> None:
    """The options of this verb."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "calibrate",
        help="fit the bins of uncertainty that heterospec goes by",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--checkpoint", default=CHECKPOINT, metavar="C", help=f"token policy ({CHECKPOINT})")
    add("--output", type=Path, metavar="FILE", help="(heterospec.json beside the checkpoint)")
    add("--tokens", type=Path, nargs="+", metavar="DIR", help="evaluations with --keep-tokens")
    add("--bag", type=Path, nargs="+", metavar="BAG", help="recordings of this policy")
    add("--drafter", choices=("temporal_tree", "head"), default="temporal_tree",
        help="whose uncertainty (temporal_tree)")  # fmt: skip
    add("--rollouts", type=Path, metavar="DIR", help="head: of `vla-ros train --head`")
    add("--draft-checkpoint", default="", metavar="DIR", help="head: its folder (draft_head in the"
        " checkpoint)")  # fmt: skip
    add("--nodes", default="24,64", metavar="N,N", help="of the fixed tree behind a prompt, and"
        " behind a token (24,64)")  # fmt: skip
    add("--json", action="store_true", help="end with one line of JSON on stdout")
    play = parser.add_argument_group("episodes that are played, where none are given").add_argument
    play("--episodes", type=int, default=4, metavar="N", help="of every task (4)")
    play("--tasks", nargs="+", default=[], metavar="NAME", help="tasks or families (all)")
    play("--suite", default="", metavar="S", help="of LIBERO, such as libero_object")
    play("--seed", type=int, default=SEED, help=f"of the initial states ({SEED})")
    play(
        "--replan-interval",
        type=int,
        default=0,
        metavar="S",
        help="actions of a chunk that are executed (half of it)",
    )
    play("--device", default="cpu", help="torch device (cpu)")
    play("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    play("--unnorm-key", default="", metavar="KEY", help="whose action statistics")
    play("--workers", type=int, default=1, metavar="N", help="processes (1)")


def run(args: argparse.Namespace) -> int:
    """Fit, judge, write, print; returns the exit status."""
    from vla_ros.analysis.calibration import fit, split
    from vla_ros.cli.calibrate.tables import figures, show_tables
    from vla_ros.engine.trees.expected import Budget

    nodes = _nodes(args.nodes)
    if min(args.episodes, args.workers) < 1:
        raise UserError("--episodes and --workers must be at least 1")
    if args.tokens and args.bag:
        raise UserError("--tokens or --bag, not both")
    _fits_drafter(args)
    window, sha256, steps = _checkpoint(args.checkpoint)
    output = _output(args)
    executed = args.replan_interval or max(steps // 2, 1)
    if args.drafter == "head":
        found = heads.offered(args, executed)
    else:
        said, source = sources.episodes(args, executed)
        _enough(said)
        parts = split(said, window, steps)
        found = heads.Offered(*parts, (len(said[1::2]), len(said[0::2])), source)
    about = {
        "checkpoint": args.checkpoint, "checkpoint_sha256": sha256, "drafter": args.drafter,
        "source": found.source, "episodes": found.episodes[0], "frames": len(found.fitted_on),
    }  # fmt: skip
    fitted = fit(found.fitted_on, Budget(*nodes), about=about)
    _write(output, fitted)
    held_out = figures(fitted, found.fitted_on, found.others)
    show_tables(fitted, held_out, len(found.others), found.episodes[1])
    if args.drafter == "head":
        print("\nof the costs above none is the head's own passes, one a level")
    print(f"\n{output}", flush=True)
    if args.json:
        print(json.dumps({"output": str(output), **about, **held_out.as_json()}), flush=True)
    return 0


def _fits_drafter(args: argparse.Namespace) -> None:
    """UserError: options of the other drafter."""
    head = args.drafter == "head"
    if head and (args.tokens or args.bag):
        raise UserError("--drafter head reads what the target thought: give --rollouts, not"
                        " --tokens or --bag")  # fmt: skip
    if not head and (args.rollouts or args.draft_checkpoint):
        raise UserError("--rollouts and --draft-checkpoint are for --drafter head")


def _nodes(text: str) -> tuple[int, int]:
    try:
        prompt, alone = (int(word) for word in text.split(","))
    except ValueError:
        raise UserError(f"--nodes {text}: give two numbers, such as 24,64") from None
    if min(prompt, alone) < 1:
        raise UserError(f"--nodes {text}: give at least 1 each")
    return prompt, alone


def _checkpoint(name: str) -> tuple[range, str, int]:
    """The token ids of its bins, its fingerprint, and the actions of an answer.

    UserError: no policy that says tokens.
    """
    from vla_ros.engine.checkpoints.openvla import fingerprint, read_layout, resolve
    from vla_ros.engine.errors import CheckpointError
    from vla_ros.engine.flow.families import is_flow
    from vla_ros.engine.tokens import ActionTokens

    if name.startswith("random:"):
        raise UserError(f"{name}: random weights do not act; name a policy")
    try:
        directory = resolve(name)
        if is_flow(directory):
            raise UserError(f"{name} is a flow policy: it says no tokens, nothing is drafted")
        refuse_unreadable(name)
        config = read_layout(directory).config
    except CheckpointError as error:
        raise UserError(str(error)) from error
    if config.parallel:
        raise UserError(f"{name} says its actions in one pass (OpenVLA-OFT): nothing is drafted")
    if config.vq:
        raise UserError(f"{name}'s tokens are codes, not bins beside each other: no alternatives")
    window = ActionTokens(config.action_vocab, config.bins).window
    return window, fingerprint(directory), config.chunk


def _output(args: argparse.Namespace) -> Path:
    """Where it is written; known to be writable before anything is played. UserError."""
    from vla_ros.engine.checkpoints.openvla import resolve
    from vla_ros.engine.checkpoints.shipped import PREFIX
    from vla_ros.engine.trees.calibration import FILE

    if args.output:
        folder = args.output.parent
        if args.output.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UserError(f"--output {args.output}: {folder} is no folder to write a file in")
        return Path(args.output)
    if args.checkpoint.startswith(PREFIX):
        raise UserError(
            f"{args.checkpoint} belongs to the package: give --output FILE, and the schedule"
            " calibration:=FILE"
        )
    if args.drafter == "head":
        directory = heads.head_folder(args)
    else:
        directory = resolve(args.checkpoint)
    if not os.access(directory, os.W_OK):
        raise UserError(f"{directory} cannot be written to: give --output FILE, and the schedule"
                        " calibration:=FILE")  # fmt: skip
    return directory / FILE


def _enough(found: list[sources.Said]) -> None:
    if len({len(row) for said in found for row in said}) > 1:
        raise UserError("actions of different lengths: give episodes of one policy")
    frames = sum(map(len, found))
    if len(found) < 2 or frames < LEAST or len(found[0][0]) < 2:
        said = f"{len(found)} episodes with {frames} frames"
        raise UserError(f"{said}: give 2 episodes and {LEAST} frames or more")


def _write(path: Path, fitted: Fitted) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(fitted.calibration.as_json()) + "\n", encoding="utf-8")
    scratch.replace(path)
