"""`vla-ros coverage`: what drafts an evaluation's recorded tokens would allow."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.cli.arguments import Verbs, add_flag, add_verb
from vla_ros.core.console import print_json
from vla_ros.core.errors import UserError

if TYPE_CHECKING:
    from vla_ros_lab.roofline.coverage.alternatives import Coverage
    from vla_ros_lab.roofline.coverage.episodes import Chunks, Tokens
    from vla_ros_lab.roofline.coverage.passes import Replayed

NODES = (8, 16, 24, 64)
LEAST = 500  # frames that a figure may rest on
DESCRIPTION = """\
From what a policy said of every frame (`vla-ros eval --keep-tokens`): how often guesses made of
the actions before would have been right, token by token and together, and how many passes an
action would take with a chain and with trees of such guesses. Fitted guesses are judged by
episodes that they were not fitted on. Nothing is run: it counts.

Of a policy that says chunks the guesses are the last chunk, shifted by the steps executed in
between, and the step before in the same chunk; shares are shown for each step and dimension."""

EPILOG = """\
example:
  vla-ros eval --no-ros --decoding autoregressive --episodes 2 --keep-tokens --out runs/tokens
  vla-ros coverage runs/tokens"""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "coverage", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("directory", type=Path, metavar="DIR", help="of an evaluation with --keep-tokens")
    add("--variant", default="", metavar="LABEL", help="of several (all)")
    add("--solved", action="store_true", help="only episodes that were solved")
    add("--chunk", type=int, metavar="C", help="actions of an answer (as the evaluation says)")
    add("--executed", type=int, metavar="S", help="of them carried out before the next answer (as"
        " the evaluation says)")  # fmt: skip
    add_flag(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """Count and print; returns the exit status."""
    from vla_ros.core.console import Table, show
    from vla_ros_lab.roofline.coverage.alternatives import coverage

    episodes = _episodes(args)
    chunks = _chunks(args, episodes[0].shape[1])
    covered = coverage(episodes, chunks)
    replayed = _replayed(episodes, chunks)
    frames = sum(map(len, episodes))
    print(
        f"{frames} frames of {len(episodes)} episodes; per cent of the tokens at each place;\n"
        "all: of the drafted ones at once, product: if they were independent\n"
    )
    tables: list[Table | str] = []
    for name, parts in _groups(episodes[0].shape[1], chunks.steps).items():
        heads = (f"by {name}" if name else "alternatives", *map(str, range(len(parts))))
        lines = [_shares(row, parts) for row in covered]
        tables += [Table((*heads, "all", "product"), lines), ""]
    show(
        *tables,
        Table(("passes an action", "passes", "recursion", "stood", "verified"),
              map(_passes, replayed)),
    )  # fmt: skip
    if args.json:
        print_json(_as_json(frames, episodes, covered, replayed))
    return 0


def _episodes(args: argparse.Namespace) -> list[Tokens]:
    from vla_ros.data.episodes.store import read_tokens

    spoken = read_tokens(args.directory, args.variant)
    found = [one.tokens for one in spoken if one.success or not args.solved]
    if len({tokens.shape[1] for tokens in found}) > 1:
        raise UserError(f"{args.directory}: actions of different lengths: name one --variant")
    frames = sum(map(len, found))
    if len(found) < 2 or frames < LEAST or found[0].shape[1] < 2:
        said = f"{len(found)} episodes with {frames} frames"
        raise UserError(f"{args.directory} has {said}: give 2 episodes and {LEAST} frames or more")
    return found


def _chunks(args: argparse.Namespace, width: int) -> Chunks:
    """How many actions an answer has and how many of them were executed: as said, else as the
    evaluation's run.json has it. UserError."""
    from vla_ros.data.episodes.store import RUN, read_run
    from vla_ros_lab.roofline.coverage.episodes import Chunks

    steps, executed = args.chunk, args.executed
    if (steps is None or executed is None) and (args.directory / RUN).is_file():
        setup, variants = read_run(args.directory)
        steps = setup.chunk if steps is None else steps
        wanted = {v.replan_interval for n, v in variants.items() if args.variant in ("", n)}
        if executed is None and len(wanted) == 1:
            executed = wanted.pop() or steps
    steps = steps or 1
    if steps < 1 or width % steps:
        raise UserError(f"--chunk {steps}: {width} tokens are no {steps} actions")
    if executed is not None and not 1 <= executed <= steps:
        raise UserError(f"--executed {executed}: give 1 to {steps}")
    return Chunks(steps, executed)


def _groups(width: int, steps: int) -> dict[str, list[list[int]]]:
    """The columns of each table, as places of an answer."""
    dim = width // steps
    if steps == 1:
        return {"": [[place] for place in range(width)]}
    return {
        "step": [[step * dim + d for d in range(dim)] for step in range(steps)],
        "dimension": [[step * dim + d for step in range(steps)] for d in range(dim)],
    }


def _replayed(episodes: list[Tokens], chunks: Chunks) -> list[Replayed]:
    from vla_ros.engine.decoding.draft_tree import Budget
    from vla_ros_lab.roofline.coverage.passes import chain, learning, trees

    found = [chain(episodes, chunks)]
    budgets = {f"{n}": Budget(n, n) for n in NODES} | {"24, then 64": Budget()}
    for name, budget in budgets.items():
        found.append(trees(episodes, budget, f"tree of {name}: fitted", chunks))
        found.append(learning(episodes, budget, False, f"tree of {name}: learned", chunks))
        anew = f"tree of {name}: anew in each episode"
        found.append(learning(episodes, budget, True, anew, chunks))
    return found


def _shares(row: Coverage, parts: Sequence[Sequence[int]]) -> tuple[str, ...]:
    return (
        row.name,
        *(f"{100 * sum(row.shares[place] for place in part) / len(part):.0f}" for part in parts),
        f"{100 * row.joint:.1f}",
        f"{100 * row.product:.1f}",
    )


def _passes(row: Replayed) -> tuple[str, ...]:
    expected = "" if row.expected is None else f"{row.expected:.2f}"
    return row.name, f"{row.passes:.2f}", expected, f"{row.accepted:.2f}", f"{row.verified:.1f}"


def _as_json(
    frames: int, episodes: list[Tokens], covered: list[Coverage], replayed: list[Replayed]
) -> dict[str, Any]:
    return {
        "frames": frames,
        "episodes": len(episodes),
        "coverage": [asdict(row) for row in covered],
        "passes": [asdict(row) for row in replayed],
    }
