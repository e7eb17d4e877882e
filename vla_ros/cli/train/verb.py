"""`vla-ros train`, as it runs: what is wrong with the request first, then the sitting."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vla_ros.cli.train.head import train_head
from vla_ros.cli.train.options import given
from vla_ros.cli.train.sitting import Show, Stop
from vla_ros.console.progress import Progress
from vla_ros.errors import UserError

if TYPE_CHECKING:
    from vla_ros.sim.goals import Family
    from vla_ros.train.options import TrainOptions

RECIPE = (
    "arch", "steps", "batch", "branches", "samples", "learning_rate", "warmup", "decay",
    "sigma_bins", "patch_weight", "place_weight", "shift", "dtype", "seed", "wrist",
    "vision_from", "init_from", "delays",
)  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Train; returns the exit status."""
    if args.head != bool(args.target):
        raise UserError("--head and --target, the checkpoint to draft for, go together")
    if args.head and args.data:
        raise UserError("--head takes no --data: it learns from the target's own rollouts")
    if not args.head and not args.data:
        raise UserError("give --data, from vla-ros collect")
    try:
        import torch

        from vla_ros.engine.device import usable_device
        from vla_ros.lerobot_data.training import import_data
        from vla_ros.train.flow.arch import FLOW_ARCHITECTURES
        from vla_ros.train.memory import keep_freed_memory
        from vla_ros.train.run import Machine, Reporter
        from vla_ros.train.run import run as train
    except ImportError as error:
        raise UserError(f"{error}: pip install '.[model,train]' in the checkout") from error
    device = usable_device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if args.workers < 1:
        raise UserError("--workers must be at least 1")
    if args.check and args.arch in FLOW_ARCHITECTURES:
        raise UserError(
            "--check plays token policies: play a flow policy with vla-ros eval --no-ros"
            f" --checkpoint {args.out / 'policy'}"
        )
    with Progress() as importing:
        args.data, elsewhere = import_data(args.data or (), args.out, importing)
    if args.branches is None and elsewhere:
        args.branches = 1
    if args.check and elsewhere:
        raise UserError("--check plays in the tabletop, and --data is of another world")
    if args.threads:
        torch.set_num_threads(args.threads)
    if device.type == "cpu":
        keep_freed_memory()
    if args.head:
        return train_head(args, str(device))
    machine = Machine(device, args.workers, args.save_every, args.compile)
    progress = Progress()
    stop = Stop(args.minutes)
    try:
        options = _options(args)
        show = Show(progress, options.steps)
        ended = train(options, args.out, machine, Reporter(show, progress.say), stop)
        progress.end()
        print(f"{args.out / 'policy'}: {'done' if ended.done else 'not done yet: run it again'}")
        if args.check and not stop.asked:
            _check(args, progress, ended.families)
    finally:
        progress.end()
        stop.restore()
    return 0


def _options(args: argparse.Namespace) -> TrainOptions:
    from vla_ros.train.options import TrainOptions

    return TrainOptions(
        data=tuple(str(path) for path in args.data),
        rounds=args.dagger,
        round_episodes=args.dagger_episodes,
        **given(args, RECIPE),
    )


def _check(args: argparse.Namespace, progress: Progress, families: tuple[Family, ...]) -> None:
    from vla_ros.train.check import check, success_by_family

    outcomes = []
    total = args.check * len(families)
    for outcome in check(str(args.out / "policy"), args.check, families, args.workers):
        outcomes.append(outcome)
        said = [f"{f} {good}/{n}" for f, (good, n) in success_by_family(outcomes).items()]
        progress.update("check", f"held-out: {', '.join(said)}", len(outcomes), total)
    progress.end()
    for family, (good, count) in success_by_family(outcomes).items():
        print(f"{family}: {good} of {count} held-out episodes succeeded")
