"""A training of a small flow policy for the SO-101, by its scripted teacher and its own mistakes.

The teacher acts first, disturbed; then, round by round, the policy made so far does, the teacher
at times. In every frame the teacher says what it would do in the periods that follow (the world is
put back afterwards), and from that the policy learns. Two cameras, six joints, degrees and a
gripper from 0 to 100, as LeRobot's data sets of this arm have them; a folder in LeRobot's layout
comes out.

A run that was stopped goes on with the round that was going on.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vla_ros.core.clock import SystemClock
from vla_ros.core.console import Report
from vla_ros.core.types import Floats, Image, Observation, Timeline
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.families.lerobot import WEIGHTS, FlowConfig, expected_tensors, read_flow_config
from vla_ros.engine.io.hub import resolve
from vla_ros.engine.io.images.preprocessor import fit
from vla_ros.engine.io.processors import Processors, Scaler
from vla_ros.engine.io.weights import FileWeights
from vla_ros.policies.units import scaling_for
from vla_ros.sim.env import AGENTVIEW, WRIST, SimObservation
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.so101 import world
from vla_ros.sim.so101.environment import So101
from vla_ros.sim.so101.expert import So101Expert
from vla_ros_lab.train.collect import RENDER_SIZE, pool
from vla_ros_lab.train.flow import (
    FLOW_ARCHITECTURES,
    FlowBatch,
    FlowNetwork,
    FlowObjective,
    noisy,
    stored,
    tokenizer_for,
    write_flow,
)
from vla_ros_lab.train.frames import mixed
from vla_ros_lab.train.optimizer import muon_and_adamw
from vla_ros_lab.train.options import Machine
from vla_ros_lab.train.so101_options import So101Options

CAMERAS = (AGENTVIEW, WRIST)
THINGS = (world.CUBE, world.TRAY)
SEED = 1_000_000  # of initial states: the evaluation's are below a million
EXECUTED = 4  # of a chunk
SWITCH, SHARE = 0.05, 0.3  # per step, and how much of an episode of the policy's is the teacher's
STEPS = 70  # of an episode; the teacher takes 27 and 38
#: how the teacher is disturbed: rad on every joint, in every step and for some of them
JITTER, SHOVE, SHOVE_CHANCE, SHOVE_STEPS = 0.02, 0.3, 0.06, (3, 9)
CALM = 0.25  # share of its episodes that are not
LEAST_DEG = 2.0  # least deviation that a joint is scaled by


@dataclass(slots=True)
class Frames:
    """N frames. ``images`` uint8 [N, 2, s, s, 3]; ``state`` [N, 6] and ``chunks`` [N, K, H, 6], a
    chunk for each task, in the data set's units; ``spots`` [N, 2, 3], where cube and box are, m."""

    images: npt.NDArray[np.uint8]
    state: npt.NDArray[np.float32]
    chunks: npt.NDArray[np.float32]
    spots: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.state)


def config_of(arch: str) -> FlowConfig:
    """Of two cameras and six joints."""
    return replace(
        FLOW_ARCHITECTURES[arch], state_width=6, action_width=6, state_dim=6, action_dim=6,
        cameras=("front", "wrist"),
    )  # fmt: skip


# Episodes.


class Policy:
    """A checkpoint that acts, EXECUTED of each chunk."""

    def __init__(self, checkpoint: str) -> None:
        engine = load_engine(EngineOptions(checkpoint, num_threads=1))
        self._engine, self._clock, self._stamp = engine, SystemClock(), 0
        self._rest: list[Floats] = []

    def reset(self, instruction: str) -> None:
        """An episode."""
        self._engine.reset(instruction)
        self._rest = []

    def act(self, seen: SimObservation, state: Floats, anew: bool) -> Floats:
        """An action [6] in the data set's units; ``anew``: nothing of the old chunk."""
        if not self._rest or anew:
            self._stamp += 1
            now = self._clock.steady_ns()
            images = seen.images[AGENTVIEW], seen.images[WRIST]
            frame = Observation(self._stamp, self._stamp, now, *images, state)
            answer = self._engine.step(frame, Timeline(now).mark("queue", now), self._clock)
            assert answer is not None  # a flow policy answers every frame
            self._rest = list(answer.actions[:EXECUTED])
        return self._rest.pop(0)


