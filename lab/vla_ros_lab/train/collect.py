"""A collection of demonstrations: which episodes, who acts in them, shard by shard.

Every shard is a function of the options and its number alone: a collection that was cut short
goes on where it stopped, and any number of workers makes the same demonstrations.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import lru_cache, partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.core.clock import Clock, SystemClock
from vla_ros.core.errors import UserError
from vla_ros.core.types import ACTION_DIM, GRIPPER, Floats, Image, Observation, Pose, Timeline
from vla_ros.data.episodes.plan import dagger_seed, expert_seed, select_tasks
from vla_ros.data.episodes.play import robot_state
from vla_ros.engine import EngineOptions, InvalidAction, load_engine
from vla_ros.engine.io.files import write_json
from vla_ros.engine.io.images.preprocessor import fit
from vla_ros.engine.options import FLOW, TOKENS
from vla_ros.runtime.control.observation import LIBERO_STATE
from vla_ros.sim.env import AGENTVIEW, WRIST, Environment, EnvSpec, SimObservation
from vla_ros.sim.expert import Expert, advise, matrix
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.gl import choose_renderer
from vla_ros.sim.tasks import GOALS, Goal, instruction_of, parse_instruction
from vla_ros_lab.train.ahead import futures
from vla_ros_lab.train.demonstrations import (
    ATTRIBUTES,
    BODIES,
    EXPERT,
    SUFFIX,
    Demonstration,
    Float32,
    SetInfo,
    Track,
    read_tracks,
    shard_path,
    write_shard,
)
from vla_ros_lab.train.frames import pixels_at, wordings
from vla_ros_lab.train.options import CollectOptions, differences, recipe_json
from vla_ros_lab.train.units import scales, to_environment, to_physical

GRIPPER_POSE = "gripper"


class Projection:
    """Poses in the world -> pixels of a square image of ``size``: x to the right, y down, the
    corner at 0, 0. Needs mujoco, for the cameras of the tabletop; the wrist's moves with the
    gripper."""

    def __init__(self, size: int) -> None:
        choose_renderer()  # mujoco reads MUJOCO_GL when it is imported
        from vla_ros.sim import scene

        self._size = size
        model = scene.build_model()
        degrees = {name: float(model.camera(name).fovy[0]) for name in (AGENTVIEW, WRIST)}
        self._fovy = {name: float(np.radians(angle)) for name, angle in degrees.items()}
        fixed = model.camera(AGENTVIEW)
        self._fixed = (fixed.pos.copy(), matrix(_xyzw(fixed.quat)))
        hand = model.camera(WRIST)
        self._in_hand = (hand.pos.copy(), matrix(_xyzw(hand.quat)))
        self._grip = model.site(scene.GRIP_SITE).pos.copy()  # in the hand's frame, not turned

    def __call__(self, camera: str, poses: Mapping[str, Pose], names: Sequence[str]) -> Float32:
        """float32 [K, 2], one row a name; NaN for what is behind the camera."""
        points = np.array([poses[name].position for name in names])
        return pixels_at(points, *self._camera(camera, poses), self._fovy[camera], self._size)

    def _camera(self, camera: str, poses: Mapping[str, Pose]) -> tuple[Floats, Floats]:
        if camera == AGENTVIEW:
            return self._fixed
        gripper = poses[GRIPPER_POSE]
        hand = matrix(gripper.quaternion)
        offset, turn = self._in_hand
        return np.array(gripper.position) + hand @ (offset - self._grip), hand @ turn


def _xyzw(wxyz: Floats) -> tuple[float, float, float, float]:
    w, x, y, z = (float(value) for value in wxyz)
    return x, y, z, w


# One episode in lock-step, recorded or only judged. One thread: the environment's.


EXECUTED = 4  # actions of a chunk of 8
#: pixels, the bridge's default; then the engine's own preprocessing resizes, as on a robot
RENDER_SIZE = 256


@dataclass(frozen=True, slots=True)
class ExpertLabel:
    """The expert's action in environment units: ``action`` [7] for the episode's own instruction,
    ``labels`` [G, 7] for every instruction."""

    action: Floats
    labels: Floats


#: observation -> (label, executed action [7] in environment units); None: without a teacher
Driver = Callable[[SimObservation], tuple[ExpertLabel | None, Floats]]


@dataclass(frozen=True, slots=True)
class CollectedEpisode:
    """One initial state of one task; ``source`` names who acts, for the record, ``delay`` how many
    steps old the observations are that are acted on."""

    task: str
    instruction: str
    initial_state: int
    seed: int
    max_steps: int
    source: str = EXPERT
    delay: int = 0


@dataclass(slots=True)
class Recorder:
    """Collector of a demonstration's steps; ``interpolation``: of the images, see ``fit``.

    ``projection``: camera, poses, names -> pixels in its image, float32 [K, 2]. ``poses``: keep
    those of BODIES. ``every``: of so many steps one is rendered; the others have the image before
    them, with NaN for all pixels, by which training leaves them out.
    """

    size: int
    cameras: tuple[str, ...]
    objects: tuple[str, ...]
    projection: Callable[[str, Mapping[str, Pose], Sequence[str]], Float32]
    interpolation: str = "bicubic"
    poses: bool = True
    every: int = 1
    images: dict[str, list[Image]] = field(default_factory=dict)
    pixels: dict[str, list[Float32]] = field(default_factory=dict)
    rows: list[dict[str, Floats]] = field(default_factory=list)

    def add(self, seen: SimObservation, label: ExpertLabel, executed: Floats) -> None:
        """One step: the observation, the expert's label, the executed action."""
        for camera in self.cameras:
            images = self.images.setdefault(camera, [])
            pixels = self.projection(camera, seen.poses, self.objects)
            if seen.images:
                image = seen.images[camera]
                images.append(fit(image, self.size, "resize-naive", (0, 0, 0), self.interpolation))
            else:
                images.append(images[-1])
                pixels = np.full_like(pixels, np.nan)
            self.pixels.setdefault(camera, []).append(pixels)
        row = {"actions": label.action, "labels": label.labels, "executed": executed}
        row |= {"ee_pos": seen.eef_pos, "gripper_states": seen.gripper_qpos}
        self.rows.append({**row, "poses": poses_of(seen.poses)} if self.poses else row)

    def demonstration(self, episode: CollectedEpisode, success: bool) -> Demonstration:
        """The demonstration of all steps."""
        columns: dict[str, Any] = {
            name: np.stack([row[name] for row in self.rows]).astype(np.float32)
            for name in self.rows[0]
        }
        columns |= {name: getattr(episode, name) for name in ATTRIBUTES if name != "success"}
        pixels = {name: np.stack(rows) for name, rows in self.pixels.items()}
        track = Track(success=success, pixels=pixels, **columns)
        return Demonstration(track, {name: np.stack(rows) for name, rows in self.images.items()})


