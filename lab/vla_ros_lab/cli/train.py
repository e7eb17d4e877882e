"""`vla-ros train`: the small policies and draft heads, in sittings that go on where one ended."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.cli.arguments import Verbs, add_fields, add_flag, add_verb
from vla_ros.core.console import Progress, print_json
from vla_ros.core.errors import UserError, user_errors
from vla_ros_lab.train.options import (
    FAMILIES,
    UNSET,
    HeadRun,
    LeRobotRun,
    Machine,
    TrainOptions,
    dtype_of,
    flags,
)

if TYPE_CHECKING:
    import torch

    from vla_ros.engine.io.config import ModelConfig
    from vla_ros.sim.tasks import Family
    from vla_ros_lab.train.run import Track


DESCRIPTION = """\
Train a small policy of OpenVLA's architecture, or with --arch small-flow of pi0's, on
demonstrations, and write it as a checkpoint directory (OUT/policy) that the engine and the policy
node load. The same command again goes on
where the last sitting ended, also after kill -9. Ctrl-C saves and ends.

With --recipe all stages from nothing are run: collect, train, draft head, bins, judge. Which, and
with which options, is in the recipe; OUT/recipe.log says what came of each.

With --dagger N the policy acts in the simulation N times along the way and the expert labels
what it saw. A GPU is used where there is one; then torch, h5py and the data set are enough
(on-policy rounds need the simulation too).

Of bags of vla-ros record, corrections are drawn first and whole episodes held out to judge by.
With --lora it adapts a token policy of any size, with --lerobot LeRobot's own trainer is run.

With --head it trains a draft head for a checkpoint that exists (--target): the target acts in the
simulation, the head learns to guess its tokens (OUT/draft_head), and is judged on episodes held
out. It changes nothing in the target's actions: `drafter: head` drafts with it, token after token.
pi0-FAST, which is of another robot, does not act: it answers the frames of --data.

With --corrector it trains a small head for a flow policy of the tabletop (--target), which
corrects each action of its chunks by the newest image: on --data, then on --dagger rounds (3) of
own episodes with late chunks and a cube that is moved."""

EPILOG = """\
examples:
  vla-ros train --recipe tabletop --out runs/tabletop --workers 2 --compile
                                               from nothing to the policy that ships
  vla-ros train --data data/tabletop --out runs/small --dagger 4 --workers 2 --compile
  vla-ros train --data data/tabletop --out runs/small --dagger 4 --workers 2 --minutes 60
  vla-ros train --data data/tabletop --out runs/draft --arch qwen2-draft \\
      --vision-from runs/small/policy          a draft model on the target's vision features
  vla-ros train --data data/tabletop --out runs/late --delays 8 --dagger 4 \\
      --init-from runs/small/policy            a policy that knows how old its image is
  vla-ros train --data data/tabletop --out runs/oft --arch small-oft --steps 2500 \\
      --init-from runs/small/policy            a chunk policy of OpenVLA-OFT's kind
  vla-ros train --data run1 run2 --out runs/better --init-from runs/small/policy --steps 400
                                               go on with what was recorded, corrections first
  vla-ros train --data run1 run2 --out runs/mine --init-from ~/openvla-7b --lora 32 --batch 16
                                               OpenVLA by LoRA
  vla-ros train --corrector --target DIR --data data/box --out runs/corrector   execution: corrected
  vla-ros train --lerobot smolvla --data data/robot --out runs/smolvla --steps 20000
                                               LeRobot's own trainer, on what was exported
  vla-ros train --head --target shipped:tabletop --out runs/head      its draft head
  vla-ros train --head --target DIR --out runs/head --device cuda:0 --dtype bfloat16
  vla-ros train --head --target ~/pi0fast --data run1 run2 --out runs/head   of pi0-FAST
  vla-ros train --data data/tabletop --out runs/flow --arch small-flow --steps 3500 \\
      --batch 16 --branches 3 --shift 0 --init-from runs/oft/policy
                                               a flow policy of pi0's kind
  vla-ros train --data data/tabletop --out runs/chunk --arch small-chunk --steps 3000 \\
      --batch 16 --branches 3 --init-from runs/small/policy
                                               the chunk token by token, 56 of them

