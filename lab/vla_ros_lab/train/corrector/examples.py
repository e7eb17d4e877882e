"""Examples for a corrector: the policy's prefix of a frame, the actions of an earlier frame's chunk
for that moment and the next ones, and the expert's.

Two sources. Demonstrations: frames whose chunks began up to a chunk's length earlier; nothing moves
in them by itself. The corrected policy's own episodes, with chunks that come late and the cube
moved on the way, labeled by the expert (Ross et al. 2011): where a chunk is wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vla_ros.core.clock import SystemClock
from vla_ros.core.types import GRIPPER, Floats, Image, Observation, Timeline
from vla_ros.data.episodes.play import robot_state
from vla_ros.engine.engine import Engine
from vla_ros.engine.models.corrector import Corrector
from vla_ros.sim.env import AGENTVIEW, SimObservation
from vla_ros.sim.expert import Expert
from vla_ros_lab.train.collect import SWITCH, Driver, ExpertLabel
from vla_ros_lab.train.demonstrations import (
    Track,
    own_states,
    read_images,
    read_info,
    read_tracks,
    shards,
)
from vla_ros_lab.train.frames import SETTLED, STILL, worth_training
from vla_ros_lab.train.units import to_environment, to_physical

_EVERY = 4  # frames of a demonstration from one chunk to the next


@dataclass(slots=True)
class Example:
    """A frame: ``rows`` bfloat16 [R, C], the policy's prefix; ``state`` [S], ``bases`` and
    ``labels`` [n, D] in model space: the actions of chunks for this moment and for later ones, and
    the right ones; ``indices`` and ``ahead`` int64 [n]: the base's index in its chunk and the steps
    until it is due; ``episode``: the number of its episode."""

    rows: torch.Tensor
    state: torch.Tensor
    bases: torch.Tensor
    labels: torch.Tensor
    indices: torch.Tensor
    ahead: torch.Tensor
    episode: int


class Reader:
    """A frozen flow policy, run one frame at a time. ``scale`` [6] is the environment's. Not
    thread-safe."""

    def __init__(self, engine: Engine, scale: Floats) -> None:
        self._engine, self._clock, self.scale, self._stamp = engine, SystemClock(), scale, 0
        self._scaler = engine.policy.processors.action

    def begin(self, instruction: str) -> None:
        """Begin an episode."""
        self._engine.reset(instruction)

    def observation(self, image: Image, state: Floats) -> Observation:
        """An observation of an image, with a stamp of its own."""
        self._stamp += 1
        return Observation(self._stamp, self._stamp, self._clock.steady_ns(), image, proprio=state)

    def encode(self, seen: Observation) -> tuple[torch.Tensor, torch.Tensor]:
        """The prefix [R, C] and the state [S] in model space."""
        inputs = self._engine.robot.prepare(seen)
        rows = self._engine.model.read_rows(inputs).to("cpu", torch.bfloat16)
        return rows, inputs.state[: self._engine.info.state_dim].cpu()

    def chunk(self, seen: Observation) -> Floats:
        """Actions [H, D] in units."""
        timeline = Timeline(seen.received_steady_ns).mark("queue", seen.received_steady_ns)
        answer = self._engine.step(seen, timeline, self._clock)
        assert answer is not None  # a flow policy answers every frame
        return answer.actions

    def normalized(self, actions: Floats) -> torch.Tensor:
        """Actions [..., D] in units -> model space."""
        return self._scaler.normalize(torch.from_numpy(np.asarray(actions, np.float32)))

    def units(self, actions: torch.Tensor) -> Floats:
        """Model space [..., D] -> units, the gripper from 0 to 1."""
        out: Floats = self._scaler.restore(actions).double().numpy()
        out[..., 6] = out[..., 6].clip(0.0, 1.0)
        return out


def of_demonstrations(
    directories: Sequence[Path], reader: Reader, ahead: int
) -> Iterator[list[Example]]:
    """The examples of each demonstration of the sets, one set after the other, of actions that are
    due up to ``ahead`` steps after their frame."""
    number = 0
    for path in (path for directory in directories for path in shards(directory)):
        camera = read_info(path).cameras[0]
        for track, images in zip(read_tracks(path), read_images(path, camera), strict=True):
            yield _of_track(track, images, reader, ahead, number)
            number += 1


def _of_track(
    track: Track, images: Image, reader: Reader, ahead: int, number: int
) -> list[Example]:
    reader.begin(track.instruction)
    found: list[Example] = []
    chunks: dict[int, Floats] = {}
    keep, states = worth_training(track), own_states(track.poses, track.gripper_states)
    labels = reader.normalized(to_physical(track.actions.astype(np.float64), reader.scale))
    for at in range(len(track)):
        seen = reader.observation(images[at], states[at])
        if at % _EVERY == number % _EVERY:
            chunks[at] = reader.chunk(seen)
        there = [
            (began, then)
            for then in range(at, min(at + ahead + 1, len(track)))
            for began, chunk in chunks.items()
            if keep[then] and then - began < len(chunk)
        ]
        if not keep[at] or not there:
            continue
        rows, state = reader.encode(seen)
        example = Example(
            rows,
            state,
            reader.normalized(np.array([chunks[began][then - began] for began, then in there])),
            labels[[then for _, then in there]],
            torch.tensor([then - began for began, then in there]),
            torch.tensor([then - at for _, then in there]),
            number,
        )
        found.append(example)
    return found


class LateActor:
    """Drives an episode with chunks that come ``delay`` steps late, of which ``executed`` are
    carried out, each corrected; for stretches the expert acts (``share`` of the steps). Every step
    becomes an example of ``found``, and a label of the up to ``ahead`` frames before. One episode.

    A chunk takes over ``delay`` steps after its frame, at the action that is due then; until the
    first one is there the robot stands still.
    """

    def __init__(
        self,
        reader: Reader,
        corrector: Corrector | None,
        instruction: str,
        delay: int,
        executed: int,
        ahead: int,
        share: float,
        rng: np.random.Generator,
        number: int,
    ) -> None:
        reader.begin(instruction)
        self.found: list[Example] = []
        self._reader, self._corrector, self._expert = reader, corrector, Expert(instruction)
        self._delay, self._executed, self._share = delay, executed, share
        self._ahead = ahead
        #: the newest examples, their step, when action 0 of their chunk was due
        self._kept: deque[tuple[Example, int, int]] = deque(maxlen=ahead + 1)
        self._rng, self._number, self._step = rng, number, -1
        self._chunk: tuple[int, Floats] | None = None  # when its action 0 was due, and its actions
        self._coming: tuple[int, Floats] | None = None  # of which frame
        self._acts = False
        self._before: tuple[Floats, bool] | None = None  # fingers, and whether they were to close

    def drive(self, scale: Floats) -> Driver:
        """The driver for an episode's ``play``; ``scale`` [6] of the environment."""

        def drive(seen: SimObservation) -> tuple[ExpertLabel | None, Floats]:
            action = self._act(seen).copy()
            action[GRIPPER] = action[GRIPPER] > 0.5  # open or closed
            return None, to_environment(action, scale)

        return drive

    def _act(self, seen: SimObservation) -> Floats:
        self._step += 1
        state = robot_state(seen, 8)
        assert state is not None
        frame = self._reader.observation(seen.images[AGENTVIEW], state)
        self._take_over(frame)
        wanted = np.asarray(self._expert.act(seen.poses), np.float64)
        if self._rng.uniform() < SWITCH:
            self._acts = bool(self._rng.uniform() < self._share)
        at = self._step - self._chunk[0] if self._chunk else 0
        if self._chunk is None or at >= len(self._chunk[1]):
            return np.array([0, 0, 0, 0, 0, 0, 1.0]) if self._before is None else wanted
        base = self._chunk[1][at]
        rows, own = self._reader.encode(frame)
        normal = self._reader.normalized(base)
        if not self._idle(wanted, seen.gripper_qpos):
            self._keep(rows, own, wanted, normal, at)
        done = wanted if self._acts else self._corrected(rows, own, base, normal, at)
        self._before = seen.gripper_qpos, done[6] <= 0.5
        return done

    def _take_over(self, frame: Observation) -> None:
        """Let a chunk that is due take over, and begin the next where it is time."""
        if self._coming is not None and self._step - self._coming[0] >= self._delay:
            began, actions = self._coming
            first = self._chunk is None or self._step - self._chunk[0] >= len(self._chunk[1])
            self._chunk = (self._step if first else began), actions
            self._coming = None
        at = self._step - self._chunk[0] if self._chunk else 0
        if self._coming is None and (self._chunk is None or at >= self._executed):
            self._coming = self._step, self._reader.chunk(frame)

    def _idle(self, wanted: Floats, fingers: Floats) -> bool:
        """No reason to wait is in the frame (frames.worth_training)."""
        if self._before is None or np.abs(wanted[:GRIPPER]).max() >= STILL:
            return False
        settled = np.abs(fingers - self._before[0]).max() < SETTLED
        return bool(settled) and self._before[1] == (wanted[6] <= 0.5)

    def _keep(
        self, rows: torch.Tensor, own: torch.Tensor, wanted: Floats, base: torch.Tensor, at: int
    ) -> None:
        """Keep an example of this frame, and the right action of now for the frames before it
        whose chunk is still the present one."""
        label = self._reader.normalized(wanted)
        assert self._chunk is not None
        none, index = torch.empty(0, len(base)), torch.empty(0, dtype=torch.int64)
        example = Example(rows, own, none, none, index, index, self._number)
        self.found.append(example)
        self._kept.append((example, self._step, self._chunk[0]))
        for one, step, chunk in self._kept:
            ahead = self._step - step
            if chunk != self._chunk[0] or ahead > self._ahead:
                continue
            one.bases = torch.cat((one.bases, base[None]))
            one.labels = torch.cat((one.labels, label[None]))
            one.indices = torch.cat((one.indices, torch.tensor([at])))
            one.ahead = torch.cat((one.ahead, torch.tensor([ahead])))

    def _corrected(
        self, rows: torch.Tensor, own: torch.Tensor, base: Floats, normal: torch.Tensor, at: int
    ) -> Floats:
        if self._corrector is None:
            return base
        with torch.inference_mode():
            added = self._corrector(
                rows[None].float(), torch.tensor([len(rows)]), own[None], normal[None],
                torch.tensor([at]), torch.tensor([0]),
            )[0]  # fmt: skip
        return self._reader.units(normal + added)