def poses_of(poses: Mapping[str, Pose]) -> Floats:
    """Float64 [BODIES, 7]: the position in m and the quaternion x, y, z, w of each."""
    return np.array([(*poses[name].position, *poses[name].quaternion) for name in BODIES])


def play(
    environment: Environment,
    episode: CollectedEpisode,
    drive: Driver,
    recorder: Recorder | None = None,
) -> bool:
    """Run an episode to its end or its step limit; returns whether it succeeded."""
    every = 1 if recorder is None else recorder.every
    seen = environment.reset(episode.task, episode.initial_state, episode.seed)
    for number in range(1, episode.max_steps + 1):
        label, executed = drive(seen)
        if recorder is not None and label is not None:
            recorder.add(seen, label, executed)
        step = environment.step(executed, render=number % every == 0)
        if step.done:
            return step.success
        seen = step.observation
    return False


class EnginePolicy:
    """A checkpoint on the engine, run once a frame.

    Of a chunk that one pass gives (OpenVLA-OFT) the first action is executed; of one that is
    decoded token by token or comes of a flow policy, which takes so much longer, EXECUTED are: the
    first, or of a flow policy those that are due once ``delay_steps`` are over. Not thread-safe.
    """

    def __init__(self, checkpoint: str, threads: int | None = 1, dtype: str = "float32") -> None:
        engine = load_engine(EngineOptions(checkpoint, dtype=dtype, num_threads=threads or 0))
        if engine.policy.group not in (TOKENS, FLOW):
            raise UserError(f"{checkpoint}: collect --policy is for token and flow policies")
        if engine.info.state_dim not in (0, LIBERO_STATE):
            raise UserError(f"{checkpoint} reads a state of {engine.info.state_dim} numbers: the"
                            f" tabletop's has LIBERO's {LIBERO_STATE}")  # fmt: skip
        self.engine, self._flow = engine, engine.policy.group == FLOW
        self._clock: Clock = SystemClock()
        self._stamp = 0
        self._executed = 1 if engine.info.decoding == "parallel" else EXECUTED
        self._rest: list[Floats] = []  # of a chunk that is being executed

    def reset(self, instruction: str) -> None:
        """Begin an episode."""
        self.engine.reset(instruction)
        self.interrupt()

    def interrupt(self) -> None:
        """Drop the rest of a chunk: somebody else acts, and it was not meant for what follows."""
        self._rest = []

    def act(self, seen: SimObservation, delay_steps: int = 0) -> Floats | None:
        """The physical action [7] for ``delay_steps`` after the observation; None when the model's
        output is no action."""
        if self._rest:
            return self._rest.pop(0)
        self._stamp += 1
        now = self._clock.steady_ns()
        observation = Observation(
            self._stamp, self._stamp, now, seen.images[AGENTVIEW], seen.images.get(WRIST),
            robot_state(seen, self.engine.info.state_dim), delay_steps=delay_steps,
        )  # fmt: skip
        timeline = Timeline(now).mark("queue", now)
        try:
            answer = self.engine.step(observation, timeline, self._clock)
        except InvalidAction:
            return None
        assert answer is not None  # the decoding that "auto" stands for answers every frame
        actions = answer.actions.copy()
        if self._flow:
            actions = actions[delay_steps:]
            actions[:, GRIPPER] = actions[:, GRIPPER] > 0.5  # open or closed
        first, *self._rest = actions[: self._executed]
        return first