@dataclass(frozen=True, slots=True)
class Part:
    """Episodes ``first`` to ``end`` of a round; ``checkpoint``: who acts, '' for the teacher."""

    path: Path
    checkpoint: str
    tasks: tuple[str, ...]
    round: int
    first: int
    end: int
    horizon: int
    size: int


def play(part: Part) -> tuple[int, int]:
    """Play them and write their frames; returns the episodes solved and the frames."""
    environment = EnvConfig("so101", RENDER_SIZE)()
    assert isinstance(environment, So101)
    known = {task.name: task for task in environment.spec.tasks}
    instructions = [known[name].instruction for name in part.tasks]
    teachers = [So101Expert(text) for text in instructions]
    state_units = scaling_for(world.STATE_UNITS, 6, "state_units")
    action_units = scaling_for(world.ACTION_UNITS, 6, "action_units")
    policy = Policy(part.checkpoint) if part.checkpoint else None
    rows: list[tuple[Image, Floats, Floats, Floats]] = []
    solved = 0
    for number in range(part.first, part.end):
        which = number % len(part.tasks)
        rng = np.random.default_rng([part.round, number])
        state = number % known[part.tasks[which]].initial_states
        seed = SEED + 10_000 * part.round + number
        seen = environment.reset(part.tasks[which], state, seed)
        disturbed = Disturbed(rng) if policy is None else None
        if policy is not None:
            policy.reset(instructions[which])
        teaches = False
        for _ in range(STEPS):
            joints = state_units.to_checkpoint(seen.joint_positions)
            ahead = [environment.ahead(one.act, part.horizon) for one in teachers]
            chunks = np.stack([action_units.to_checkpoint(each) for each in ahead])
            spots = np.array([seen.poses[name].position for name in THINGS])
            images = [
                fit(seen.images[camera], part.size, "resize-naive", (0, 0, 0), "box")
                for camera in CAMERAS
            ]
            rows.append((np.stack(images), joints, chunks, spots))
            wanted = ahead[which][0]
            changed = bool(rng.uniform() < SWITCH)
            if changed:
                teaches = bool(rng.uniform() < SHARE)
            if disturbed is not None:
                wanted = disturbed(wanted)
            elif policy is not None and not teaches:
                wanted = action_units.to_runtime(policy.act(seen, joints, changed))
            wanted[:-1] = np.clip(wanted[:-1], *np.array(world.ARM_RANGE).T)
            wanted[-1] = np.clip(wanted[-1], 0.0, 1.0)
            step = environment.step(wanted)
            if step.done:
                solved += step.success
                break
            seen = step.observation
    environment.close()
    pixels, *numbers = (np.stack(column) for column in zip(*rows, strict=True))
    scratch = part.path.with_suffix(".tmp.npz")
    np.savez(scratch, pixels, *(column.astype(np.float32) for column in numbers))
    scratch.replace(part.path)
    return solved, len(rows)


