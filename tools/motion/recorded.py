"""Chunks of three policies, recorded in lock-step without ROS, and what is executed of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from motion.ways import Part
from vla_ros.core.types import Command, CommandKind, Floats, Inference, Instruction, Observation
from vla_ros.data.episodes.play import DirectRunner
from vla_ros.data.episodes.records import Job, Setup, Variant
from vla_ros.sim.env import Environment, EnvSpec, SimObservation, SimStep

ARM = 5  # joints of the SO-101
CHUNK, EXECUTED = 16, 4  # of the chunks that single targets are grouped to


@dataclass(frozen=True, slots=True)
class Source:
    """A policy, its tasks, each in so many initial states, and how it is asked."""

    label: str
    environment: str
    policy: str
    tasks: tuple[str, ...]
    checkpoint: str = ""
    chunk: int = 1
    replan_interval: int = 0
    delay_frames: int = 0

    @property
    def joints(self) -> bool:
        """True where actions are targets of joints, else displacements of a hand."""
        return self.environment == "so101"

    @property
    def unit(self) -> str:
        return "rad" if self.joints else "m"


# Contacts would be the largest accelerations of all: these tasks touch nothing.
REACH = tuple(f"reach_{color}_cube" for color in ("red", "blue", "yellow"))
SOURCES = (
    Source(
        "tabletop-flow", "tabletop", "vla", REACH, "shipped:tabletop-flow", 16, 4, 2,
    ),
    Source(
        "tabletop-chunk", "tabletop", "vla", REACH, "shipped:tabletop-chunk", 8, 4, 2,
    ),
    Source("SO-101 expert", "so101", "scripted", ("lift_cube", "cube_in_box")),
)  # fmt: skip


@dataclass(slots=True)
class Episode:
    """A recorded episode at the action rate. ``chunks``: the answers by their stamps, [C, D];
    ``seen``: the position [M] measured in each frame by its stamp; ``executed``: stamp and index of
    each action, and the action [D] as it left the gate."""

    source: Source
    task: str
    initial_state: int
    chunks: dict[int, Floats] = field(default_factory=dict)
    seen: dict[int, Floats] = field(default_factory=dict)
    executed: list[tuple[int, int, Floats]] = field(default_factory=list)

    @property
    def start(self) -> Floats:
        """Position [M] measured before the first action."""
        return self.seen[self.executed[0][0]]

    @property
    def grippers(self) -> list[float]:
        """Opening of the gripper with each action."""
        return [float(action[-1]) for _, _, action in self.executed]

    def displacements(self) -> list[Part]:
        """Displacements [C, 6] as the policy gave them."""
        return [
            Part(self.chunks[stamp][:, :6], first, count) for stamp, first, count in self._runs()
        ]

    def targets(self) -> list[Part]:
        """Chunks of targets from where the arm is measured in the frame that they answer: positions
        of the hand [C, 3], or joints [C, 5]."""
        if self.source.joints:
            return self._grouped()
        return [
            Part(np.cumsum(self.chunks[stamp][:, :3], 0), first, count)
            for stamp, first, count in self._runs()
        ]

    def _runs(self) -> list[tuple[int, int, int]]:
        """Stamp of each chunk that was executed, the first action of it, and how many."""
        found = []
        for stamp, group in groupby(self.executed, key=lambda row: row[0]):
            indices = [index for _, index, _ in group]
            found.append((stamp, indices[0], len(indices)))
        return found

    def _grouped(self) -> list[Part]:
        """The actions, one at a time, as chunks of CHUNK of which EXECUTED are executed."""
        rows = np.array([action[:ARM] for _, _, action in self.executed])
        out = []
        for begin in range(0, len(rows), EXECUTED):
            before = rows[begin - 1] if begin else self.start
            chunk = rows[begin : begin + CHUNK] - before
            out.append(Part(chunk, 0, min(EXECUTED, len(chunk))))
        return out


class _Watched:
    """An environment whose newest observation is kept. Implements ``Environment``."""

    def __init__(self, world: Environment) -> None:
        self._world = world
        self.seen: SimObservation | None = None

    @property
    def spec(self) -> EnvSpec:
        return self._world.spec

    def reset(
        self, task: str, initial_state: int, seed: int = 0, render: bool = True
    ) -> SimObservation:
        self.seen = self._world.reset(task, initial_state, seed, render)
        return self.seen

    def step(self, action: Any, render: bool = True) -> SimStep:
        step = self._world.step(action, render)
        self.seen = step.observation
        return step

    def close(self) -> None:
        self._world.close()


class Recorder(DirectRunner):
    """A runner that keeps what a source's policy answers and what is executed of it."""

    def __init__(self, source: Source, max_steps: int) -> None:
        self._source = source
        self._variant = Variant(
            source.label, decoding="auto" if source.checkpoint else "",
            replan_interval=source.replan_interval, delay_frames=source.delay_frames,
        )  # fmt: skip
        setup = Setup(
            environment=source.environment, policy=source.policy, checkpoint=source.checkpoint,
            route="direct", chunk=source.chunk, max_steps=max_steps,
        )  # fmt: skip
        super().__init__(setup, (self._variant,))

    def __enter__(self) -> Recorder:
        super().__enter__()
        return self

    def record(self, task: str, initial_state: int) -> Episode:
        """Play an episode. RunnerFailed, RuntimeError: the policy broke."""
        if not isinstance(self._world, _Watched):
            assert self._world is not None, "enter the recorder first"
            self._world = _Watched(self._world)
        world, episode = self._world, Episode(self._source, task, initial_state)
        if self._source.joints:  # its first command would be held to the last one's neighbourhood
            self._acting = None
        loop = self._loop(self._variant)
        submit, publish = loop.submit, loop.publish

        def submitted(observation: Observation, instruction: Instruction) -> None:
            submit(observation, instruction)
            answer: Inference | None = loop.last[1] if loop.last is not None else None
            if answer is not None:
                episode.chunks[answer.stamp_ns] = answer.actions

        def published(command: Command) -> None:
            seen = world.seen
            assert seen is not None
            here = seen.joint_positions[:ARM] if self._source.joints else seen.eef_pos
            episode.seen[command.latest_ns] = here.copy()
            if command.kind is CommandKind.POLICY:
                row = (command.stamp_ns, command.chunk_index, command.action.copy())
                episode.executed.append(row)
            publish(command)

        setattr(loop, "submit", submitted)  # noqa: B010
        setattr(loop, "publish", published)  # noqa: B010
        try:
            record = self.play(
                Job(self._variant.label, task, initial_state, 0, "", 0), self._variant
            )
        finally:
            del loop.submit, loop.publish
        if record.error or not episode.executed:
            raise RuntimeError(f"{self._source.label}, {task}: {record.error or record.reason}")
        return episode