_LOST = 0.04  # chance per step that an action is lost: the robot is held
_BUSY = (0.4, 1.8, 0.15)  # steps that an answer takes: least, most, and how unsteady (lognormal)
_LATER = ((-1, 0, 1, 2), (0.15, 0.55, 0.2, 0.1))  # steps beyond what was expected, how often
_NUDGED, _NUDGE_M = 3, 0.04  # of so many episodes in one the cube is moved so far on the way


class DelayedActor:
    """A policy that acts on the observation of ``delay`` steps ago, and knows it.

    ``act(seen, delay)`` -> physical action [7], as EnginePolicy's; ``interrupt`` is called in steps
    in which it does not act. Until there is an observation that old the robot stands still with its
    gripper open, as it does until a first action has come. ``unsteady``: draws by which images come
    sooner or later than it knows, and actions are lost. Of a policy that knows a delay of some
    steps an answer may take more than one: then it has none for some of them, as on a slow machine.
    """

    def __init__(
        self,
        act: Callable[[SimObservation, int], Floats | None],
        delay: int,
        interrupt: Callable[[], None] = lambda: None,
        unsteady: np.random.Generator | None = None,
    ) -> None:
        self._act, self._delay, self.interrupt = act, delay, interrupt
        self._unsteady, self._really = unsteady, delay
        least, most, _ = _BUSY
        self._busy = unsteady.uniform(least, min(most, max(delay, least))) if unsteady else 0.0
        self._step, self._free = -1, 0.0  # the newest, and when the policy is done
        self.held = np.array([0, 0, 0, 0, 0, 0, 1], dtype=np.float64)  # without an action
        self._seen: deque[SimObservation] = deque(maxlen=delay + 1 + max(_LATER[0]))

    def see(self, seen: SimObservation) -> None:
        """Take in the observation of another step; also where another one acts."""
        self._step += 1
        self._seen.append(seen)
        if self._unsteady is not None:  # never an older image than the one before
            later = int(self._unsteady.choice(_LATER[0], p=_LATER[1]))
            self._really = min(self._really + 1, max(0, self._delay + later))

    def act(self) -> Floats | None:
        """The action for the newest step."""
        if len(self._seen) <= self._really or self._late():
            return self.held.copy()
        action = self._act(self._seen[-1 - self._really], self._delay)
        if action is not None:
            self.held[GRIPPER] = action[GRIPPER]
        return action

    def _late(self) -> bool:
        """No answer for this step: it was lost, or the policy is still at it."""
        if self._unsteady is None:
            return False
        if self._free >= self._step + 1:
            return True
        took = self._busy * float(self._unsteady.lognormal(0.0, _BUSY[2]))
        self._free = max(self._free, self._step) + took
        return bool(self._unsteady.uniform() < _LOST)