class Disturbed:
    """What the teacher wants, less exactly: jitter, and now and then a shove. Not the gripper."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng, self._calm, self._left = rng, rng.uniform() < CALM, 0
        self._shove = np.zeros(5)

    def __call__(self, action: Floats) -> Floats:
        if self._calm:
            return action
        if self._left == 0 and self._rng.uniform() < SHOVE_CHANCE:
            self._left = int(self._rng.integers(*SHOVE_STEPS))
            self._shove = self._rng.uniform(-SHOVE, SHOVE, 5)
        out = action.copy()
        out[:-1] += self._rng.normal(0.0, JITTER, 5)
        if self._left:
            self._left -= 1
            out[:-1] += self._shove
        return out


def collect(
    number: int,
    checkpoint: str,
    options: So101Options,
    out: Path,
    workers: int,
    report: Report,
    stop: Callable[[], bool],
) -> str | None:
    """The parts of round ``number`` that are missing; what came of them in words, None: stopped."""
    count = options.dagger_episodes if number else options.demos
    config = config_of(options.arch)
    parts = [
        Part(
            out / f"round-{number}-{first // options.part:03d}.npz", checkpoint,
            options.tasks, number, first, min(first + options.part, count), config.horizon,
            config.image_size,
        )
        for first in range(0, count, options.part)
    ]  # fmt: skip
    missing = [part for part in parts if not part.path.exists()]
    solved = frames = played = 0
    if not missing:
        return "its episodes were there"
    line = ""
    with pool(workers) as processes:
        waiting = [processes.submit(play, part) for part in missing]
        try:
            for part, one in zip(missing, waiting, strict=True):
                good, length = one.result()
                solved, frames = solved + good, frames + length
                played += part.end - part.first
                who = "the policy's, the teacher at times" if number else "the teacher's, disturbed"
                line = f"round {number}, {who}: {solved} of {played} solved, {frames} frames"
                report(line, part.end, count)
                if stop() and part is not missing[-1]:
                    return None
        finally:
            for one in waiting:
                one.cancel()
    return line


def load(out: Path, round_: str = "*") -> Frames:
    """All parts of a round that are there."""
    found: dict[str, list[npt.NDArray[Any]]] = {one.name: [] for one in fields(Frames)}
    for path in sorted(out.glob(f"round-{round_}-???.npz")):
        with np.load(path) as part:
            for name, key in zip(found, part.files, strict=True):
                found[name].append(part[key])
    return Frames(**{name: np.concatenate(parts) for name, parts in found.items()})


# Training.


def units_of(frames: Frames) -> Processors:
    """Mean and deviation of the states and of what the teacher tells."""

    def of(values: npt.NDArray[np.float32]) -> Scaler:
        rows = torch.from_numpy(values).flatten(0, -2)
        return Scaler("MEAN_STD", rows.mean(0), rows.std(0).clamp(min=LEAST_DEG))

    return Processors(of(frames.state), of(frames.chunks), "")


class Batches:
    """Of ``size`` frames with each task's instruction."""

    def __init__(
        self,
        frames: Frames,
        network: FlowNetwork,
        instructions: Sequence[str],
        options: So101Options,
    ) -> None:
        self._frames, self._config, self._options = frames, network.config, options
        units, tower = network.units, network.config.shapes.vision
        self._state = units.state.normalize(torch.from_numpy(frames.state))
        self._chunks = units.action.normalize(torch.from_numpy(frames.chunks))
        prompts = [torch.tensor(tokenizer_for(network.config)(text)) for text in instructions]
        self._lengths = torch.tensor([len(prompt) for prompt in prompts])
        self._ids = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True)
        self._mean, self._std = (torch.tensor(v).view(3, 1, 1) for v in (tower.mean, tower.std))

    def batch(self, step: int) -> FlowBatch:
        """The same one on every call."""
        draw = torch.Generator().manual_seed(mixed(self._options.seed, step))
        size, tasks = self._options.batch, len(self._ids)
        index = torch.randint(len(self._frames), (size,), generator=draw)
        light = 0.1 * (2 * torch.rand(2, size, 1, 1, 1, 1, generator=draw) - 1)
        pixels = torch.from_numpy(self._frames.images[index.numpy()]).permute(0, 1, 4, 2, 3) / 255.0
        pixels = ((pixels - 0.5) * (1 + light[0]) + 0.5 + light[1]).clamp(0, 1)
        noise, time, given = noisy(self._config, (size, tasks, 2), draw)
        spots = torch.from_numpy(self._frames.spots[index.numpy()])
        lengths = self._lengths.expand(size, -1)
        return FlowBatch(
            pixels=(pixels - self._mean) / self._std,
            ids=self._ids.expand(size, -1, -1),
            lengths=lengths,
            state=self._state[index],
            actions=self._chunks[index],
            noise=noise,
            time=time,
            given=given,
            words=(lengths - 1)[..., None].expand(-1, -1, 2),
            spots=spots[:, None].expand(-1, tasks, -1, -1),
        )


