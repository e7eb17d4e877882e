"""`vla-ros calibrate`: from what a policy says to the bins and trees of decoding heterospec."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.cli.arguments import Verbs, add_fields, add_flag, add_verb
from vla_ros.cli.defaults import CHECKPOINT, refuse_unreadable
from vla_ros.core.console import Progress, print_json
from vla_ros.core.errors import UserError, user_errors
from vla_ros.engine.options import EngineOptions

if TYPE_CHECKING:
    from vla_ros.engine import Engine
    from vla_ros_lab.heterospec import DraftedFrame
    from vla_ros_lab.roofline.calibration import FittedCalibration
    from vla_ros_lab.roofline.calibration_report import CalibrationFigures
    from vla_ros_lab.train.head.features import HeadEpisode

SEED = 1000  # evaluations begin at 0: their episodes stay unseen


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """What is fitted and from which episodes, by the names of the flags. ``output`` None: beside
    the checkpoint, or beside the head."""

    checkpoint: str
    output: Path | None = None
    tokens: Sequence[Path] | None = None
    bag: Sequence[Path] | None = None
    drafter: str = "temporal_tree"
    rollouts: Path | None = None
    draft_checkpoint: str = ""
    nodes: str = "24,64"
    episodes: int = 4
    tasks: Sequence[str] = ()
    suite: str = ""
    seed: int = SEED
    replan_interval: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    unnorm_key: str = ""
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A calibration that was written, and what it is worth on ``frames`` of ``episodes`` others."""

    output: Path
    fitted: FittedCalibration
    about: dict[str, Any]
    held_out: CalibrationFigures
    frames: int
    episodes: int


# What a policy said, episode by episode: played here, kept by an evaluation, or in a bag.


Said = list[list[int]]  # [frames][K] of an episode


def episodes(wanted: CalibrateOptions, executed: int) -> tuple[list[Said], str]:
    """The episodes, those of a task side by side, and where they are from. UserError.

    ``executed``: so many actions of a chunk, where they are played."""
    if wanted.tokens:
        found = [said for folder in wanted.tokens for said in _kept(folder)]
        return found, "tokens kept by an evaluation"
    if wanted.bag:
        found = [said for bag in wanted.bag for said in _in_bag(bag)]
        return found, "tokens of a recording"
    return _played(wanted, executed), f"{wanted.episodes} episodes a task, seed {wanted.seed}"


def _kept(folder: Path) -> list[Said]:
    from vla_ros.data.episodes.store import read_tokens

    return [one.tokens.tolist() for one in read_tokens(folder)]


def _in_bag(path: Path) -> list[Said]:
    """An episode ends where the policy was reset or given another task."""
    try:
        from vla_ros.data.bag_frames import pick
        from vla_ros.data.bags import Bag
        from vla_ros.data.replay import read_recorded
    except ImportError:
        raise UserError("rosbags is missing: pip install '.[replay]' in the checkout") from None
    with Bag(path) as bag:
        recorded = read_recorded(bag, pick(bag.topics, {}))
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


def _played(wanted: CalibrateOptions, executed: int) -> list[Said]:
    """Episodes without ROS, in lock-step, with the decoding that changes nothing."""
    try:
        from vla_ros.data.episodes.parallel import play
        from vla_ros.data.episodes.play import DirectRunner, EpisodeOrder, RunnerFailed
    except ImportError as missing:
        raise UserError(f"{missing}; `vla-ros doctor` says what to install") from missing
    from vla_ros.cli.eval import plan_of
    from vla_ros.data.episodes.records import Setup, Variant

    with user_errors(ValueError):
        setup = Setup(
            environment="libero" if wanted.suite else "tabletop", suite=wanted.suite,
            route="direct", checkpoint=wanted.checkpoint, seed=wanted.seed, device=wanted.device,
            dtype=wanted.dtype, unnorm_key=wanted.unnorm_key,
        )  # fmt: skip
        way = Variant("played", "speculative", adaptive_draft=False, replan_interval=executed)
    plan = plan_of(setup, (way,), wanted.tasks, wanted.episodes)
    orders = [EpisodeOrder(job) for job in plan.jobs()]
    found: dict[tuple[str, int, int], Said] = {}
    with Progress() as progress:
        progress.update("play", "episodes", 0, len(orders))
        with user_errors(RunnerFailed):
            played = play(DirectRunner, plan.setup, plan.variants, orders, wanted.workers)
            for number, one in enumerate(played, 1):
                job, said = one.record.job, [list(row) for row in one.record.tokens]
                if said:
                    found[job.task, job.seed, job.initial_state] = said
                progress.update("play", "episodes", number, len(orders))
    return [found[key] for key in sorted(found)]


# What a draft head offered on rollouts of its target: those kept by its training, or played.


@dataclass(frozen=True, slots=True)
class CalibrationFrames:
    """Frames to fit on and to judge by, and of how many episodes each; where they are from."""

    fitted_on: list[DraftedFrame]
    others: list[DraftedFrame]
    episodes: tuple[int, int]
    source: str


