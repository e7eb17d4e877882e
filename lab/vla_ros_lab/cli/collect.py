"""`vla-ros collect`: demonstrations of a scripted expert, on the tabletop or in LIBERO."""

from __future__ import annotations

import argparse
from pathlib import Path

from vla_ros.cli.arguments import Verbs, add_fields, add_verb
from vla_ros.core.console import Progress
from vla_ros.core.errors import UserError, user_errors
from vla_ros.engine.io.config import MOST_DELAY
from vla_ros_lab.train.options import FAMILIES, CollectOptions, flags

DESCRIPTION = """\
Let the scripted expert solve the tabletop's tasks and record what it sees and does: images,
its clean actions as labels (what it executes is disturbed), where every object is in the image,
the instruction in several wordings. Failed demonstrations are discarded. Stopped at any moment it
goes on where it was; any number of workers records the same.

With --suite libero_object LIBERO's expert does the same for each task's own instruction, in initial
states 10 to 49: `vla-ros eval --episodes 10` plays the first ten, which training never sees.

With --policy a checkpoint acts and the expert only labels: data to correct it with (DAgger).
`vla-ros train --dagger` does that by itself."""

EPILOG = """\
examples:
  vla-ros collect --out data/tabletop --workers 4        the standard set: 1000, about 45 MB
  vla-ros collect --out data/reach --demos 100 --tasks reach
  vla-ros collect --out data/pick --demos 200 --tasks pick_green_cube
  vla-ros collect --out data/object --suite libero_object --demos 400

Initial states are drawn from seeds of a million and more; the evaluation's are below a million."""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "collect", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="directory of the shards")
    add("--tasks", nargs="+", default=FAMILIES, metavar="NAME", help="tasks or families (all)")
    add("--workers", type=int, default=1, help="processes (1)")
    add("--ray", default="", metavar="ADDRESS", help="on a Ray cluster (auto, HOST:PORT, ray://...),"
        " a CPU a shard; --workers: the most at once")  # fmt: skip
    add_fields(parser, CollectOptions, *flags(CollectOptions))


def run(args: argparse.Namespace) -> int:
    """Collect; returns the exit status."""
    if args.demonstrations < 1 or args.workers < 1:
        raise UserError("--demos and --workers must be at least 1")
    if not 16 <= args.image_size <= 256:
        raise UserError(f"--image-size {args.image_size}: give 16 to 256 pixels")
    if not 0 <= args.delays <= MOST_DELAY:
        raise UserError(f"--delays {args.delays}: give 0 to {MOST_DELAY}")
    if args.unsteady and not args.policy:
        raise UserError("--unsteady is of --policy: an expert alone sees every frame")
    if args.suite:
        _check_suite(args)
    try:
        from vla_ros.data.episodes.plan import select_tasks
        from vla_ros.engine.io.hub import resolve
        from vla_ros.sim.tasks import TASKS

        if not args.suite:
            select_tasks(TASKS, args.tasks)  # refuses a name that is none, before torch is imported
        from vla_ros_lab.train import collect_libero
        from vla_ros_lab.train.collect import collect, episode_seed, make_shard, totals
        from vla_ros_lab.train.demonstrations import SUFFIX
    except ImportError as error:
        raise UserError(f"{error}: pip install '.[sim]' ./lab in the checkout") from error
    options = CollectOptions(
        tasks=tuple(args.tasks),
        per_shard=10 if args.suite else 20,  # one of LIBERO takes long
        **{name: getattr(args, name) for name in flags(CollectOptions)},
    )
    make = collect_libero.make_shard if args.suite else make_shard
    with user_errors(ValueError):
        episode_seed(options, args.demonstrations - 1)
    if args.policy:
        resolve(args.policy)
    args.out.mkdir(parents=True, exist_ok=True)
    kept = failed = solved = 0
    with Progress() as progress:
        there = len(list(args.out.glob(f"*{SUFFIX}")))
        progress.update("collect", "shards", there, options.shard_count)
        for made in collect(options, args.out, args.workers, make, args.ray):
            kept += made.report.kept
            failed += made.report.failed
            solved += made.report.succeeded
            line = f"shards: {kept} demonstrations, {failed} failed and discarded"
            if args.policy:
                line = f"shards: {kept} episodes, {solved} solved, the expert acting at times"
            progress.update("collect", line, made.shards_done, made.shards)
    demonstrations, frames = totals(args.out)
    size = sum(path.stat().st_size for path in args.out.glob(f"*{SUFFIX}")) / 1e6
    print(f"{args.out}: {demonstrations} demonstrations, {frames} frames, {size:.1f} MB")
    return 0


def _check_suite(args: argparse.Namespace) -> None:
    """Refuse options of the tabletop, and a suite that cannot be played here: UserError."""
    from vla_ros.data.episodes.plan import world_of

    tabletop = {
        "--tasks": args.tasks != FAMILIES,
        "--two-ways": args.two_ways,
        "--wrist": args.wrist,
        "--policy": args.policy,
        "--crowded": args.crowded,
        "--delays": args.delays,
    }
    if wrong := [name for name, given in tabletop.items() if given]:
        raise UserError(f"{', '.join(wrong)}: of the tabletop alone, not with --suite")
    world_of("libero", args.suite)