class LateExpert:
    """The expert on the observation of ``delay`` steps ago, led on to now over the model of the
    table (:mod:`vla_ros_lab.train.ahead`) as if its own actions had followed: what a policy would
    do that has learned to act so late. ``executed``: of every step so far, environment units."""

    def __init__(self, goal: Goal, delay: int, scale: Floats, side: float) -> None:
        self._goal, self._delay, self._scale, self._side = goal, delay, scale, side
        self._seen: list[Floats] = []
        self.executed: list[Floats] = []

    def act(self, seen: SimObservation, fresh: Floats) -> Floats:
        """The action [7] in environment units, ``fresh`` where nothing is late; until there is an
        observation that old it stands still with its gripper open."""
        if not self._delay:
            return fresh
        self._seen.append(poses_of(seen.poses))
        at = len(self._seen) - 1 - self._delay
        if at < 0:
            return np.array([0, 0, 0, 0, 0, 0, -1], dtype=np.float64)
        before = np.zeros((1, 2, ACTION_DIM), np.float32)
        for steps in range(1, min(2, at) + 1):
            before[0, steps - 1] = self.executed[at - steps]
        poses = self._seen[at][None].astype(np.float32)
        side = np.array([self._side])
        values = futures(poses, before, [self._goal], self._scale, self._delay + 1, side)
        action = values[0, -1].astype(np.float64)
        action[GRIPPER] *= -1.0
        return action


@lru_cache(maxsize=3)
def shared_environment(wrist: bool, nudge_m: float = 0.0, crowded: bool = False) -> Environment:
    """This process's tabletop, made once: it takes a second."""
    environment = EnvConfig("tabletop", RENDER_SIZE, wrist, nudge_m=nudge_m, crowded=crowded)()
    atexit.register(environment.close)  # OpenGL complains when the interpreter takes it down
    return environment


@lru_cache(maxsize=1)
def shared_policy(checkpoint: str) -> EnginePolicy:
    """This process's engine of a checkpoint directory, loaded once."""
    return EnginePolicy(checkpoint)


def forget_policy() -> None:
    """Load the checkpoint anew at its next use."""
    shared_policy.cache_clear()


_CALM = 0.25  # share of episodes without noise: also the straight way is shown
_JITTER = np.array([0.06] * 3 + [0.02] * 3)  # environment units, every step
_SHOVE_CHANCE = 0.04  # per step: a shove begins
_SHOVE_STEPS = (3, 9)
_SHOVE = np.array([0.8] * 3 + [0.15] * 3)  # environment units, largest
#: how a disturbed episode begins: steps in a direction of chance, whatever the expert wants.
#: The arm always starts from one pose, so without it the arm's position alone shows which cube it
#: is on its way to, and a policy learns that before it learns to read the instruction.
_WANDER_STEPS = (3, 12)
_WANDER_LOW = np.array([-0.6, -0.8, -0.2, -0.1, -0.1, -0.3])
_WANDER_HIGH = np.array([0.6, 0.8, 0.4, 0.1, 0.1, 0.3])


