"""A whole run: behavior cloning, rounds of on-policy correction, the checkpoint at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from vla_ros.core.console import Progress as Line
from vla_ros.core.errors import UserError
from vla_ros.core.types import Floats
from vla_ros.data.episodes.plan import select_tasks, validation_seed
from vla_ros.sim.env import SimObservation
from vla_ros.sim.tasks import Family
from vla_ros_lab.train.collect import (
    CollectedEpisode,
    collect,
    forget_policy,
    play,
    pool,
    shared_environment,
    shared_policy,
)
from vla_ros_lab.train.options import (
    CollectOptions,
    Machine,
    TrainOptions,
    claim,
    recipe_json,
    verify,
)
from vla_ros_lab.train.trainer import Progress, Trainer
from vla_ros_lab.train.units import scales, to_environment

_ROUND_SHARD = 5  # episodes; a policy's failures take minutes, and stopping waits for a shard
POLICY = "policy"  # the exported checkpoint, inside a run's directory


@dataclass(frozen=True, slots=True)
class TrainResult:
    """End of a sitting. ``families``: the kinds of task that were trained."""

    done: bool
    families: tuple[Family, ...]


@dataclass(frozen=True, slots=True)
class Reporter:
    """Receiver of a run's progress: ``step`` after each step, ``say`` for other lines."""

    step: Callable[[Progress], None]
    say: Callable[[str], None]


#: receiver of the losses after so many steps
Track: TypeAlias = Callable[[dict[str, float], int], None]


class TrainProgress:
    """Progress line of a run; losses are smoothed, the speed is in samples."""

    def __init__(self, progress: Line, track: Track) -> None:
        self._progress, self._track = progress, track
        self._smooth: dict[str, float] = {}

    def __call__(self, step: Progress) -> None:
        entry, validation = step.entry, step.validation
        losses = {"loss": entry.loss, "patch_loss": entry.patch_loss}
        losses |= {"place_loss": entry.place_loss, "error": entry.error}
        smooth = self._smooth = self._smooth or losses
        for name, value in losses.items():
            smooth[name] += 0.05 * (value - smooth[name])
        line = f"loss {smooth['loss']:.3f} error {smooth['error']:.3f} {step.samples_per_s:.0f}/s"
        line += f" patch {smooth['patch_loss']:.3f} place {smooth['place_loss']:.3f}"
        if validation is not None:
            line += f" held-out loss {validation.loss:.3f}"
        self._progress.update("train", line, entry.step + 1, step.steps)
        losses = {**losses, "samples_per_s": step.samples_per_s}
        if validation is not None:
            losses["held_out_loss"] = validation.loss
        self._track(losses, entry.step + 1)


def run(
    options: TrainOptions,
    directory: Path,
    machine: Machine,
    report: Reporter,
    stop: Callable[[], bool] = lambda: False,
) -> TrainResult:
    """Train until done or stopped.

    Called again it goes on. The checkpoint of the last step made is in ``directory/policy``.
    """
    recipe = recipe_json(options)
    verify(recipe, directory)
    trainer = Trainer(options, directory, machine.device, machine.compiled)
    if options.rounds and trainer.frames.info.own_sentence:
        raise UserError(
            "--dagger plays in the tabletop, and these demonstrations are of another world"
        )
    claim(recipe, directory, options.init_from)  # only now: options that do not work claim nothing
    learned = trainer.learned
    report.say(
        f"{learned.frames} frames of {learned.demonstrations} demonstrations,"
        f" step {trainer.loop.step} of {options.steps}"
    )
    ends = (*options.round_steps(), options.steps)
    for number, end in enumerate(ends):
        if trainer.loop.step < end or number == options.rounds:
            trainer.add_data([round_directory(directory, n) for n in range(number)])
        if trainer.loop.step < end:
            trainer.train(end, report.step, machine.save_every_s, stop)
        if trainer.loop.step < end:
            break  # stopped
        if number < options.rounds and not _correct(trainer, number, machine, report, stop):
            break
    trainer.export(directory / POLICY)
    return TrainResult(trainer.loop.step == options.steps, _families(trainer))


