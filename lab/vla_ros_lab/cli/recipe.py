"""The run of a recipe: its stages one after the other, marked when they are done, and the policy
that ships put together when its judges are content. `vla-ros train --recipe`."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from vla_ros.core.console import Progress, error
from vla_ros.core.errors import UserError, user_errors
from vla_ros.engine.io.files import write_json
from vla_ros.engine.io.hub import resolve
from vla_ros_lab.train.head.options import HeadOptions
from vla_ros_lab.train.options import CollectOptions, HeadRun, Machine, TrainOptions, dtype_of
from vla_ros_lab.train.recipe import (
    SHIPPED,
    BinsOptions,
    JudgeOptions,
    PrecisionOptions,
    Recipe,
    Stage,
    differences,
)
from vla_ros_lab.train.so101_options import So101Options

RECIPE, LOG, MARK, SHIPS = "recipe.json", "recipe.log", "stage.json", "policy"
BINS = "heterospec.json"
MISSED = 3  # exit status


@dataclass(frozen=True, slots=True)
class Made:
    """What came of a stage: a line of figures; of an evaluation delay -> successes, episodes, and
    ``worst``: the task that succeeds least at the first delay, and its share."""

    line: str
    rates: dict[str, tuple[int, int]] | None = None
    worst: tuple[str, float] = ("", 1.0)


class RecipeRun:
    """A sitting of a recipe in the folder ``out``.

    ``stop``: end this sitting; ``progress``: a line that is rewritten. Every stage has the folder
    of its name in ``out``, with stage.json once it is done.
    """

    def __init__(
        self, recipe: Recipe, out: Path, machine: Machine, progress: Progress,
        stop: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._recipe, self._out, self._machine = recipe, out.absolute(), machine
        self._progress, self._stop = progress, stop
        self._log: TextIO | None = None

    def run(self) -> tuple[int, dict[str, Any]]:
        """Run what is not done; the exit status, and the result for a program. UserError."""
        self._preflight()
        with self._claimed():
            return self._run()

    def _run(self) -> tuple[int, dict[str, Any]]:
        recipe = self._recipe
        hours = f", about {recipe.hours:g} hours on two cores" if recipe.hours else ""
        self._say(f"recipe {recipe.name}: {len(recipe.stages)} stages{hours}")
        result: dict[str, Any] = {"recipe": recipe.name, "done": False, "stages": {}, "judged": {}}
        for stage in recipe.stages:
            made = self._made(stage)
            if made is None:
                if self._stop():
                    self._say(f"stopped before {stage.name}: the same command goes on")
                    return 0, result
                began = time.monotonic()
                self._say(f"{stage.name} ({stage.kind}) begun")
                made = self._play(stage)
                minutes = (time.monotonic() - began) / 60
                if made is None:
                    self._say(f"{stage.name} stopped after {minutes:.1f} minutes:"
                              " the same command goes on")  # fmt: skip
                    return 0, result
                mark: dict[str, Any] = {"digest": stage.digest, "line": made.line}
                mark |= {"rates": made.rates, "worst": made.worst}
                write_json(self._folder(stage) / MARK, mark)
                self._say(f"{stage.name} done in {minutes:.1f} minutes: {made.line}")
            result["stages"][stage.name] = made.line
            if made.rates is not None:
                result["judged"][stage.name] = made.rates
                if missed := missed_rate(stage, made):
                    self._write(missed)
                    self._progress.end()
                    error("vla-ros train", missed)
                    return MISSED, {**result, "missed": missed}
        result |= {"done": True, "policy": str(self._out / SHIPS), "sha256": self._ship()}
        for name, line in result["stages"].items():
            if name in result["judged"]:
                self._say(f"{name}: {line}")
        for name, digest in result["sha256"].items():
            self._say(f"{digest}  {SHIPS}/{name}", stamp=False)
        return 0, result

    # The folder, its recipe and its log.

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """The folder, held against a second run. UserError: another recipe's."""
        path = self._out / RECIPE
        now = self._recipe.as_json()
        there = json.loads(path.read_text()) if path.exists() else None
        if there is not None and (found := differences(there, now)):
            raise UserError(f"{self._out} was begun with {found}: keep that, or take another --out")
        if (
            there is None
            and self._out.is_dir()
            and any(each.name != LOG for each in self._out.iterdir())
        ):
            raise UserError(f"{self._out} holds something else: take another --out")
        self._out.mkdir(parents=True, exist_ok=True)
        with (self._out / LOG).open("a", encoding="utf-8") as log:
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{self._out}: another run of the recipe is at it") from None
            if there is None:
                write_json(path, now)
            self._log = log
            yield

    def _write(self, line: str, stamp: bool = True) -> None:
        assert self._log is not None, "the folder is claimed first"
        at = time.strftime("%Y-%m-%d %H:%M:%S ") if stamp else ""
        self._log.write(f"{at}{line}\n")
        self._log.flush()

    def _say(self, line: str, stamp: bool = True) -> None:
        """A line of the log, which is printed too."""
        self._write(line, stamp)
        self._progress.end()
        print(line, flush=True)

    def _made(self, stage: Stage) -> Made | None:
        """What came of a stage that is done; None: it is not."""
        path = self._folder(stage) / MARK
        if not path.exists():
            return None
        mark = json.loads(path.read_text())
        if mark["digest"] != stage.digest:
            raise UserError(f"{path.parent} was made with other settings: take another --out")
        task, share = mark["worst"]
        return Made(mark["line"], mark["rates"], (task, share))

    def _folder(self, stage: Stage) -> Path:
        return self._out / stage.name

    def _path(self, name: str) -> str:
        """The checkpoint of a stage's name, or what else is named."""
        stage = self._recipe.stage(name)
        if stage is not None:
            return str(self._folder(stage) / SHIPS)
        return name if not name or name.startswith(SHIPPED) else str(Path(name).expanduser())

    def _data(self, name: str) -> list[str]:
        """The data sets of a stage's name: a collection, or the rounds of a training."""
        stage = self._recipe.stage(name)
        if stage is None:
            return [str(Path(name).expanduser().absolute())]
        folder = self._folder(stage)
        if stage.kind == "collect":
            return [str(folder)]
        rounds = stage.options(TrainOptions).rounds
        return [str(folder / f"round-{number}") for number in range(rounds)]

    # What is wrong with a stage and only the rooms that need torch or the simulation know.

    def _preflight(self) -> None:
        for stage in self._recipe.stages:
            try:
                with user_errors(ValueError):
                    _preflight(stage)
                for key in ("init_from", "vision_from", "policy", "target", "checkpoint"):
                    for name in stage.named(key):
                        if name.startswith(SHIPPED):
                            resolve(name)
            except UserError as wrong:
                raise UserError(f"stage {stage.name}: {wrong}") from wrong

    # The stages.

    def _play(self, stage: Stage) -> Made | None:
        """Make a stage, or go on with it; None: stopped."""
        self._folder(stage).mkdir(exist_ok=True)
        kinds = {
            "collect": self._collect, "train": self._train, "head": self._head,
            "calibrate": self._calibrate, "verify": self._verify, "eval": self._eval,
            "so101": self._so101,
        }  # fmt: skip
        made = kinds[stage.kind](stage)
        self._progress.end()
        return made

    def _collect(self, stage: Stage) -> Made | None:
        from vla_ros_lab.train.collect import collect, totals

        options = stage.options(CollectOptions, **self._paths(stage, "policy"))
        folder = self._folder(stage)
        for made in collect(options, folder, self._machine.workers, ray=self._machine.ray):
            line = f"shards: {made.report.kept} kept of the last"
            self._progress.update(stage.name, line, made.shards_done, made.shards)
            if self._stop() and made.shards_done < made.shards:
                return None
        kept, frames = totals(folder)
        line = f"{kept} demonstrations, {frames} frames"
        if options.policy:
            good, _ = _solved(folder)
            line = f"{kept} episodes, {good} solved, {frames} frames"
        return Made(line)

    def _paths(self, stage: Stage, *keys: str) -> dict[str, str]:
        return {key: self._path(name) for key in keys for name in stage.named(key)}

    def _train(self, stage: Stage) -> Made | None:
        from vla_ros.engine.layers.devices import multiplies_bfloat16
        from vla_ros_lab.train.run import Reporter, TrainProgress, round_directory, run

        folder = self._folder(stage)
        other: dict[str, Any] = self._paths(stage, "init_from", "vision_from")
        other["data"] = tuple(path for name in stage.named("data") for path in self._data(name))
        if "dtype" not in stage.settings:
            other["dtype"] = dtype_of(folder, multiplies_bfloat16(self._machine.device))
        options = stage.options(TrainOptions, **other)
        show = TrainProgress(self._progress, lambda losses, step: None)
        ended = run(options, folder, self._machine, Reporter(show, self._progress.say), self._stop)
        if not ended.done:
            return None
        line = f"step {options.steps}"
        if rounds := [_solved(round_directory(folder, n)) for n in range(options.rounds)]:
            line += f", rounds solved {', '.join(f'{good} of {all_}' for good, all_ in rounds)}"
        return Made(line)

    def _head(self, stage: Stage) -> Made | None:
        from vla_ros_lab.train.head.rollouts import Recorded
        from vla_ros_lab.train.head.run import Reporter, run
        from vla_ros_lab.train.head.training import Step

        options, device = stage.options(HeadOptions), str(self._machine.device)
        wanted = stage.options(
            HeadRun, device=device, dtype="float32" if device == "cpu" else "bfloat16",
            **self._paths(stage, "target"),
        )  # fmt: skip
        stopped = False

        def stop() -> bool:
            nonlocal stopped
            stopped = self._stop()
            return stopped

        def recorded(made: Recorded) -> None:
            self._progress.update(stage.name, "the target acts", made.done, made.total)

        def stepped(step: Step) -> None:
            self._progress.update(stage.name, f"loss {step.loss:.3f}", step.number, options.steps)

        trained = run(wanted, options, self._folder(stage), Reporter(recorded, stepped), stop)
        if trained is None or stopped:  # rollouts stay; what was learned is minutes
            return None
        return Made(
            f"{trained.judged.passes:.2f} passes an action on episodes held out,"
            f" {trained.temporal.passes:.2f} by temporal_tree"
        )

    def _calibrate(self, stage: Stage) -> Made | None:
        from vla_ros_lab.cli.calibrate import CalibrateOptions, calibrated

        options = stage.options(BinsOptions, **self._paths(stage, "checkpoint"))
        wanted: dict[str, Any] = {"seed": options.seed, "episodes": options.episodes}
        if options.head:
            head = self._recipe.stage(options.head)
            folder = Path(options.head).expanduser() if head is None else self._folder(head)
            wanted = {
                "drafter": "head", "draft_checkpoint": str(folder / "draft_head"),
                "rollouts": folder / "rollouts",
            }  # fmt: skip
        done = calibrated(
            CalibrateOptions(
                options.checkpoint, self._folder(stage) / BINS, nodes=options.nodes,
                device=str(self._machine.device), workers=self._machine.workers, **wanted,
            )
        )  # fmt: skip
        return Made(f"fitted on {done.about['frames']} frames of {done.about['episodes']} episodes")

    def _verify(self, stage: Stage) -> Made | None:
        from vla_ros.cli.main import main

        options = stage.options(PrecisionOptions, **self._paths(stage, "checkpoint"))
        words = ["verify", "--checkpoint", options.checkpoint, "--dtype", options.dtype]
        status = main([*words, "--device", str(self._machine.device)])
        if status not in (0, 1):
            raise UserError(f"vla-ros {' '.join(words)} ended with exit status {status}")
        return Made(f"{options.dtype} {'did not pass' if status else 'passed'}")

    def _eval(self, stage: Stage) -> Made | None:
        from vla_ros.cli.eval import plan_of
        from vla_ros.data.episodes.cluster import play_on_cluster
        from vla_ros.data.episodes.parallel import play
        from vla_ros.data.episodes.play import DirectRunner, EpisodeOrder, RunnerFailed, keep
        from vla_ros.data.episodes.records import Setup
        from vla_ros.data.episodes.rows import Successes
        from vla_ros.data.episodes.store import Store
        from vla_ros.data.episodes.variants import Choices

        options = stage.options(JudgeOptions, **self._paths(stage, "checkpoint"))
        setup = Setup(
            environment=options.environment, route="direct", checkpoint=options.checkpoint,
            seed=options.seed, device=str(self._machine.device), num_threads=1,
        )  # fmt: skip
        choices = Choices(
            replan_interval=(options.replan_interval,), delay_frames=options.delay_frames
        )
        variants = choices.variants("vla", adaptive=False, references=False)
        plan = plan_of(setup, variants, options.tasks, options.episodes)
        folder, jobs = self._folder(stage), plan.jobs()
        with Store(folder, plan.setup, plan.variants) as store, user_errors(RunnerFailed):
            orders = [EpisodeOrder(job) for job in jobs if job.key() not in store.done]
            workers, ray = self._machine.workers, self._machine.ray
            where = partial(play_on_cluster, ray) if ray else play
            played = where(DirectRunner, plan.setup, plan.variants, orders, workers)
            for one in played:
                store.add(keep(one, folder))
                self._progress.update(stage.name, "episodes", len(store.records), len(jobs))
                if self._stop() and len(store.records) < len(jobs):
                    return None
            rates, words = {}, []
            for variant in plan.variants:
                found = [each for each in store.records if each.job.variant == variant.label]
                told = Successes.of(found)
                rates[str(variant.delay_frames)] = (told.successes, told.episodes)
                low, high = (100 * end for end in told.interval)
                words.append(f"delay {variant.delay_frames}: {told.successes} of {told.episodes},"
                             f" {100 * told.rate:.1f} % ({low:.1f} to {high:.1f})")  # fmt: skip
            shares: dict[str, list[bool]] = {}
            for record in store.records:
                if record.job.variant == plan.variants[0].label:
                    shares.setdefault(record.job.task, []).append(record.success)
            least = min(shares, key=lambda task: sum(shares[task]) / len(shares[task]))
            share = sum(shares[least]) / len(shares[least])
            words.append(f"least of a task {100 * share:.0f} % ({least})")
        return Made("; ".join(words), rates, (least, share))

    def _so101(self, stage: Stage) -> Made | None:
        from vla_ros_lab.train.so101 import run

        options = stage.options(So101Options, **self._paths(stage, "init_from"))

        def report(what: str, done: int, total: int) -> None:
            self._progress.update(stage.name, what, done, total)

        line = run(options, self._folder(stage), self._machine, report, self._stop)
        return None if line is None else Made(line or "its rounds were there")

    # The policy that ships.

    def _ship(self) -> dict[str, str]:
        """Put the policy together beside the one that is there, and change them; file of weights ->
        SHA-256. One that is the same stays."""
        parts, place = self._recipe.policy, self._out / SHIPS
        new, old = self._out / ".policy-new", self._out / ".policy-old"
        for scratch in (new, old):
            shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(self._path(parts["checkpoint"]), new)
        if head := parts.get("head"):
            shutil.copytree(self._out / head / "draft_head", new / "draft_head", dirs_exist_ok=True)
        if bins := parts.get("bins"):
            stage = self._recipe.stage(bins)
            assert stage is not None  # the recipe was checked
            inside = new / "draft_head" if stage.options(BinsOptions).head else new
            shutil.copy2(self._out / bins / BINS, inside / BINS)
        digests = _digests(new)
        if place.is_dir() and _digests(place) == digests:
            shutil.rmtree(new)
        else:
            if place.exists():
                place.rename(old)
            new.rename(place)
            shutil.rmtree(old, ignore_errors=True)
        return {name: digest for name, digest in digests.items() if name.endswith(".safetensors")}


