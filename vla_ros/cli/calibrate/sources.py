"""What a policy said, episode by episode: played here, kept by an evaluation, or in a bag."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from vla_ros.console.progress import Progress
from vla_ros.errors import UserError

Said = list[list[int]]  # [frames][K] of an episode


def episodes(args: argparse.Namespace, executed: int) -> tuple[list[Said], str]:
    """The episodes, those of a task side by side, and where they are from. UserError.

    ``executed``: so many actions of a chunk, where they are played."""
    if args.tokens:
        found = [said for folder in args.tokens for said in _kept(folder)]
        return found, "tokens kept by an evaluation"
    if args.bag:
        found = [said for bag in args.bag for said in _in_bag(bag)]
        return found, "tokens of a recording"
    return _played(args, executed), f"{args.episodes} episodes a task, seed {args.seed}"


def _kept(folder: Path) -> list[Said]:
    from vla_ros.evaluation.spoken import read_spoken

    return [one.tokens.tolist() for one in read_spoken(folder)]


def _in_bag(path: Path) -> list[Said]:
    """An episode ends where the policy was reset or given another task."""
    try:
        from vla_ros.replay.bag import Bag
        from vla_ros.replay.errors import BagError
        from vla_ros.replay.recorded import read_recorded
        from vla_ros.replay.topics import pick
    except ImportError:
        raise UserError("rosbags is missing: pip install '.[replay]' in the checkout") from None
    try:
        with Bag(path) as bag:
            recorded = read_recorded(bag, pick(bag.topics, {}))
    except BagError as error:
        raise UserError(str(error)) from None
    if recorded.run is None or not recorded.run.tokens:
        raise UserError(f"{path} has no tokens: record a policy that says some")
    found: list[Said] = []
    epoch: int | None = None
    for stamp, tokens in sorted(recorded.run.tokens.items()):
        now = recorded.epochs.get(stamp, epoch)
        if not found or now != epoch:
            found.append([])
        epoch = now
        found[-1].append(list(tokens))
    return found


def _played(args: argparse.Namespace, executed: int) -> list[Said]:
    """Episodes without ROS, in lock-step, with the schedule that changes nothing."""
    try:
        from vla_ros.cli.eval.verb import direct_runner
        from vla_ros.evaluation import parallel
        from vla_ros.evaluation.plan import Plan, select_tasks
        from vla_ros.evaluation.player import Order
        from vla_ros.evaluation.runner import RunnerFailed
        from vla_ros.evaluation.worlds import world_of
    except ImportError as missing:
        raise UserError(f"{missing}; `vla-ros doctor` says what to install") from missing
    from vla_ros.cli.eval.options import environment_of, setup_of
    from vla_ros.cli.eval.variants import variants_of

    asked = _as_evaluation(args, executed)
    world = world_of(environment_of(asked), asked.suite)
    tasks = select_tasks(world.tasks, asked.tasks)
    plan = Plan(setup_of(asked, world.note), variants_of(asked), tasks, asked.episodes)
    jobs = plan.jobs()
    orders = [Order(job) for job in jobs]
    found: dict[tuple[str, int, int], Said] = {}
    with Progress() as progress:
        progress.update("play", "episodes", 0, len(jobs))
        try:
            if args.workers > 1:
                play = parallel.play_in_processes(
                    direct_runner, plan.setup, plan.variants, orders, args.workers
                )
            else:
                play = parallel.play_here(direct_runner, plan.setup, plan.variants, orders)
            for number, one in enumerate(play, 1):
                job, said = one.record.job, [list(row) for row in one.record.said]
                if said:
                    found[job.task, job.seed, job.initial_state] = said
                progress.update("play", "episodes", number, len(jobs))
        except RunnerFailed as failed:
            raise UserError(str(failed)) from failed
    return [found[key] for key in sorted(found)]


def _as_evaluation(args: argparse.Namespace, executed: int) -> argparse.Namespace:
    """The options of `vla-ros eval` that play these episodes."""
    from vla_ros.cli.eval.options import add_parser, check

    verbs = argparse.ArgumentParser().add_subparsers()
    add_parser(verbs)
    words: Sequence[str] = [
        "--no-ros", "--schedule", "speculative", "--checkpoint", args.checkpoint,
        "--episodes", str(args.episodes), "--seed", str(args.seed), "--device", args.device,
        "--replan-interval", str(executed), "--dtype", args.dtype, "--suite", args.suite,
        "--unnorm-key", args.unnorm_key,
        *(("--tasks", *args.tasks) if args.tasks else ()),
    ]  # fmt: skip
    asked: argparse.Namespace = verbs.choices["eval"].parse_args(words)
    check(asked)
    return asked