exit status: 0 done, or stopped as asked; 2 wrong usage or unusable data; 3 a recipe's judge was
not content, OUT/policy stays as it was"""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "train", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="from vla-ros collect or record, or LeRobotDatasets",
    )
    add("--recipe", metavar="NAME", help="all stages of a recipe of the lab, or of a .yaml, from"
        " nothing to OUT/policy: tabletop, tabletop-flow, so101")  # fmt: skip
    add("--out", type=Path, required=True, metavar="DIR", help="the run: state, log, policy")
    add_fields(parser, TrainOptions, *flags(TrainOptions), **dict.fromkeys(UNSET))
    add("--dagger-families", nargs="+", choices=FAMILIES, dest="round_families", help="kinds of"
        " task of a round, in turn; one may be named twice (all that are trained)")  # fmt: skip
    add("--check", type=int, default=0, metavar="N", help="then play N held-out states a family")
    add("--head", action="store_true", help="train a draft head for --target")
    add("--corrector", action="store_true", help="train a corrector for --target, a flow policy")
    add_fields(parser, HeadRun, *flags(HeadRun))
    add_fields(parser, LeRobotRun, *flags(LeRobotRun))
    add("--lerobot-option", action="append", default=[], metavar="NAME=VALUE", help="of"
        " lerobot-train, such as policy.chunk_size=16; may be given again")  # fmt: skip
    add("--track", choices=("tensorboard", "wandb"), help="losses there too, of a policy's training"
        " (LeRobot's: --lerobot-option wandb.enable=true)")  # fmt: skip
    add_flag(parser, "--json", help="head: the result as one last line for a program")
    add("--minutes", type=float, help="end this sitting after that time, saved")
    add("--device", help="cpu or cuda (cuda where there is one)")
    add("--threads", type=int, help="of torch, on a CPU")
    add_fields(parser, Machine, *flags(Machine))
    parser.set_defaults(default_of=parser.get_default)


def given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Values of the flags that were given; without them the recipe's own hold."""
    values = {name: getattr(args, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


class Stop:
    """End of this sitting: its time is over, or Ctrl-C or SIGTERM came."""

    def __init__(self, minutes: float | None) -> None:
        self._end = time.monotonic() + 60 * minutes if minutes else float("inf")
        self.requested = False

    def signalled(self, number: int, frame: object) -> None:
        """Ask to end; twice: at once."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def __call__(self) -> bool:
        return self.requested or time.monotonic() >= self._end


@contextlib.contextmanager
def sitting(args: argparse.Namespace) -> Iterator[tuple[Progress, Stop]]:
    """Progress and stop of a sitting."""
    progress, stop = Progress(), Stop(args.minutes)
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, stop.signalled) for number in kinds}
    try:
        yield progress, stop
    finally:
        progress.end()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def tracked(where: str | None, out: Path) -> Iterator[Track]:
    """Receiver of the losses of each step: TensorBoard's file in ``out``, Weights & Biases, or
    none. A sitting after a stop goes on with the same curve. UserError: not installed."""
    if where is None:
        yield lambda losses, step: None
        return
    modules = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}
    try:
        found: Any = importlib.import_module(modules[where])
    except ImportError as error:
        raise UserError(f"--track {where}: {error}: pip install {where}") from error
    if where == "tensorboard":
        with found.SummaryWriter(out / "tensorboard") as writer:

            def write(losses: dict[str, float], step: int) -> None:
                for name, value in losses.items():
                    writer.add_scalar(name, value, step)

            yield write
    else:
        name = out.absolute().name
        with found.init(project="vla_ros", name=name, id=name, dir=out, resume="allow") as run:
            yield lambda losses, step: run.log(losses, step=step)


def train_head(args: argparse.Namespace, device: str) -> int:
    """Train a draft head for a checkpoint that exists; returns the exit status."""
    from dataclasses import asdict

    from vla_ros_lab.train.head.options import HeadOptions
    from vla_ros_lab.train.head.rollouts import Recorded
    from vla_ros_lab.train.head.run import HEAD, Reporter, run
    from vla_ros_lab.train.head.training import Step as HeadStep

    options = HeadOptions(**given(args, "steps", "batch", "learning_rate", "seed"))
    # On a CPU the rollouts are in fp32, where speculation gives the target's tokens exactly.
    dtype = "float32" if device == "cpu" else args.dtype
    wanted = HeadRun(
        device=device, dtype=dtype, data=tuple(args.data or ()), **given(args, *flags(HeadRun))
    )
    passes = ""

    def recorded(made: Recorded) -> None:
        doing = "answers" if args.data else "acts"
        progress.update("rollouts", f"the target {doing}", made.done, made.total)

    def stepped(step: HeadStep) -> None:
        nonlocal passes
        if step.judged:
            passes = f", {step.judged.passes:.2f} passes an action on episodes held out"
        progress.update("train", f"loss {step.loss:.3f}{passes}", step.number, options.steps)

    with sitting(args) as (progress, stop), user_errors(ValueError):
        trained = run(wanted, options, args.out, Reporter(recorded, stepped), stop)
    if trained is None:
        print(f"{args.out}: not all rollouts yet: run it again")
        return 0
    judged = trained.judged
    print(
        f"{args.out / HEAD}: {judged.passes:.2f} passes an action on episodes held out,"
        f" {trained.temporal.passes:.2f} by temporal_tree; drafter: head takes it from"
        f" {HEAD} in the checkpoint, or as draft_checkpoint"
    )
    if judged.first:
        levels = zip(judged.first, judged.four, strict=True)
        line = ", ".join(f"{100 * a:.0f}/{100 * b:.0f}" for a, b in levels)
        if judged.expected is not None:
            line += f"; by the recursion {judged.expected:.2f} passes with nothing behind the"
            line += " prompt"
        print(f"likeliest/four likeliest right on each level, %: {line}")
    if args.json:
        both = {"head": asdict(judged), "temporal_tree": asdict(trained.temporal)}
        print_json({"step": trained.step, "held_out": both})
    return 0


def train_corrector(args: argparse.Namespace) -> int:
    """Train a corrector; returns the exit status."""
    from vla_ros_lab.train.corrector.run import run
    from vla_ros_lab.train.corrector.training import CorrectorOptions

    recipe = given(args, "steps", "batch", "learning_rate", "seed")
    if args.rounds:
        recipe |= given(args, "rounds", "round_episodes")
    with sitting(args) as (progress, stop), user_errors(ValueError):

        def report(what: str, done: int, total: int) -> None:
            progress.update("corrector", what, done, total)

        options = CorrectorOptions(**recipe)
        ended = run(args.target, tuple(args.data), options, args.out, report, stop)
    print(
        f"{ended.folder}: {ended.parameters} parameters; copied into {args.target}, it serves"
        " `execution: corrected`"
    )
    return 0


#: what LeRobot's trainer is given of the flags
BESIDE_LEROBOT = (
    "verb", "default_of", "policy", "data", "out", "steps", "batch", "seed", "validation", "device",
    "gpus", "lerobot_option", "threads",
)  # fmt: skip


def refuse_besides(args: argparse.Namespace, known: Sequence[str], why: str) -> None:
    """Raise UserError where a flag was given that is none of ``known``."""
    tables = (TrainOptions, HeadRun, LeRobotRun, Machine)
    named = {one.name: one.metadata.get("flag", one.name) for t in tables for one in fields(t)}
    for name, value in vars(args).items():
        if name not in known and value != args.default_of(name):
            raise UserError(f"--{named.get(name, name).replace('_', '-')} {why}")


def train_lerobot(args: argparse.Namespace) -> int:
    """Let LeRobot train; returns the exit status."""
    from vla_ros.data.lerobot.dataset import is_dataset, python_of
    from vla_ros_lab.train.lerobot import held_out, train

    refuse_besides(
        args, BESIDE_LEROBOT, "means nothing to LeRobot's trainer: give its own by --lerobot-option"
    )
    if len(args.data) != 1:
        raise UserError("--lerobot trains on one data set: export several bags into one")
    if args.device is None:
        args.device = "cuda" if Path("/dev/nvidia0").exists() else "cpu"
    recipe = given(args, "steps", "batch", "seed", "validation", "device", "gpus")
    more = tuple(args.lerobot_option)
    run = LeRobotRun(args.policy, str(args.data[0]), more=more, **recipe)
    python = python_of()
    if is_dataset(data := Path(run.data)):
        share = held_out(python, data, run.validation, args.validation is not None)
        run = replace(run, validation=share)
    policy = train(run, args.out, python, args.threads)
    print(f"{policy}: done; `policy: lerobot` runs it")
    return 0


#: what stands beside --recipe: of the machine and of this sitting
BESIDE_RECIPE = (
    "ray",
    "verb",
    "default_of",
    "recipe",
    "out",
    "json",
    "minutes",
    "device",
    "threads",
    *flags(Machine),
)


def train_recipe(args: argparse.Namespace) -> int:
    """Run a recipe's stages; returns the exit status."""
    if args.workers < 1:
        raise UserError("--workers must be at least 1")
    refuse_besides(
        args, BESIDE_RECIPE, "is in the recipe: leave it out, or take a .yaml of your own"
    )
    try:
        from vla_ros_lab.cli.recipe import RecipeRun
        from vla_ros_lab.train.recipe import read_recipe

        recipe = read_recipe(args.recipe)
        device = device_of(args)
    except ImportError as error:
        raise UserError(f"{error}: pip install '.[sim]' ./lab in the checkout") from error
    machine = Machine(device, args.workers, args.save_every_s, args.ray, args.compiled)
    with sitting(args) as (progress, stop), user_errors(ValueError):
        status, result = RecipeRun(recipe, args.out, machine, progress, stop).run()
    if args.json:
        print_json(result)
    return status


def device_of(args: argparse.Namespace) -> torch.device:
    """The device that is trained on, with as many threads as was asked for."""
    import torch

    from vla_ros.engine.layers.devices import usable_device
    from vla_ros_lab.train.loop import keep_freed_memory

    device = usable_device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if args.threads:
        torch.set_num_threads(args.threads)
    if device.type == "cpu":
        keep_freed_memory()
    return device


def run(args: argparse.Namespace) -> int:
    """Train; returns the exit status."""
    if args.recipe:
        return train_recipe(args)
    if args.head and args.corrector:
        raise UserError("--head and --corrector are two runs")
    if (args.head or args.corrector) != bool(args.target):
        raise UserError("--head or --corrector, and --target, whom it is for, go together")
    if not args.head and not args.data:
        raise UserError("give --data, from vla-ros collect")
    if (args.lerobot_option or args.gpus != 1) and not args.policy:
        raise UserError("--lerobot-option and --gpus are for --lerobot")
    if args.track and (args.policy or args.head or args.corrector):
        raise UserError("--track is of a policy's training; LeRobot has wandb.enable=true")
    if args.policy:
        return train_lerobot(args)
    for folder in () if args.head else args.data:
        if not Path(folder).exists():
            raise UserError(f"--data {folder}: no such folder; vla-ros collect makes one")
    try:
        from vla_ros.engine.layers.devices import multiplies_bfloat16
        from vla_ros_lab.train.flow import FLOW_ARCHITECTURES
        from vla_ros_lab.train.imports import import_data
        from vla_ros_lab.train.run import Reporter, TrainProgress
        from vla_ros_lab.train.run import run as train
    except ImportError as error:
        raise UserError(f"{error}: pip install ./lab in the checkout") from error
    device = device_of(args)
    if args.workers < 1:
        raise UserError("--workers must be at least 1")
    if args.check and args.arch in FLOW_ARCHITECTURES:
        raise UserError(
            "--check plays token policies: play a flow policy with vla-ros eval --no-ros"
            f" --checkpoint {args.out / 'policy'}"
        )
    args.dtype = args.dtype or dtype_of(args.out, multiplies_bfloat16(device))
    if args.head:
        return train_head(args, str(device))
    if args.corrector:
        return train_corrector(args)
    with Progress() as importing:
        if args.lora and args.learning_rate is None:
            args.learning_rate = 5e-4  # as OpenVLA's fine-tuning
        known = bounds_of(args.init_from) if args.init_from else None
        if args.delays is None and args.init_from and not args.lora:
            args.delays = delay_of(args.init_from, args.arch)
        args.data, elsewhere = import_data(args.data or (), args.out, importing, known)
    if all(elsewhere):
        args.branches = args.branches or 1
    if any(elsewhere):
        args.validation = 0.1 if args.validation is None else args.validation
    if args.check and all(elsewhere):
        raise UserError("--check plays in the tabletop, and --data is of another world")
    machine = Machine(device, args.workers, args.save_every_s, args.ray, args.compiled)
    with sitting(args) as (progress, stop):
        recipe = given(args, *flags(TrainOptions))
        if args.round_families:
            recipe["round_families"] = tuple(args.round_families)
        options = TrainOptions(data=tuple(str(path) for path in args.data), **recipe)
        with tracked(args.track, args.out) as track:
            show = TrainProgress(progress, track)
            ended = train(options, args.out, machine, Reporter(show, progress.say), stop)
        progress.end()
        print(f"{args.out / 'policy'}: {'done' if ended.done else 'not done yet: run it again'}")
        if args.check and not stop.requested:
            _check(args, progress, ended.families)
    return 0


def _token_config(checkpoint: str) -> tuple[ModelConfig, Mapping[str, Any]] | None:
    """Configuration of a token policy, parsed and as its file has it; None: of another kind."""
    from vla_ros.engine.families.registry import family_of
    from vla_ros.engine.io.checkpoint import read_config
    from vla_ros.engine.io.hub import RANDOM, resolve
    from vla_ros.engine.options import TOKENS

    if checkpoint.startswith(RANDOM):
        return None
    directory = resolve(checkpoint)
    return read_config(directory) if family_of(directory).group == TOKENS else None


def bounds_of(checkpoint: str) -> tuple[str, tuple[float, ...]] | None:
    """Name and bounds [6] of the actions of one of our policies; None: another's, or a flow
    policy, which has none."""
    found = _token_config(checkpoint)
    stats = (found[1].get("norm_stats") or {}) if found else {}
    if len(stats) != 1:
        return None
    ((name, of),) = stats.items()
    low, high = (tuple(map(float, of["action"][end][:6])) for end in ("q01", "q99"))
    return (name, high) if low == tuple(-x for x in high) else None


def delay_of(checkpoint: str, arch: str) -> int:
    """The largest delay in the prompts of ``checkpoint``, which a policy of ``arch`` keeps."""
    from vla_ros_lab.train.trainer import ARCHITECTURES

    made = ARCHITECTURES.get(arch)
    if made is None or made.chunk > 1:
        return 0
    found = _token_config(checkpoint)
    return found[0].max_delay if found else 0


def _check(args: argparse.Namespace, progress: Progress, families: tuple[Family, ...]) -> None:
    from vla_ros_lab.train.run import check, success_by_family

    outcomes = []
    total = args.check * len(families)
    for outcome in check(str(args.out / "policy"), args.check, families, args.workers):
        outcomes.append(outcome)
        line = [f"{f} {good}/{n}" for f, (good, n) in success_by_family(outcomes).items()]
        progress.update("check", f"held-out: {', '.join(line)}", len(outcomes), total)
    progress.end()
    for family, (good, count) in success_by_family(outcomes).items():
        print(f"{family}: {good} of {count} held-out episodes succeeded")