def begin(network: FlowNetwork, checkpoint: str) -> None:
    """Take over every weight of another flow policy that has the same shape."""
    directory = resolve(checkpoint)
    expected = expected_tensors(read_flow_config(directory))
    source = FileWeights(directory / WEIGHTS, expected)
    with torch.no_grad():
        for name, tensor in network.tensors().items():
            if expected.must.get(name) == tuple(tensor.shape):
                tensor.copy_(source.take(name))


def train(
    network: FlowNetwork,
    batch: Callable[[int], FlowBatch],
    first: int,
    steps: int,
    options: So101Options,
    compiled: bool,
    report: Report,
    stop: Callable[[], bool],
) -> dict[str, torch.Tensor] | None:
    """``steps`` more from number ``first``; the moving average of the weights. None: stopped, and
    these steps are made again."""
    device = torch.device("cpu")
    objective = FlowObjective(network, batch, options.dtype, device, compiled)
    optimizer = muon_and_adamw(network, options.learning_rate, 0.01)
    average = {n: p.detach().clone() for n, p in network.named_parameters()}
    for number in range(steps):
        losses = objective.losses(first + number)
        (losses.action + 0.5 * losses.place).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        warm, left = min(1.0, (number + 1) / 50), 1 - number / steps
        optimizer.step(options.learning_rate * warm * left**0.5)
        memory = min(0.995, (1 + number) / (10 + number))
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                average[name].lerp_(parameter, 1 - memory)
        line = f"loss {losses.action.item():.3f} error {losses.error.item():.3f}"
        report(f"{line} place {losses.place.item():.3f}", number + 1, steps)
        if stop() and number + 1 < steps:
            return None
    return average


def run(
    options: So101Options,
    out: Path,
    machine: Machine,
    report: Report,
    stop: Callable[[], bool] = lambda: False,
) -> str | None:
    """Train until done: ``out/policy``. What the last round came to, in words; None: stopped.

    Called again it goes on; ``out`` is of one set of options."""
    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    known = {task.name: task.instruction for task in world.TASKS}
    instructions, checkpoint, first = [known[name] for name in options.tasks], "", 0
    said: str | None = ""
    for number in range(options.dagger + 1):
        steps = options.steps[min(number, len(options.steps) - 1)]
        made = out / f"policy-{number}"
        if not made.exists():
            said = collect(number, checkpoint, options, out, machine.workers, report, stop)
            if said is None:
                return None
            frames = load(out)
            torch.manual_seed(options.seed)
            network = FlowNetwork(config_of(options.arch), len(THINGS), options.seed)
            if source := checkpoint or options.init_from:
                begin(network, source)
            # Of the teacher's own, whatever the rounds add: a policy goes on in what it began with.
            network.scales.copy_(stored(units_of(load(out, "0"))))
            batches = Batches(frames, network, instructions, options)
            average = train(
                network, batches.batch, first, steps, options, machine.compiled, report, stop
            )
            if average is None:
                return None
            with torch.no_grad():
                for name, parameter in network.named_parameters():
                    parameter.copy_(average[name])
            scratch = out / ".policy"  # a killed run must not find half of one
            shutil.rmtree(scratch, ignore_errors=True)
            write_flow(network, scratch)
            scratch.rename(made)
        checkpoint, first = str(made), first + steps
    (final := out / "policy").unlink(missing_ok=True)
    final.symlink_to(Path(checkpoint).name)
    return said
