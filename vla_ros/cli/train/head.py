"""`vla-ros train --head`: a draft head for a checkpoint that exists."""

from __future__ import annotations

import argparse

from vla_ros.cli.defaults import actions_of
from vla_ros.cli.train.options import given
from vla_ros.cli.train.sitting import Stop
from vla_ros.console.progress import Progress
from vla_ros.errors import UserError


def train_head(args: argparse.Namespace, device: str) -> int:
    """Train a draft head; returns the exit status."""
    import json
    from dataclasses import asdict

    from vla_ros.train.head.options import HeadOptions
    from vla_ros.train.head.rollouts import Recorded
    from vla_ros.train.head.run import HEAD, Reporter, Run, run
    from vla_ros.train.head.training import Step as HeadStep

    said = given(args, ("steps", "batch", "learning_rate", "seed"))
    recursive = args.recursive or actions_of(args.target) > 1
    options = HeadOptions.of_recursive(**said) if recursive else HeadOptions(**said)
    # On a CPU the rollouts are in fp32, where speculation says what decoding says to the token.
    dtype = "float32" if device == "cpu" else args.dtype
    wanted = Run(
        args.target, args.episodes, args.held_out, device, dtype, args.unnorm_key, args.executed
    )
    progress, stop = Progress(), Stop(args.minutes)
    passes = ""

    def recorded(made: Recorded) -> None:
        progress.update("rollouts", "the target acts", made.done, made.total)

    def stepped(step: HeadStep) -> None:
        nonlocal passes
        if step.judged:
            passes = f", {step.judged.passes:.2f} passes an action on episodes held out"
        progress.update("train", f"loss {step.loss:.3f}{passes}", step.number, options.steps)

    try:
        trained = run(wanted, options, args.out, Reporter(recorded, stepped), stop)
    except ValueError as error:
        raise UserError(str(error)) from error
    finally:
        progress.end()
        stop.restore()
    if trained is None:
        print(f"{args.out}: not all rollouts yet: run it again")
        return 0
    print(
        f"{args.out / HEAD}: {trained.judged.passes:.2f} passes an action on episodes held out,"
        f" {trained.temporal.passes:.2f} by temporal_tree; drafter: head takes it from"
        f" {HEAD} in the checkpoint, or as draft_checkpoint"
    )
    if trained.judged.first:
        levels = zip(trained.judged.first, trained.judged.four, strict=True)
        shown = ", ".join(f"{100 * a:.0f}/{100 * b:.0f}" for a, b in levels)
        print(f"likeliest/four likeliest right on each level, %: {shown}; by the recursion"
              f" {trained.judged.expected:.2f} passes with nothing behind the prompt")  # fmt: skip
    if args.json:
        judged = {"head": asdict(trained.judged), "temporal_tree": asdict(trained.temporal)}
        print(json.dumps({"step": trained.step, "held_out": judged}))
    return 0