def round_directory(directory: Path, number: int) -> Path:
    """The data set of an on-policy round."""
    return directory / f"round-{number}"


def _correct(
    trainer: Trainer,
    number: int,
    machine: Machine,
    report: Reporter,
    stop: Callable[[], bool],
) -> bool:
    """A round: the policy acts, the expert labels; returns whether it is complete.

    It begins from the state saved at this very step, so a killed round is taken up again.
    """
    if trainer.loop.step > trainer.options.round_steps()[number]:
        return True  # of an earlier sitting
    policy = trainer.directory / f"policy-round-{number}"
    if not policy.exists():
        trainer.export(policy)
    trained = tuple(family.value for family in _families(trainer))
    options = CollectOptions(
        trainer.options.round_episodes,
        tasks=trainer.options.round_families or trained,
        seed=number,
        image_size=trainer.kind.image_size,
        wrist=trainer.kind.images == 2,
        policy=str(policy),
        per_shard=_ROUND_SHARD,
        delays=trainer.options.delays,
        two_ways=trainer.frames.info.two_ways,
        unsteady=trainer.options.round_unsteady,
        crowded=trainer.options.round_crowded,
    )
    folder = round_directory(trainer.directory, number)
    for made in collect(options, folder, machine.workers, ray=machine.ray):
        report.say(
            f"round {number + 1}: {made.shards_done} of {made.shards} shards,"
            f" {made.report.succeeded} of {made.report.kept} episodes of the last succeeded"
        )
        if stop() and made.shards_done < made.shards:
            return False
    return True


def _families(trainer: Trainer) -> tuple[Family, ...]:
    frames = trainer.frames
    trained = {frames.goals[number].family for number in frames.goal.unique().tolist()}
    return tuple(family for family in Family if family in trained)


@dataclass(frozen=True, slots=True)
class HeldOutEpisode:
    """Outcome of a held-out episode."""

    family: Family
    task: str
    success: bool


def check(
    checkpoint: str,
    episodes: int,
    families: tuple[Family, ...] = tuple(Family),
    workers: int = 1,
) -> Iterator[HeldOutEpisode]:
    """Play ``episodes`` held-out initial states of every family in lock-step, to watch training:
    few episodes, no intervals, seeds of their own, and no ROS graph, as the evaluation has it."""
    numbers, kinds = zip(
        *((n, family) for n in range(episodes) for family in families), strict=True
    )
    jobs = ([checkpoint] * len(numbers), kinds, numbers)
    if workers == 1:
        forget_policy()  # the directory may have been written anew
        yield from map(play_held_out, *jobs)
        return
    with pool(workers) as processes:
        yield from processes.map(play_held_out, *jobs)


def play_held_out(checkpoint: str, family: Family, number: int) -> HeldOutEpisode:
    """Play one held-out episode in this process."""
    policy = shared_policy(checkpoint)
    environment = shared_environment(policy.engine.model.config.images == 2)
    tasks = select_tasks(environment.spec.tasks, [family.value])
    task = tasks[number % len(tasks)]
    state = number % task.initial_states
    episode = CollectedEpisode(
        task.name, task.instruction, state, validation_seed(number), task.max_steps
    )
    policy.reset(task.instruction)
    scale = scales(environment.spec)
    gripper = -1.0  # the last command; -1 open

    def drive(seen: SimObservation) -> tuple[None, Floats]:
        nonlocal gripper
        physical = policy.act(seen)
        if physical is None:  # no action: stand still, as the gate of the node does
            return None, np.array([0, 0, 0, 0, 0, 0, gripper], dtype=np.float64)
        action = to_environment(physical, scale)
        gripper = float(action[-1])
        return None, action

    return HeldOutEpisode(family, task.name, play(environment, episode, drive))


def success_by_family(outcomes: list[HeldOutEpisode]) -> dict[str, tuple[int, int]]:
    """Family -> (successes, episodes)."""
    out: dict[str, tuple[int, int]] = {}
    for one in outcomes:
        good, count = out.get(one.family.value, (0, 0))
        out[one.family.value] = (good + one.success, count + 1)
    return out