def head_folder(wanted: CalibrateOptions) -> Path:
    """Folder of the head that is meant. UserError."""
    from vla_ros.engine.decoding.draft_head_folder import find_head
    from vla_ros.engine.io.hub import resolve

    return find_head(resolve(wanted.checkpoint), wanted.draft_checkpoint or None)


def offered(wanted: CalibrateOptions, executed: int) -> CalibrationFrames:
    """Every second episode to fit on. UserError: no head, or rollouts of another."""
    try:
        from vla_ros.engine import load_engine
        from vla_ros.engine.decoding.draft_head_folder import load_head
        from vla_ros_lab.train.head.replayed import replayed
        from vla_ros_lab.train.head.rollouts import RolloutOptions
        from vla_ros_lab.train.head.run import target_of
    except ImportError as missing:
        raise UserError(f"{missing}; `vla-ros doctor` says what to install") from missing

    folder = head_folder(wanted)
    with user_errors(ValueError):
        engine = load_engine(
            EngineOptions(wanted.checkpoint, device=wanted.device, dtype=wanted.dtype,
                          unnorm_key=wanted.unnorm_key)
        )  # fmt: skip
        model = engine.model
        import torch

        head = load_head(folder, model.config, engine.info.max_tokens, torch.device("cpu"),
                         torch.float32)  # fmt: skip
    options = RolloutOptions(engine.info.checkpoint_sha256, 0, wanted.episodes, executed)
    if wanted.rollouts:
        episodes, source = (
            _kept_rollouts(wanted.rollouts, options),
            "rollouts of the head's training, held out",
        )
    else:
        episodes, source = (
            _played_rollouts(engine, options),
            f"{wanted.episodes} held-out episodes a task",
        )
    target = target_of(engine)
    parts = [
        replayed(head, some, target.embed, model.actions, target.steps)
        for some in (episodes[1::2], episodes[0::2])
        if some
    ]
    if len(parts) < 2:
        raise UserError("give 2 episodes or more")
    return CalibrationFrames(parts[0], parts[1], (len(episodes[1::2]), len(episodes[0::2])), source)


def _kept_rollouts(folder: Path, options: object) -> list[HeadEpisode]:
    import json

    from vla_ros_lab.train.head.features import read_episode
    from vla_ros_lab.train.head.rollouts import JUDGE, OPTIONS_FILE, RolloutOptions

    assert isinstance(options, RolloutOptions)
    path = folder / OPTIONS_FILE
    if not path.is_file():
        raise UserError(
            f"{folder} holds no rollouts: give the folder rollouts of a head's training"
        )
    if json.loads(path.read_text()).get("target") != options.target:
        raise UserError(f"{folder} holds rollouts of another checkpoint")
    return [read_episode(one) for one in sorted(folder.glob(f"{JUDGE}-*.safetensors"))]


def _played_rollouts(engine: Engine, options: object) -> list[HeadEpisode]:
    from vla_ros.core.clock import SystemClock
    from vla_ros_lab.train.collect import shared_environment
    from vla_ros_lab.train.head.rollouts import RolloutOptions, record

    assert isinstance(options, RolloutOptions)
    environment = shared_environment(engine.model.config.images == 2)
    with tempfile.TemporaryDirectory() as scratch, Progress() as progress:
        for made in record(options, Path(scratch), engine, environment, SystemClock()):
            progress.update("play", "episodes", made.done, made.total)
        return _kept_rollouts(Path(scratch), options)


LEAST = 500  # frames that bins may rest on
DESCRIPTION = """\
Fit what decoding heterospec goes by: how sure the alternatives to the last action are (Phi, the
entropy of the best path), and what became of them. Verification rounds are replayed on a fixed
tree, from episodes that are played here or were recorded; every second episode is fitted on, and
the others are what the tables are judged by.

With --drafter head it is how sure the draft head is; its target's rollouts are played, or
those are taken that its training has held out.

Written is heterospec.json, beside the checkpoint (beside the head), where the decoding looks for
it."""

EPILOG = """\
examples:
  vla-ros calibrate --checkpoint runs/small/policy
  vla-ros calibrate --checkpoint shipped:tabletop --output my.json --episodes 4
  vla-ros calibrate --checkpoint DIR --tokens runs/eval     of eval --keep-tokens; nothing is played
  vla-ros calibrate --checkpoint DIR --bag run.mcap
  vla-ros calibrate --checkpoint DIR --drafter head --rollouts runs/head/rollouts"""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "calibrate", DESCRIPTION, EPILOG)
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
    add_flag(parser, "--json")
    played = parser.add_argument_group("episodes that are played, where none are given")
    play = played.add_argument
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
    add_fields(played, EngineOptions, "device", "dtype", "unnorm_key")
    play("--workers", type=int, default=1, metavar="N", help="processes (1)")