def missed_rate(stage: Stage, made: Made) -> str:
    """The first rate below what the stage asks for, in words; "": none."""
    options, (task, share) = stage.options(JudgeOptions), made.worst
    if share < options.each:
        return (f"{stage.name}: {task}: {100 * share:.1f} % is below {100 * options.each:g} %:"
                " no policy is put together")  # fmt: skip
    assert made.rates is not None
    for delay, least in options.at_least.items():
        good, count = made.rates[str(delay)]
        if good / count < least:
            return (f"{stage.name}: delay {delay}: {good} of {count}, {100 * good / count:.1f} %,"
                    f" is below {100 * least:g} %: no policy is put together")  # fmt: skip
    return ""


def _preflight(stage: Stage) -> None:
    """UserError, ValueError: what cannot be played or trained."""
    if stage.kind == "collect":
        from vla_ros_lab.train.collect import episode_seed

        options = stage.options(CollectOptions)
        episode_seed(options, options.demonstrations - 1)
    elif stage.kind == "train":
        from vla_ros_lab.train.flow import FLOW_ARCHITECTURES
        from vla_ros_lab.train.trainer import ARCHITECTURES

        arch, known = stage.options(TrainOptions).arch, (*ARCHITECTURES, *FLOW_ARCHITECTURES)
        if arch not in known:
            raise UserError(f"arch is {arch!r}: give one of {', '.join(known)}")
        if stage.options(TrainOptions).rounds and arch in FLOW_ARCHITECTURES:
            raise UserError(f"dagger is for token policies, not {arch}: collect with its policy")
    elif stage.kind == "calibrate":
        from vla_ros_lab.cli.calibrate import parse_nodes

        parse_nodes(stage.options(BinsOptions).nodes)
    elif stage.kind == "eval":
        from vla_ros.data.episodes.plan import select_tasks, world_of

        judge = stage.options(JudgeOptions)
        select_tasks(world_of(judge.environment, "").tasks, judge.tasks)


def _solved(folder: Path) -> tuple[int, int]:
    """Episodes of a collection that were solved, and all of them."""
    from vla_ros_lab.train.demonstrations import SUFFIX, read_tracks

    tracks = [one for path in sorted(folder.glob(f"*{SUFFIX}")) for one in read_tracks(path)]
    return sum(one.success for one in tracks), len(tracks)


def _digests(folder: Path) -> dict[str, str]:
    """File below ``folder`` -> SHA-256."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
