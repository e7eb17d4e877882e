"""What `vla-ros train` can be told."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

DESCRIPTION = """\
Train a small policy of OpenVLA's architecture, or with --arch small-flow of pi0's, on
demonstrations, and write it as a checkpoint directory (OUT/policy) that the engine and the policy
node load. The same command again goes on
where the last sitting ended, also after kill -9. Ctrl-C saves and ends.

With --dagger N the policy acts in the simulation N times along the way and the expert labels
what it saw. A GPU is used where there is one; then torch, h5py and the data set are enough
(on-policy rounds need the simulation too).

With --head it trains a draft head for a checkpoint that exists (--target): the target acts in the
simulation, the head learns to guess its tokens (OUT/draft_head), and is judged on episodes held
out. It changes nothing that the target says: `drafter: head` drafts with it. Of single actions it
guesses all that is left at once; of a chunk, or with --recursive, token after token."""

EPILOG = """\
examples:
  vla-ros train --data data/tabletop --out runs/small --dagger 4 --workers 2 --compile
  vla-ros train --data data/tabletop --out runs/small --dagger 4 --workers 2 --minutes 60
  vla-ros train --data data/tabletop --out runs/draft --arch qwen2-draft \\
      --vision-from runs/small/policy          a draft model on the target's vision features
  vla-ros train --data data/tabletop --out runs/late --delays 8 --dagger 4 \\
      --init-from runs/small/policy            a policy that knows how old its image is
  vla-ros train --data data/tabletop --out runs/oft --arch small-oft --steps 2500 \\
      --init-from runs/small/policy            a chunk policy of OpenVLA-OFT's kind
  vla-ros train --head --target shipped:tabletop --out runs/head      its draft head
  vla-ros train --head --target DIR --out runs/head --device cuda:0 --dtype bfloat16
  vla-ros train --data data/tabletop --out runs/flow --arch small-flow --steps 3500 \\
      --batch 16 --branches 3 --shift 0 --init-from runs/oft/policy
                                               a flow policy of pi0's kind
  vla-ros train --data data/tabletop --out runs/chunk --arch small-chunk --steps 3000 \\
      --batch 16 --branches 3 --init-from runs/small/policy
                                               the chunk said token by token, 56 of them

exit status: 0 done, or stopped as asked; 2 wrong usage or unusable data"""


def add_parser(verbs: Any) -> None:
    """The options of this verb."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "train",
        help="train the small policy on simulated demonstrations",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="from vla-ros collect, or LeRobotDatasets",
    )
    add("--out", type=Path, required=True, metavar="DIR", help="the run: state, log, policy")
    add(
        "--arch",
        default="small",
        help="small, qwen2-draft, small-oft, small-chunk, small-flow (small)",
    )
    add("--steps", type=int, help="in all (6000; at most 1000 of a head)")
    add("--batch", type=int, help="frames a step (32; 256 of a head)")
    add("--branches", type=int, help="sentences an image is trained with (4; of other people's"
        " data sets 1)")  # fmt: skip
    add("--samples", type=int, default=2, help="flow: noise drawn for a sentence (2)")
    add("--learning-rate", type=float, help="at its highest (1.5e-3; 1e-3 of a head)")
    add("--warmup", type=int, default=50, metavar="STEPS", help="until it is reached (50)")
    add("--decay", choices=("sqrt", "cosine"), default="sqrt", help="of the rate, to zero (sqrt)")
    add("--sigma-bins", type=float, default=4.0, help="width of the soft bins; 0: hard (4)")
    add("--patch-weight", type=float, default=1.0, help="of naming objects in patches (1)")
    add("--place-weight", type=float, default=0.5, help="of pointing at what is meant (0.5)")
    add("--shift", type=int, default=3, help="augmentation: largest shift, pixels; 0: off (3)")
    add("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the products")
    add("--seed", type=int, default=0, help="weights and batches (0)")
    add("--wrist", action="store_true", help="a model of two images; data collected with --wrist")
    add("--vision-from", default="", metavar="DIR", help="take and keep this vision tower")
    add("--init-from", default="", metavar="DIR", help="begin with the weights of this checkpoint")
    add("--dagger", type=int, default=0, metavar="ROUNDS", help="on-policy correction (0)")
    add("--dagger-episodes", type=int, default=100, help="of a round (100)")
    add("--check", type=int, default=0, metavar="N", help="then play N held-out states a family")
    add(
        "--delays",
        type=int,
        default=0,
        metavar="N",
        help="learn to act on images that are 0 to N"
        " control periods old, told how old (0: on fresh ones)",
    )
    add("--head", action="store_true", help="train a draft head for --target")
    add("--recursive", action="store_true", help="head: one that is asked token after token, as"
        " EAGLE-3's; what a chunk policy gets anyway")  # fmt: skip
    add("--executed", type=int, metavar="S", help="head: actions of a chunk that are executed in"
        " the rollouts (half of it)")  # fmt: skip
    add("--target", default="", metavar="DIR", help="head: the checkpoint that it drafts for")
    add("--episodes", type=int, default=4, metavar="N", help="head: to learn from, a task (4)")
    add("--held-out", type=int, default=1, metavar="N", help="head: to judge by, a task (1)")
    add("--unnorm-key", metavar="NAME", help="head: the target's statistics, if it has several")
    add("--json", action="store_true", help="head: the result as one last line for a program")
    add("--minutes", type=float, help="end this sitting after that time, saved")
    add("--device", help="cpu or cuda (cuda where there is one)")
    add("--threads", type=int, help="of torch, on a CPU")
    add("--compile", action="store_true", help="torch.compile: a slow start, then faster")
    add("--workers", type=int, default=1, help="processes for simulated episodes (1)")
    add("--save-every", type=float, default=120.0, metavar="SECONDS", help="(120)")


def given(args: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """What was said of these; the rest is as the recipe has it."""
    said = {name: getattr(args, name) for name in names}
    return {name: value for name, value in said.items() if value is not None}
