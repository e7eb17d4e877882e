"""Demonstrations of LIBERO's scripted expert: a set of its own instructions, for one suite.

Apart from :mod:`vla_ros_lab.train.collect` since LIBERO's expert remembers where it is in its plan:
it acts for the task's own instruction alone, and its actions for another one are not known
(``SetInfo.own_sentence``). Initial states 0 to 9 of every task are never used: `vla-ros eval
--episodes 10` plays just these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from vla_ros.core.errors import UserError
from vla_ros.core.types import ACTION_DIM, Floats, Pose
from vla_ros.sim.env import AGENTVIEW, EnvSpec, SimObservation, Task
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.libero.environment import CameraPose, Libero
from vla_ros.sim.libero.expert import TARGETS, THINGS, LiberoExpert
from vla_ros.sim.libero.suites import UnknownInstruction
from vla_ros_lab.train.collect import (
    GRIPPER_POSE,
    RENDER_SIZE,
    CollectedEpisode,
    Disturbance,
    ExpertLabel,
    Recorder,
    ShardReport,
    play,
)
from vla_ros_lab.train.demonstrations import (
    Demonstration,
    Float32,
    SetInfo,
    shard_path,
    write_shard,
)
from vla_ros_lab.train.frames import pixels_at
from vla_ros_lab.train.options import CollectOptions
from vla_ros_lab.train.units import scales, to_environment

HELD_OUT: Final = 10  # initial states of every task, the first, that are an evaluation's
#: steps to an image: rendering is four fifths of a step, and neighbors hardly differ. The actions
#: of every step are there, so a chunk that begins with an image is whole.
IMAGE_EVERY: Final = 4
#: things that the patch loss names: the first of each kind, where a task has it
OBJECTS: Final = (*(f"{kind}_1" for kind in (*THINGS, *TARGETS)), GRIPPER_POSE)


def tasks_of(spec: EnvSpec) -> tuple[Task, ...]:
    """Tasks of the suite that the expert knows. UserError: none."""
    known = tuple(task for task in spec.tasks if _knows(task.instruction))
    if not known:
        raise UserError(
            "the scripted expert knows none of this suite's tasks; it knows libero_object's and"
            " most of libero_spatial's"
        )
    return known


def _knows(instruction: str) -> bool:
    try:
        LiberoExpert(instruction)
    except UnknownInstruction:
        return False
    return True


def episodes_of(options: CollectOptions, spec: EnvSpec, shard: int) -> list[CollectedEpisode]:
    """A shard has one task, which is built once; every task has its turn before one comes again."""
    tasks = tasks_of(spec)
    task, turn = tasks[shard % len(tasks)], shard // len(tasks)
    first = shard * options.per_shard
    count = min(options.per_shard, options.demonstrations - first)
    free = task.initial_states - HELD_OUT
    return [
        CollectedEpisode(
            task.name,
            task.instruction,
            HELD_OUT + (turn * options.per_shard + index) % free,
            seed=0,  # another one would draw the suite's furniture anew
            max_steps=task.max_steps,
        )
        for index in range(count)
    ]


def make_shard(options: CollectOptions, directory: Path, number: int) -> ShardReport:
    """Run a shard's episodes and write it. SimError: the suite cannot be played here."""
    environment = EnvConfig("libero", RENDER_SIZE, wrist=False, suite=options.suite)()
    assert isinstance(environment, Libero)
    instructions = tuple(dict.fromkeys(task.instruction for task in tasks_of(environment.spec)))
    kept: list[Demonstration] = []
    failed = 0
    try:
        for index, episode in enumerate(episodes_of(options, environment.spec, number)):
            rng = np.random.default_rng([options.seed, number, index])
            made = _demonstrate(environment, episode, options, instructions, rng)
            if made.track.success:
                kept.append(made)
            else:
                failed += 1
    finally:
        environment.close()  # OpenGL complains when the interpreter takes it down
    write_shard(shard_path(directory, number), _info(options, environment.spec, instructions), kept)
    return ShardReport(len(kept), failed, len(kept))


def _info(options: CollectOptions, spec: EnvSpec, instructions: tuple[str, ...]) -> SetInfo:
    return SetInfo(
        environment=spec.name,
        image_size=options.image_size,
        cameras=(AGENTVIEW,),
        objects=OBJECTS,
        scale=tuple(scales(spec).tolist()),
        action_rate_hz=spec.action_rate_hz,
        instructions=instructions,
        own_sentence=True,
    )


def _demonstrate(
    environment: Libero,
    episode: CollectedEpisode,
    options: CollectOptions,
    instructions: tuple[str, ...],
    rng: np.random.Generator,
) -> Demonstration:
    """One episode to its end or its step limit; what the arm executes is disturbed."""
    expert, disturb = LiberoExpert(episode.instruction), Disturbance(rng)
    scale, own = scales(environment.spec), instructions.index(episode.instruction)

    def drive(seen: SimObservation) -> tuple[ExpertLabel, Floats]:
        action = to_environment(expert.act(seen.poses), scale)
        labels = np.zeros((len(instructions), ACTION_DIM))
        labels[own] = action
        return ExpertLabel(action, labels), disturb(action)

    def projection(_: str, poses: Mapping[str, Pose], names: Sequence[str]) -> Float32:
        return pixels_of(environment.eye(), poses, names, options.image_size)

    recorder = Recorder(
        options.image_size, (AGENTVIEW,), OBJECTS, projection, options.interpolation, poses=False,
        every=IMAGE_EVERY,
    )  # fmt: skip
    return recorder.demonstration(episode, play(environment, episode, drive, recorder))


def pixels_of(
    eye: CameraPose, poses: Mapping[str, Pose], names: Sequence[str], size: int
) -> Float32:
    """Pixels of the things of these names in the image, see :func:`pixels_at`; NaN for those that a
    task has not."""
    nowhere = (np.nan,) * 3
    points = np.array([poses[n].position if n in poses else nowhere for n in names])
    return pixels_at(points, eye.position, eye.rotation, eye.fovy, size)