class Disturbance:
    """Noise on executed actions, so that demonstrations show how to come back from a mistake: a
    wander at the start, small jitter all the time, now and then a shove of some steps, never on the
    gripper. The label stays what the teacher wanted (DART, Laskey et al. 2017)."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._calm = rng.uniform() < _CALM
        self._wander = 0 if self._calm else int(rng.integers(*_WANDER_STEPS))
        self._way = rng.uniform(_WANDER_LOW, _WANDER_HIGH)
        self._left = 0
        self._shove = np.zeros(GRIPPER)

    def __call__(self, action: Floats) -> Floats:
        """The action [7] in environment units, disturbed and clipped."""
        out = np.array(action, dtype=np.float64)
        if self._calm:
            return out
        if self._wander:
            self._wander -= 1
            out[:GRIPPER] = self._way
        out[:GRIPPER] += self._rng.normal(0.0, _JITTER)
        if self._left == 0 and self._rng.uniform() < _SHOVE_CHANCE:
            self._left = int(self._rng.integers(*_SHOVE_STEPS))
            self._shove = self._rng.uniform(-_SHOVE, _SHOVE)
        if self._left:
            self._left -= 1
            out[:GRIPPER] += self._shove
        clipped: Floats = np.clip(out, -1.0, 1.0)
        assert clipped.shape == (ACTION_DIM,)
        return clipped


#: the instructions of the G columns of a data set's labels
INSTRUCTIONS: tuple[str, ...] = tuple(instruction_of(goal) for goal in GOALS.values())


def labels(poses: Mapping[str, Pose], scale: Floats, side: float = 0.0) -> Floats:
    """The expert's environment actions [G, 7] in one state, one for each of INSTRUCTIONS; ``side``:
    see Expert.

    One image with many instructions teaches a policy to read: from demonstrations alone the arm's
    position shows what comes next, and the instruction is learned last.
    """
    actions = [advise(goal, poses, side) for goal in GOALS.values()]
    return to_environment(np.stack(actions), scale)


def pool(workers: int) -> ProcessPoolExecutor:
    """A pool of fresh interpreters for simulated episodes: OpenGL and torch do not survive a fork.

    Ctrl-C reaches every process of a terminal; it is left to the parent, so an episode that runs is
    finished. When the parent is killed its workers end at once.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, initializer=_begin)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


OPTIONS_FILE = "collection.json"
CAMERAS = (AGENTVIEW, WRIST)
OBJECTS = ("blue_cube", "green_cube", "plate", "red_cube", "yellow_cube", "gripper")
SWITCH = 0.05  # chance per step that the one who acts is drawn anew, in on-policy rounds


@dataclass(frozen=True, slots=True)
class ShardReport:
    """Counts of a shard. ``failed`` demonstrations of the expert are not in it."""

    kept: int
    failed: int
    succeeded: int


#: runs the episodes of shard ``number`` and writes it: options, directory, number -> its report.
#: A worker's process imports it by its name.
ShardMaker = Callable[[CollectOptions, Path, int], ShardReport]


@dataclass(frozen=True, slots=True)
class MadeShard:
    """Progress of a collection by one more shard."""

    report: ShardReport
    shards_done: int
    shards: int


