"""`vla-ros train`: the small policies and draft heads, in sittings that go on where one ended."""

from __future__ import annotations

import argparse
import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from vla_ros.cli.arguments import Verbs, add_fields, add_verb
from vla_ros.cli.defaults import actions_of
from vla_ros.core.console import Progress, print_json
from vla_ros.core.errors import UserError
from vla_ros_lab.train.options import RECIPE, UNSAID, Machine, TrainOptions, dtype_of

if TYPE_CHECKING:
    from vla_ros.sim.tasks import Family
    from vla_ros_lab.train.trainer import Progress as Step


# What `vla-ros train` can be told.


DESCRIPTION = """\
Train a small policy of OpenVLA's architecture, or with --arch small-flow of pi0's, on
demonstrations, and write it as a checkpoint directory (OUT/policy) that the engine and the policy
node load. The same command again goes on
where the last sitting ended, also after kill -9. Ctrl-C saves and ends.

With --dagger N the policy acts in the simulation N times along the way and the expert labels
what it saw. A GPU is used where there is one; then torch, h5py and the data set are enough
(on-policy rounds need the simulation too).

Of bags of vla-ros record, corrections are drawn first and whole episodes held out to judge by.
With --lora it adapts a token policy of any size, with --lerobot LeRobot's own trainer is run.

With --head it trains a draft head for a checkpoint that exists (--target): the target acts in the
simulation, the head learns to guess its tokens (OUT/draft_head), and is judged on episodes held
out. It changes nothing that the target says: `drafter: head` drafts with it. Of single actions it
guesses all that is left at once; of a chunk, or with --recursive, token after token. pi0-FAST,
which is of another robot, does not act: it answers the frames of --data.

With --corrector it trains a small head for a flow policy of the tabletop (--target), which
corrects each action of its chunks by the newest image: on --data, then on --dagger rounds (3) of
own episodes with late chunks and a cube that is moved."""

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
                                               the chunk said token by token, 56 of them

