"""`vla-ros coverage`: what drafts an evaluation's recorded tokens would allow."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.errors import UserError

if TYPE_CHECKING:
    from vla_ros.analysis.coverage import Covered, Replayed, Tokens

NODES = (8, 16, 24, 64)
LEAST = 500  # frames that a figure may rest on
DESCRIPTION = """\
From what a policy said of every frame (`vla-ros eval --keep-tokens`): how often guesses made of
the actions before would have been right, token by token and together, and how many passes an
action would take with a chain and with trees of such guesses. Fitted guesses are judged by
episodes that they were not fitted on. Nothing is run: it counts."""

EPILOG = """\
example:
  vla-ros eval --no-ros --schedule autoregressive --episodes 2 --keep-tokens --out runs/tokens
  vla-ros coverage runs/tokens"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The options of this verb."""
    parser = verbs.add_parser(
        "coverage",
        help="what drafts recorded tokens would allow",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("directory", type=Path, metavar="DIR", help="of an evaluation with --keep-tokens")
    add("--variant", default="", metavar="LABEL", help="of several (all)")
    add("--solved", action="store_true", help="only episodes that were solved")
    add("--json", action="store_true", help="end with one line of JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Count and print; returns the exit status."""
    from vla_ros.analysis import coverage
    from vla_ros.console.streams import show
    from vla_ros.console.tables import Table

    episodes = _episodes(args)
    covered = coverage.coverage(episodes)
    replayed = _replayed(episodes)
    places = [str(place) for place in range(episodes[0].shape[1])]
    frames = sum(map(len, episodes))
    print(f"{frames} frames of {len(episodes)} episodes; per cent of the tokens at each place\n")
    show(
        Table(("alternatives", *places, "all drafted", "if independent"), map(_shares, covered)),
        "",
        Table(("passes an action", "passes", "recursion", "stood", "verified"),
              map(_passes, replayed)),
    )  # fmt: skip
    if args.json:
        print(json.dumps(_as_json(frames, episodes, covered, replayed)), flush=True)
    return 0


def _episodes(args: argparse.Namespace) -> list[Tokens]:
    from vla_ros.evaluation.spoken import read_spoken

    spoken = read_spoken(args.directory, args.variant)
    found = [one.tokens for one in spoken if one.success or not args.solved]
    if len({tokens.shape[1] for tokens in found}) > 1:
        raise UserError(f"{args.directory}: actions of different lengths: name one --variant")
    frames = sum(map(len, found))
    if len(found) < 2 or frames < LEAST or found[0].shape[1] < 2:
        said = f"{len(found)} episodes with {frames} frames"
        raise UserError(f"{args.directory} has {said}: give 2 episodes and {LEAST} frames or more")
    return found


def _replayed(episodes: list[Tokens]) -> list[Replayed]:
    from vla_ros.analysis.coverage import chain, learning, trees
    from vla_ros.engine.trees.expected import Budget

    found = [chain(episodes)]
    budgets = {f"{n}": Budget(n, n) for n in NODES} | {"24, then 64": Budget()}
    for name, budget in budgets.items():
        found.append(trees(episodes, budget, f"tree of {name}: fitted"))
        found.append(learning(episodes, budget, False, f"tree of {name}: learned"))
        found.append(learning(episodes, budget, True, f"tree of {name}: anew in each episode"))
    return found


def _shares(row: Covered) -> tuple[str, ...]:
    return (
        row.name,
        *(f"{100 * share:.0f}" for share in row.shares),
        f"{100 * row.joint:.1f}",
        f"{100 * row.product:.1f}",
    )


def _passes(row: Replayed) -> tuple[str, ...]:
    expected = "" if row.expected is None else f"{row.expected:.2f}"
    return row.name, f"{row.passes:.2f}", expected, f"{row.accepted:.2f}", f"{row.verified:.1f}"


def _as_json(
    frames: int, episodes: list[Tokens], covered: list[Covered], replayed: list[Replayed]
) -> dict[str, Any]:
    return {
        "frames": frames,
        "episodes": len(episodes),
        "coverage": [asdict(row) for row in covered],
        "passes": [asdict(row) for row in replayed],
    }