def collect(
    options: CollectOptions,
    directory: Path,
    workers: int = 1,
    make: ShardMaker | None = None,
    ray: str = "",
) -> Iterator[MadeShard]:
    """Make every shard that is missing, yielding after each.

    ``make`` runs a shard's episodes and writes it; None: :func:`make_shard`, the tabletop's.
    ``ray``: address of a cluster that makes them. UserError: ``directory`` holds a collection with
    other options, or there is no cluster.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path, recipe = directory / OPTIONS_FILE, recipe_json(options)
    if found := differences(path, recipe):
        raise UserError(f"{directory} holds a collection with {found}: take another directory")
    if not path.exists():
        write_json(path, recipe)
    missing = [n for n in range(options.shard_count) if not shard_path(directory, n).exists()]
    done = options.shard_count - len(missing)
    if ray:
        reports = _each_on(ray, options, directory, missing, workers, make or make_shard)
    else:
        reports = _each(options, directory, missing, workers, make or make_shard)
    for report in reports:
        done += 1
        yield MadeShard(report, done, options.shard_count)


def _each(
    options: CollectOptions, directory: Path, numbers: list[int], workers: int, make: ShardMaker
) -> Iterator[ShardReport]:
    if workers == 1 or len(numbers) < 2:
        forget_policy()  # the directory may have been written anew
        for number in numbers:
            yield make(options, directory, number)
        return
    with pool(min(workers, len(numbers))) as processes:
        waiting = [processes.submit(make, options, directory, n) for n in numbers]
        try:
            for one in as_completed(waiting):
                yield one.result()
        finally:
            for one in waiting:
                one.cancel()


class ShardStation:
    """Maker of shards on a machine that has not the collection's folder."""

    def __init__(self, make: ShardMaker, options: CollectOptions) -> None:
        self._make, self._options = make, options

    def play(self, number: int) -> tuple[ShardReport, bytes]:
        """The report of a shard, and its file."""
        with tempfile.TemporaryDirectory(prefix="vla_ros-") as folder:
            report = self._make(self._options, Path(folder), number)
            return report, shard_path(Path(folder), number).read_bytes()


def _each_on(
    ray: str,
    options: CollectOptions,
    directory: Path,
    numbers: list[int],
    workers: int,
    make: ShardMaker,
) -> Iterator[ShardReport]:
    from vla_ros.data.episodes.cluster import LostJob, results
    from vla_ros.data.episodes.play import RunnerFailed

    try:
        for number, made in results(ray, partial(ShardStation, make, options), numbers, workers):
            if isinstance(made, LostJob):
                raise UserError(f"shard {number}: {made.text}")
            report, content = made
            path = shard_path(directory, number)
            scratch = path.with_suffix(".part")
            scratch.write_bytes(content)
            scratch.replace(path)
            yield report
    except RunnerFailed as error:
        raise UserError(str(error)) from None


def make_shard(options: CollectOptions, directory: Path, number: int) -> ShardReport:
    """Run a shard's episodes on the tabletop and write it."""
    assert not options.suite, "another maker is for LIBERO"
    environments = [shared_environment(options.wrist)] * _NUDGED
    if options.unsteady:
        environments[-1] = shared_environment(options.wrist, _NUDGE_M)
    if options.crowded:
        environments[0] = shared_environment(options.wrist, crowded=True)
    spec = environments[0].spec
    projection = _projection(options.image_size)
    kept: list[Demonstration] = []
    failed = 0
    first = number * options.per_shard
    for index in range(first, min(first + options.per_shard, options.demonstrations)):
        environment, episode = environments[index % _NUDGED], episode_of(options, spec, index)
        recorder = Recorder(
            options.image_size,
            CAMERAS[: 1 + options.wrist],
            OBJECTS,
            projection,
            options.interpolation,
        )
        success = play(environment, episode, _driver(options, episode, environment), recorder)
        if success or options.policy:  # a policy's failures are what its teacher is for
            kept.append(recorder.demonstration(episode, success))
        else:
            failed += 1
    write_shard(shard_path(directory, number), set_info(options, spec), kept)
    succeeded = sum(one.track.success for one in kept)
    return ShardReport(len(kept), failed, succeeded)