def run(args: argparse.Namespace) -> int:
    """Fit, judge, write, print; returns the exit status."""
    from vla_ros_lab.roofline.calibration_report import show_tables

    wanted = CalibrateOptions(
        **{one.name: getattr(args, one.name) for one in fields(CalibrateOptions)}
    )
    done = calibrated(wanted)
    show_tables(done.fitted, done.held_out, done.frames, done.episodes)
    if wanted.drafter == "head":
        print("\nof the costs above none is the head's own passes, one a level")
    print(f"\n{done.output}", flush=True)
    if args.json:
        print_json({"output": str(done.output), **done.about, **done.held_out.as_json()})
    return 0


def calibrated(wanted: CalibrateOptions) -> Calibrated:
    """Fit, judge, and write the file. UserError."""
    from vla_ros.engine.decoding.draft_tree import Budget
    from vla_ros_lab.roofline.calibration import fit, split
    from vla_ros_lab.roofline.calibration_report import figures

    nodes = parse_nodes(wanted.nodes)
    if min(wanted.episodes, wanted.workers) < 1:
        raise UserError("--episodes and --workers must be at least 1")
    if wanted.tokens and wanted.bag:
        raise UserError("--tokens or --bag, not both")
    _fits_drafter(wanted)
    window, sha256, steps = _checkpoint(wanted.checkpoint)
    output = _output(wanted)
    executed = wanted.replan_interval or max(steps // 2, 1)
    if wanted.drafter == "head":
        found = offered(wanted, executed)
    else:
        said, source = episodes(wanted, executed)
        _enough(said)
        parts = split(said, window, steps)
        found = CalibrationFrames(*parts, (len(said[1::2]), len(said[0::2])), source)
    about = {
        "checkpoint": wanted.checkpoint, "checkpoint_sha256": sha256, "drafter": wanted.drafter,
        "source": found.source, "episodes": found.episodes[0], "frames": len(found.fitted_on),
    }  # fmt: skip
    fitted = fit(found.fitted_on, Budget(*nodes), about=about)
    _write(output, fitted)
    held_out = figures(fitted, found.fitted_on, found.others)
    return Calibrated(output, fitted, about, held_out, len(found.others), found.episodes[1])


def _fits_drafter(wanted: CalibrateOptions) -> None:
    """UserError: options of the other drafter."""
    head = wanted.drafter == "head"
    if head and (wanted.tokens or wanted.bag):
        raise UserError("--drafter head reads what the target thought: give --rollouts, not"
                        " --tokens or --bag")  # fmt: skip
    if not head and (wanted.rollouts or wanted.draft_checkpoint):
        raise UserError("--rollouts and --draft-checkpoint are for --drafter head")


def parse_nodes(text: str) -> tuple[int, int]:
    """Nodes behind a prompt and behind a token, of two numbers joined by a comma. UserError."""
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
    from vla_ros.engine.families.openvla import read_layout
    from vla_ros.engine.families.registry import family_of
    from vla_ros.engine.io.hub import resolve
    from vla_ros.engine.io.tokens import ActionTokens
    from vla_ros.engine.options import TOKENS

    if name.startswith("random:"):
        raise UserError(f"{name}: random weights do not act; name a policy")
    directory = resolve(name)
    family = family_of(directory)
    if family.group != TOKENS:
        raise UserError(f"{name} is a flow policy, or pi0-FAST: it says no bins, none lie beside")
    refuse_unreadable(name)
    config = read_layout(directory).config
    if config.parallel:
        raise UserError(f"{name} says its actions in one pass (OpenVLA-OFT): nothing is drafted")
    if config.vq:
        raise UserError(f"{name}'s tokens are codes, not bins beside each other: no alternatives")
    window = ActionTokens(config.action_vocab, config.bins).window
    return window, family.sha256(directory), config.chunk


def _output(wanted: CalibrateOptions) -> Path:
    """Where it is written; known to be writable before anything is played. UserError."""
    from vla_ros.engine.io.hub import SHIPPED, resolve
    from vla_ros_lab.decodings.calibration import FILE

    if wanted.output:
        folder = wanted.output.parent
        if wanted.output.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UserError(f"--output {wanted.output}: {folder} is no folder to write a file in")
        return Path(wanted.output)
    if wanted.checkpoint.startswith(SHIPPED):
        raise UserError(
            f"{wanted.checkpoint} belongs to the package: give --output FILE, and the option"
            " calibration=FILE"
        )
    if wanted.drafter == "head":
        directory = head_folder(wanted)
    else:
        directory = resolve(wanted.checkpoint)
    if not os.access(directory, os.W_OK):
        raise UserError(f"{directory} cannot be written to: give --output FILE, and the option"
                        " calibration=FILE")  # fmt: skip
    return directory / FILE


def _enough(found: list[Said]) -> None:
    if len({len(row) for said in found for row in said}) > 1:
        raise UserError("actions of different lengths: give episodes of one policy")
    frames = sum(map(len, found))
    if len(found) < 2 or frames < LEAST or len(found[0][0]) < 2:
        said = f"{len(found)} episodes with {frames} frames"
        raise UserError(f"{said}: give 2 episodes and {LEAST} frames or more")


def _write(path: Path, fitted: FittedCalibration) -> None:
    from vla_ros_lab.heterospec import to_json

    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(to_json(fitted.calibration)) + "\n", encoding="utf-8")
    scratch.replace(path)
