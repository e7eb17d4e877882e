"""Counts one episode, whoever plays it, and makes its record. Not thread-safe."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

import numpy as np

from vla_ros.core.clock import MS
from vla_ros.core.types import (
    ACTION_DIM,
    GRIPPER,
    Command,
    CommandKind,
    Floats,
    Inference,
    PolicyState,
)
from vla_ros.data.episodes.records import Job, Record, Spread

# How smoothly chunks follow each other. Not thread-safe.


_REMEMBERED = 4096  # chunks; more than an episode has steps


class Seams:
    """Seams and jerks of an episode, as a :class:`Record` has them. Give it every inference before
    the commands that execute it."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.seams: list[float] = []
        self.jerks: list[float] = []
        self._chunks: dict[int, Floats] = {}  # by stamp
        self._last: Command | None = None
        self._moves: list[Floats] = []  # the last three

    def inference(self, inference: Inference) -> None:
        if len(inference.actions) > 1:
            self._chunks[inference.stamp_ns] = inference.actions
            while len(self._chunks) > _REMEMBERED:
                del self._chunks[next(iter(self._chunks))]

    def command(self, command: Command) -> None:
        """One that was executed."""
        self._moves = [*self._moves[-2:], command.action[:GRIPPER]]
        if len(self._moves) == 3:
            first, second, third = self._moves
            self.jerks.append(float(np.linalg.norm(third - 2 * second + first)))
        before, self._last = self._last, command
        if command.kind is not CommandKind.POLICY or command.stamp_ns not in self._chunks:
            return
        if before is not None and before.stamp_ns == command.stamp_ns:
            return
        self.begun.append(command.chunk_index)
        if before is None or before.kind is not CommandKind.POLICY:
            return
        old, index = self._chunks.get(before.stamp_ns), before.chunk_index + 1
        if old is not None and index < len(old):
            new = self._chunks[command.stamp_ns][command.chunk_index]
            self.seams.append(float(np.linalg.norm((new - old[index])[:GRIPPER])))


NO_DECODING = "none"  # that of a policy without a model
#: how an unsolved episode ends in sim/episode.py -> in a record
_ENDS = (("not solved within", "step limit"), ("the task can no longer be solved", "out of reach"))


class EpisodeTally:
    """Counts of one episode: give it every command that a control step executed and every
    inference, in order."""

    def __init__(self) -> None:
        self._actions = hashlib.sha256()
        self._tokens = hashlib.sha256()
        self._frames_tokens: list[tuple[int, ...]] = []
        self._ages_ms: list[float] = []
        self._each_ms: list[float] = []  # the same, NaN for every step that held
        self._staleness_ms: list[float] = []
        self._inference_ms: list[float] = []
        self._delays: list[float] = []
        self._drafted: list[int] = []
        self._accepted: list[int] = []
        self._seams = Seams()
        self._passes = self._frames = self._actions_made = self._steps = self._moved = 0

    def command(self, command: Command, executed_ns: int) -> None:
        """One control step executed ``command`` when the clock of its stamps was there."""
        self._steps += 1
        self._actions.update(np.ascontiguousarray(command.action, np.float64).tobytes())
        self._seams.command(command)
        if command.kind is CommandKind.POLICY:
            self._moved += 1
            self._ages_ms.append((executed_ns - command.stamp_ns) / MS)
            self._each_ms.append(self._ages_ms[-1])
            waited_ns = executed_ns - command.published_ns
            self._staleness_ms.append((command.staleness_ns + waited_ns) / MS)
        else:
            self._each_ms.append(math.nan)

    def idle(self) -> None:
        """One control step without a command (real time)."""
        self._steps += 1
        self._each_ms.append(math.nan)

    def spent(self, spent_ms: float) -> None:
        """The policy took in a frame, which kept it busy for so long."""
        self._inference_ms.append(spent_ms)

    def inference(self, inference: Inference) -> None:
        """The policy answered one frame."""
        self._frames += 1
        self._seams.inference(inference)
        self._delays.append(inference.conditioning_delay)
        self._passes += inference.target_passes
        self._actions_made += len(inference.actions)
        self._drafted = add_per_dimension(self._drafted, inference.drafted)
        self._accepted = add_per_dimension(self._accepted, inference.accepted)
        if inference.tokens:
            self._frames_tokens.append(tuple(inference.tokens))
            self._tokens.update(np.asarray(inference.tokens, np.int64).tobytes())

    @property
    def steps(self) -> int:
        """Control steps so far."""
        return self._steps

    @property
    def moved(self) -> int:
        """Steps that executed an action of the policy."""
        return self._moved

    def record(
        self,
        job: Job,
        *,
        success: bool,
        reason: str,
        max_steps: int,
        wall_s: float,
        actions_a_step: float = 1.0,
        decoding: str = "",
        pipeline_depth: int = 1,
        clamped: int = 0,
        error: str = "",
    ) -> Record:
        """The record of the episode. ``actions_a_step``: the share of an action that a control step
        makes."""
        moved = self._moved * actions_a_step
        return Record(
            job=job,
            success=success,
            reason=reason,
            steps=math.floor(self._steps * actions_a_step + 1e-6),
            max_steps=max_steps,
            wall_s=wall_s,
            rate_hz=moved / wall_s if wall_s > 0 else 0.0,
            age_ms=Spread.of(self._ages_ms),
            staleness_ms=Spread.of(self._staleness_ms),
            inference_ms=Spread.of(self._inference_ms),
            conditioning_delay=Spread.of(self._delays) if any(self._delays) else Spread(),
            decoding="" if decoding == NO_DECODING else decoding,
            drafted=tuple(self._drafted),
            accepted=tuple(self._accepted),
            passes=self._passes,
            frames=self._frames,
            served=self._actions_made * max(1, pipeline_depth),
            held=round((self._steps - self._moved) * actions_a_step),
            clamped=clamped,
            action_digest=self._actions.hexdigest(),
            token_digest=self._tokens.hexdigest() if self._frames_tokens else "",
            begun=Spread.of(self._seams.begun),
            seam=Spread.of(self._seams.seams),
            jerk=Spread.of(self._seams.jerks),
            error=error,
            tokens=tuple(self._frames_tokens),
            ages=tuple(self._each_ms),
        )


def add_per_dimension(total: Iterable[int], more: Iterable[int]) -> list[int]:
    """Counts per action dimension, with those of one inference added.

    ``more`` has a count per token; the tokens of a chunk of actions go by their dimension.
    """
    out = list(total)
    for index, count in enumerate(more):
        dimension = index % ACTION_DIM
        out += [0] * (dimension + 1 - len(out))
        out[dimension] += count
    return out


def is_an_end(reason: str) -> bool:
    """Whether the simulation ends an episode so that was played to its end, in vain."""
    return any(reason.startswith(start) for start, _ in _ENDS)


def reason_of(success: bool, ended: str, state: PolicyState, why: str, moved: int) -> str:
    """A record's ``reason``: how it ``ended`` in the simulation, and what is wrong with the policy.

    ``state`` and ``why`` are the policy's at the end, ``moved`` the steps it acted in.
    """
    if success:
        return "success"
    end = next((short for start, short in _ENDS if ended.startswith(start)), ended)
    if state is PolicyState.FAULT:
        return f"policy FAULT: {why}"
    if state is PolicyState.HOLD:
        return f"{end}, policy HOLD: {why}"
    if moved == 0:
        return f"{end}, the policy never acted: {why}"
    return end