def episode_of(options: CollectOptions, spec: EnvSpec, index: int) -> CollectedEpisode:
    """Episode ``index`` of a collection: task, wording, initial state and seed."""
    tasks = select_tasks(spec.tasks, [options.tasks[index % len(options.tasks)]])
    turn = index // len(options.tasks)
    task = tasks[turn % len(tasks)]
    worded = wordings(parse_instruction(task.instruction))
    return CollectedEpisode(
        task=task.name,
        instruction=worded[(turn // len(tasks)) % len(worded)],
        initial_state=index % task.initial_states,
        seed=episode_seed(options, index),
        max_steps=task.max_steps,
        source=f"round {options.seed}" if options.policy else EXPERT,
        delay=delay_of(options, index),
    )


def delay_of(options: CollectOptions, index: int) -> int:
    """Delay of an episode in steps: each another, 0 to the most."""
    rng = np.random.default_rng([episode_seed(options, index), index, 3])
    return int(rng.integers(options.delays + 1))


def episode_seed(options: CollectOptions, index: int) -> int:
    """Seed of an episode, from the ranges of training; ValueError when there is none left."""
    seed = dagger_seed if options.policy else expert_seed
    return seed(options.seed, index)


def set_info(options: CollectOptions, spec: EnvSpec) -> SetInfo:
    """Facts of this collection's shards."""
    return SetInfo(
        environment=spec.name,
        image_size=options.image_size,
        cameras=CAMERAS[: 1 + options.wrist],
        objects=OBJECTS,
        scale=tuple(scales(spec).tolist()),
        action_rate_hz=spec.action_rate_hz,
        instructions=INSTRUCTIONS,
        two_ways=options.two_ways,
    )


def totals(directory: Path) -> tuple[int, int]:
    """Demonstrations and frames of the shards that are there."""
    tracks = [t for path in sorted(directory.glob(f"*{SUFFIX}")) for t in read_tracks(path)]
    return len(tracks), sum(len(track) for track in tracks)


def _driver(options: CollectOptions, episode: CollectedEpisode, environment: Environment) -> Driver:
    """The expert, disturbed; or a policy that acts, for stretches the expert, which labels every
    step (DAgger, Ross et al. 2011, whose mixture is drawn per step; stretches go further)."""
    scale = scales(environment.spec)
    rng = np.random.default_rng([episode.seed, episode.initial_state])
    side = float(rng.choice((-1.0, 1.0))) if options.two_ways else 0.0
    expert = Expert(episode.instruction, side)

    def label_of(seen: SimObservation) -> ExpertLabel:
        every = labels(seen.poses, scale, side)
        action = to_environment(expert.act(seen.poses), scale)
        every[INSTRUCTIONS.index(instruction_of(expert.goal))] = action
        return ExpertLabel(action, every)

    late = LateExpert(expert.goal, episode.delay, scale, side)

    if not options.policy:
        disturb = Disturbance(rng)

        def demonstrate(seen: SimObservation) -> tuple[ExpertLabel, Floats]:
            label = label_of(seen)
            action = disturb(late.act(seen, label.action))
            late.executed.append(action)
            return label, action

        return demonstrate
    engine = shared_policy(options.policy)
    engine.reset(episode.instruction)
    unsteady = rng if options.unsteady else None
    policy = DelayedActor(engine.act, episode.delay, engine.interrupt, unsteady)
    expert_acts = False

    def drive(seen: SimObservation) -> tuple[ExpertLabel, Floats]:
        nonlocal expert_acts
        label = label_of(seen)
        lesson = late.act(seen, label.action)
        if rng.uniform() < SWITCH:
            expert_acts = bool(rng.uniform() < options.expert_share)
        policy.see(seen)
        if expert_acts:
            policy.interrupt()
            policy.held[GRIPPER] = to_physical(lesson, scale)[GRIPPER]
        physical = None if expert_acts else policy.act()
        action = lesson if physical is None else to_environment(physical, scale)
        late.executed.append(action)
        return label, action

    return drive


@lru_cache(maxsize=1)
def _projection(size: int) -> Projection:
    return Projection(size)
