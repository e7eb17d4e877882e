"""One episode in lock-step, recorded or only judged. One thread: the environment's.

The images go the way they go on the robot: rendered at ``RENDER_SIZE``, as the bridge does,
then resized by the engine's own preprocessing to what the model sees.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from vla_ros.core import Floats, Image, Observation, Pose, Timeline
from vla_ros.engine import Engine, EngineOptions, InvalidAction, load_engine
from vla_ros.engine.vision.images import fit
from vla_ros.errors import UserError
from vla_ros.sim.env import AGENTVIEW, WRIST, Environment, SimObservation
from vla_ros.sim.factory import EnvConfig
from vla_ros.timing import Clock, SystemClock
from vla_ros.train.data.projection import Projection
from vla_ros.train.data.shards import BODIES, EXPERT, Demonstration, Float32, Track

EXECUTED = 4  # actions of a chunk of 8
RENDER_SIZE = 256  # pixels, the bridge's default


@dataclass(frozen=True, slots=True)
class Taught:
    """What the expert would do, in environment units: ``action`` [7] for the episode's own
    sentence, ``labels`` [G, 7] for every sentence (see relabel)."""

    action: Floats
    labels: Floats


#: observation -> (label, executed action [7] in environment units); None where nobody teaches
Driver = Callable[[SimObservation], tuple[Taught | None, Floats]]


@dataclass(frozen=True, slots=True)
class Episode:
    """One initial state of one task; ``source`` names who acts, for the record."""

    task: str
    instruction: str
    initial_state: int
    seed: int
    max_steps: int
    source: str = EXPERT


@dataclass(slots=True)
class Recorder:
    """Collects what a demonstration is made of; ``interpolation``: of the images, see ``fit``."""

    size: int
    cameras: tuple[str, ...]
    objects: tuple[str, ...]
    projection: Projection
    interpolation: str = "bicubic"
    images: dict[str, list[Image]] = field(default_factory=dict)
    pixels: dict[str, list[Float32]] = field(default_factory=dict)
    rows: list[tuple[Floats, Floats, Floats, Floats, Floats, Floats]] = field(default_factory=list)

    def add(self, seen: SimObservation, label: Taught, executed: Floats) -> None:
        """One step: what was seen, what the expert wanted, what was done."""
        for camera in self.cameras:
            picture = seen.images[camera]
            small = fit(picture, self.size, "resize-naive", (0, 0, 0), self.interpolation)
            self.images.setdefault(camera, []).append(small)
            where = self.projection(camera, seen.poses, self.objects)
            self.pixels.setdefault(camera, []).append(where)
        where_all = poses_of(seen.poses)
        taught = (label.action, label.labels, executed)
        self.rows.append((*taught, seen.eef_pos, seen.gripper_qpos, where_all))

    def demonstration(self, episode: Episode, success: bool) -> Demonstration:
        """All of it, as arrays."""
        action, labels, executed, position, fingers, poses = (
            np.stack(column).astype(np.float32) for column in zip(*self.rows, strict=True)
        )
        track = Track(
            task=episode.task,
            instruction=episode.instruction,
            seed=episode.seed,
            initial_state=episode.initial_state,
            success=success,
            source=episode.source,
            actions=action,
            labels=labels,
            executed=executed,
            ee_pos=position,
            gripper_states=fingers,
            poses=poses,
            pixels={name: np.stack(rows) for name, rows in self.pixels.items()},
        )
        return Demonstration(track, {name: np.stack(rows) for name, rows in self.images.items()})


def poses_of(poses: Mapping[str, Pose]) -> Floats:
    """Float64 [BODIES, 7]: the position in m and the quaternion x, y, z, w of each."""
    return np.array([(*poses[name].position, *poses[name].quaternion) for name in BODIES])


def play(
    environment: Environment, episode: Episode, drive: Driver, recorder: Recorder | None = None
) -> bool:
    """Run an episode to its end or its step limit; returns whether it succeeded."""
    seen = environment.reset(episode.task, episode.initial_state, episode.seed)
    for _ in range(episode.max_steps):
        label, executed = drive(seen)
        if recorder is not None and label is not None:
            recorder.add(seen, label, executed)
        step = environment.step(executed)
        if step.done:
            return step.success
        seen = step.observation
    return False


class EnginePolicy:
    """A checkpoint on the engine, asked once a frame.

    Of a chunk that one pass gives (OpenVLA-OFT) the first action counts; of one that is said token
    by token, which takes so much longer, the first EXECUTED are. Not thread-safe.
    """

    def __init__(self, checkpoint: str, threads: int | None = 1, dtype: str = "float32") -> None:
        engine = load_engine(EngineOptions(checkpoint, dtype=dtype, threads=threads))
        if not isinstance(engine, Engine):
            raise UserError(f"{checkpoint} is a flow policy: demonstrations are of token policies")
        self.engine = engine
        self._clock: Clock = SystemClock()
        self._stamp = 0
        self._executed = 1 if self.engine.model.config.parallel else EXECUTED
        self._rest: list[Floats] = []  # of a chunk that is being executed

    def reset(self, instruction: str) -> None:
        """Begin an episode."""
        self.engine.reset(instruction)
        self.interrupt()

    def interrupt(self) -> None:
        """Somebody else acts: what is left of a chunk was not meant for what comes of that."""
        self._rest = []

    def act(self, seen: SimObservation, delay_steps: int = 0) -> Floats | None:
        """The physical action [7] for ``delay_steps`` after what is seen; None when the model's
        output is no action."""
        if self._rest:
            return self._rest.pop(0)
        self._stamp += 1
        now = self._clock.steady_ns()
        observation = Observation(
            self._stamp, self._stamp, now, seen.images[AGENTVIEW], seen.images.get(WRIST),
            delay_steps=delay_steps,
        )  # fmt: skip
        timeline = Timeline(now).mark("queue", now)
        try:
            answer = self.engine.step(observation, timeline, self._clock)
        except InvalidAction:
            return None
        assert answer is not None  # the schedule that "auto" stands for answers every frame
        first, *self._rest = answer.actions[: self._executed]
        return first


class Late:
    """A policy that acts on what was seen ``delay`` steps ago, and knows it.

    ``act(seen, delay)`` -> physical action [7], as EnginePolicy's; ``interrupt`` is called in steps
    in which it does not act. Until there is something that
    old the robot stands still with its gripper open, as it does until a first action has come.
    """

    def __init__(
        self,
        act: Callable[[SimObservation, int], Floats | None],
        delay: int,
        interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        self._act, self._delay, self.interrupt = act, delay, interrupt
        self._seen: deque[SimObservation] = deque(maxlen=delay + 1)

    def see(self, seen: SimObservation) -> None:
        """Another step; also where another one acts."""
        self._seen.append(seen)

    def act(self) -> Floats | None:
        """For the step that was seen last."""
        if len(self._seen) <= self._delay:
            return np.array([0, 0, 0, 0, 0, 0, 1], dtype=np.float64)
        return self._act(self._seen[0], self._delay)


@lru_cache(maxsize=1)
def shared_environment(wrist: bool) -> Environment:
    """This process's tabletop, made once: it takes a second."""
    environment = EnvConfig("tabletop", RENDER_SIZE, wrist)()
    atexit.register(environment.close)  # OpenGL complains when the interpreter takes it down
    return environment


@lru_cache(maxsize=1)
def shared_policy(checkpoint: str) -> EnginePolicy:
    """This process's engine of a checkpoint directory, loaded once."""
    return EnginePolicy(checkpoint)


def forget_policy() -> None:
    """Load the checkpoint anew at its next use."""
    shared_policy.cache_clear()