exit status: 0 done, or stopped as asked; 2 wrong usage or unusable data"""


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
    add("--out", type=Path, required=True, metavar="DIR", help="the run: state, log, policy")
    add_fields(parser, TrainOptions, *RECIPE, **dict.fromkeys(UNSAID))
    add("--check", type=int, default=0, metavar="N", help="then play N held-out states a family")
    add("--head", action="store_true", help="train a draft head for --target")
    add("--corrector", action="store_true", help="train a corrector for --target, a flow policy")
    add("--recursive", action="store_true", help="head: one that is asked token after token, as"
        " EAGLE-3's; what a chunk policy gets anyway")  # fmt: skip
    add("--executed", type=int, metavar="S", help="head: actions of a chunk that are executed in"
        " the rollouts (half of it)")  # fmt: skip
    add("--target", default="", metavar="DIR", help="head, corrector: the checkpoint it is for")
    add("--episodes", type=int, default=4, metavar="N", help="head: to learn from, a task (4)")
    add("--held-out", type=int, default=1, metavar="N", help="head: to judge by, a task (1)")
    add("--state-in-prompt", default="", choices=("robot", "padded"), help="head of pi0-FAST:"
        " as the policy node's parameter")  # fmt: skip
    add("--unnorm-key", metavar="NAME", help="head: the target's statistics, if it has several")
    add("--lerobot", default="", metavar="POLICY", help="LeRobot's own trainer on --data, in its"
        " environment: a family (act, smolvla, ...) or a checkpoint")  # fmt: skip
    add("--lerobot-option", action="append", default=[], metavar="NAME=VALUE", help="of"
        " lerobot-train, such as policy.chunk_size=16; may be given again")  # fmt: skip
    add("--gpus", type=int, default=1, metavar="N", help="of --lerobot: processes, a GPU each, by"
        " accelerate (1)")  # fmt: skip
    add("--track", choices=("tensorboard", "wandb"), help="losses there too, of a policy's training"
        " (LeRobot's: --lerobot-option wandb.enable=true)")  # fmt: skip
    add("--json", action="store_true", help="head: the result as one last line for a program")
    add("--minutes", type=float, help="end this sitting after that time, saved")
    add("--device", help="cpu or cuda (cuda where there is one)")
    add("--threads", type=int, help="of torch, on a CPU")
    add_fields(parser, Machine, "compiled", "workers", "save_every_s")


def given(args: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """What was said of these; the rest is as the recipe has it."""
    said = {name: getattr(args, name) for name in names}
    return {name: value for name, value in said.items() if value is not None}


# A sitting of training: when it ends, and the line that says how far it is.


class Stop:
    """Whether to end this sitting: its time is over, or Ctrl-C or SIGTERM came."""

    def __init__(self, minutes: float | None) -> None:
        self._end = time.monotonic() + 60 * minutes if minutes else float("inf")
        self.asked = False
        self._before = {
            number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)
        }

    def _ask(self, number: int, frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt  # twice: at once
        self.asked = True

    def __call__(self) -> bool:
        return self.asked or time.monotonic() >= self._end

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class TrainProgress:
    """The line that says how far a run is; losses are smoothed, the speed is in samples."""

    def __init__(self, progress: Progress, steps: int, track: Track) -> None:
        self._progress, self._steps, self._track = progress, steps, track
        self._began = False
        self._loss = self._patch = self._place = self._error = float("nan")

    def __call__(self, step: Step) -> None:
        if not self._began:
            self._began = True
            self._loss, self._error = step.loss, step.error
            self._patch, self._place = step.patch_loss, step.place_loss
        self._loss += 0.05 * (step.loss - self._loss)
        self._patch += 0.05 * (step.patch_loss - self._patch)
        self._place += 0.05 * (step.place_loss - self._place)
        self._error += 0.05 * (step.error - self._error)
        said = f"loss {self._loss:.3f} error {self._error:.3f} {step.samples_per_s:.0f}/s"
        said += f" patch {self._patch:.3f} place {self._place:.3f}"
        if step.validation is not None:
            said += f" held-out loss {step.validation.loss:.3f}"
        self._progress.update("train", said, step.step, self._steps)
        losses = {"loss": step.loss, "patch_loss": step.patch_loss, "place_loss": step.place_loss}
        losses |= {"error": step.error, "samples_per_s": step.samples_per_s}
        if step.validation is not None:
            losses["held_out_loss"] = step.validation.loss
        self._track(losses, step.step)


Track: TypeAlias = "Callable[[dict[str, float], int], None]"


@contextlib.contextmanager
def tracked(where: str | None, out: Path) -> Iterator[Track]:
    """Somebody who is told the losses of a step: TensorBoard's file in ``out``, Weights & Biases,
    or nobody. What a sitting after a stop adds is on the same curve. UserError: not installed."""
    if where is None:
        yield lambda losses, step: None
    elif where == "tensorboard":
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError(f"--track tensorboard: {error}: pip install tensorboard") from error
        with SummaryWriter(out / "tensorboard") as writer:  # type: ignore[no-untyped-call]

            def write(losses: dict[str, float], step: int) -> None:
                for name, value in losses.items():
                    writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]

            yield write
    else:
        try:
            import wandb  # type: ignore[import-not-found, unused-ignore]
        except ImportError as error:
            raise UserError(f"--track wandb: {error}: pip install wandb") from error
        name = out.absolute().name
        with wandb.init(project="vla_ros", name=name, id=name, dir=out, resume="allow") as run:
            yield lambda losses, step: run.log(losses, step=step)


# `vla-ros train --head`: a draft head for a checkpoint that exists.


def train_head(args: argparse.Namespace, device: str) -> int:
    """Train a draft head; returns the exit status."""
    from dataclasses import asdict

    from vla_ros_lab.train.head.options import HeadOptions
    from vla_ros_lab.train.head.rollouts import Recorded
    from vla_ros_lab.train.head.run import HEAD, Reporter, Run, run
    from vla_ros_lab.train.head.training import Step as HeadStep

    said = given(args, ("steps", "batch", "learning_rate", "seed"))
    recursive = args.recursive or bool(args.data) or actions_of(args.target) > 1
    options = HeadOptions.of_recursive(**said) if recursive else HeadOptions(**said)
    # On a CPU the rollouts are in fp32, where speculation says what decoding says to the token.
    dtype = "float32" if device == "cpu" else args.dtype
    wanted = Run(
        args.target, args.episodes, args.held_out, device, dtype, args.unnorm_key, args.executed,
        tuple(args.data or ()), args.state_in_prompt,
    )  # fmt: skip
    progress, stop = Progress(), Stop(args.minutes)
    passes = ""

    def recorded(made: Recorded) -> None:
        doing = "answers" if args.data else "acts"
        progress.update("rollouts", f"the target {doing}", made.done, made.total)

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
        if trained.judged.expected is not None:
            shown += (
                f"; by the recursion {trained.judged.expected:.2f} passes with nothing behind the"
                " prompt"
            )
        print(f"likeliest/four likeliest right on each level, %: {shown}")
    if args.json:
        judged = {"head": asdict(trained.judged), "temporal_tree": asdict(trained.temporal)}
        print_json({"step": trained.step, "held_out": judged})
    return 0


def train_corrector(args: argparse.Namespace) -> int:
    """Train a corrector; returns the exit status."""
    from vla_ros_lab.train.corrector.run import run
    from vla_ros_lab.train.corrector.training import CorrectorOptions

    said = given(args, ("steps", "batch", "learning_rate", "seed"))
    if args.rounds:
        said |= {"rounds": args.rounds, "round_episodes": args.round_episodes}
    progress, stop = Progress(), Stop(args.minutes)

    def report(what: str, done: int, total: int) -> None:
        progress.update("corrector", what, done, total)

    try:
        ended = run(args.target, tuple(args.data), CorrectorOptions(**said), args.out, report, stop)
    except ValueError as error:
        raise UserError(str(error)) from error
    finally:
        progress.end()
        stop.restore()
    print(
        f"{ended.folder}: {ended.parameters} parameters; copied into {args.target}, it serves"
        " `execution: corrected`"
    )
    return 0


def train_lerobot(args: argparse.Namespace) -> int:
    """Let LeRobot train; returns the exit status."""
    from vla_ros.data.lerobot.dataset import python_of
    from vla_ros_lab.train.lerobot import LeRobotRun, train

    if len(args.data) != 1:
        raise UserError("--lerobot trains on one data set: export several bags into one")
    if args.device is None:
        args.device = "cuda" if Path("/dev/nvidia0").exists() else "cpu"
    said = given(args, ("steps", "batch", "seed", "validation", "device"))
    more = tuple(args.lerobot_option)
    run = LeRobotRun(args.lerobot, str(args.data[0]), more=more, gpus=args.gpus, **said)
    policy = train(run, args.out, python_of())
    print(f"{policy}: done; `policy: lerobot` runs it")
    return 0


def run(args: argparse.Namespace) -> int:
    """Train; returns the exit status."""
    if args.head and args.corrector:
        raise UserError("--head and --corrector are two runs")
    if (args.head or args.corrector) != bool(args.target):
        raise UserError("--head or --corrector, and --target, whom it is for, go together")
    if not args.head and not args.data:
        raise UserError("give --data, from vla-ros collect")
    if (args.lerobot_option or args.gpus != 1) and not args.lerobot:
        raise UserError("--lerobot-option and --gpus are for --lerobot")
    if args.track and (args.lerobot or args.head or args.corrector):
        raise UserError("--track is of a policy's training; LeRobot has wandb.enable=true")
    if args.lerobot:
        return train_lerobot(args)
    try:
        import torch

        from vla_ros.engine.layers.devices import multiplies_bfloat16, usable_device
        from vla_ros_lab.train.flow import FLOW_ARCHITECTURES
        from vla_ros_lab.train.imports import import_data
        from vla_ros_lab.train.run import Reporter
        from vla_ros_lab.train.run import run as train
        from vla_ros_lab.train.trainer import keep_freed_memory
    except ImportError as error:
        raise UserError(f"{error}: pip install ./lab in the checkout") from error
    device = usable_device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if args.workers < 1:
        raise UserError("--workers must be at least 1")
    if args.check and args.arch in FLOW_ARCHITECTURES:
        raise UserError(
            "--check plays token policies: play a flow policy with vla-ros eval --no-ros"
            f" --checkpoint {args.out / 'policy'}"
        )
    args.dtype = args.dtype or dtype_of(args.out, multiplies_bfloat16(device))
    if args.threads:
        torch.set_num_threads(args.threads)
    if device.type == "cpu":
        keep_freed_memory()
    if args.head:
        return train_head(args, str(device))
    if args.corrector:
        return train_corrector(args)
    with Progress() as importing:
        if args.lora and args.learning_rate is None:
            args.learning_rate = 5e-4  # as OpenVLA's fine-tuning
        known = bounds_of(args.init_from) if args.init_from else None
        if args.delays is None and args.init_from and not args.lora:
            args.delays = told(args.init_from, args.arch)
        args.data, elsewhere = import_data(args.data or (), args.out, importing, known)
    if all(elsewhere):
        args.branches = args.branches or 1
    if any(elsewhere):
        args.validation = 0.1 if args.validation is None else args.validation
    if args.check and all(elsewhere):
        raise UserError("--check plays in the tabletop, and --data is of another world")
    machine = Machine(device, args.workers, args.save_every_s, args.compiled)
    progress = Progress()
    stop = Stop(args.minutes)
    try:
        options = _options(args)
        with tracked(args.track, args.out) as track:
            show = TrainProgress(progress, options.steps, track)
            ended = train(options, args.out, machine, Reporter(show, progress.say), stop)
        progress.end()
        print(f"{args.out / 'policy'}: {'done' if ended.done else 'not done yet: run it again'}")
        if args.check and not stop.asked:
            _check(args, progress, ended.families)
    finally:
        progress.end()
        stop.restore()
    return 0


def bounds_of(checkpoint: str) -> tuple[str, tuple[float, ...]] | None:
    """Name and bounds [6] of the actions that one of our policies says; None: another's, or a flow
    policy, which has none."""
    from vla_ros.engine.families.registry import family_of
    from vla_ros.engine.io.checkpoint import RANDOM, read_config
    from vla_ros.engine.io.hub import resolve
    from vla_ros.engine.options import TOKENS

    if checkpoint.startswith(RANDOM):
        return None
    directory = resolve(checkpoint)
    tokens = family_of(directory).group == TOKENS
    stats = (read_config(directory)[1].get("norm_stats") or {}) if tokens else {}
    if len(stats) != 1:
        return None
    ((name, of),) = stats.items()
    low, high = (tuple(map(float, of["action"][end][:6])) for end in ("q01", "q99"))
    return (name, high) if low == tuple(-x for x in high) else None


def told(checkpoint: str, arch: str) -> int:
    """The largest delay that ``checkpoint`` is told, which a policy of ``arch`` goes on being."""
    from vla_ros.engine.families.registry import family_of
    from vla_ros.engine.io.checkpoint import RANDOM, read_config
    from vla_ros.engine.io.hub import resolve
    from vla_ros.engine.options import TOKENS
    from vla_ros_lab.train.trainer import ARCHITECTURES

    made = ARCHITECTURES.get(arch)
    if checkpoint.startswith(RANDOM) or made is None or made.chunk > 1:
        return 0
    directory = resolve(checkpoint)
    tokens = family_of(directory).group == TOKENS
    return read_config(directory)[0].max_delay if tokens else 0


def _options(args: argparse.Namespace) -> TrainOptions:
    return TrainOptions(data=tuple(str(path) for path in args.data), **given(args, RECIPE))


def _check(args: argparse.Namespace, progress: Progress, families: tuple[Family, ...]) -> None:
    from vla_ros_lab.train.run import check, success_by_family

    outcomes = []
    total = args.check * len(families)
    for outcome in check(str(args.out / "policy"), args.check, families, args.workers):
        outcomes.append(outcome)
        said = [f"{f} {good}/{n}" for f, (good, n) in success_by_family(outcomes).items()]
        progress.update("check", f"held-out: {', '.join(said)}", len(outcomes), total)
    progress.end()
    for family, (good, count) in success_by_family(outcomes).items():
        print(f"{family}: {good} of {count} held-out episodes succeeded")
