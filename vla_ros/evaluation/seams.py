"""How smoothly chunks follow each other, by what was said and executed. Not thread-safe."""

from __future__ import annotations

import numpy as np

from vla_ros.core import GRIPPER, Command, CommandKind, Floats, Inference

_REMEMBERED = 4096  # chunks; more than an episode has steps


class Seams:
    """Tell it every inference before the commands that execute it; see
    :class:`vla_ros.evaluation.records.Record` for what comes out."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.seams: list[float] = []
        self.jerks: list[float] = []
        self._chunks: dict[int, Floats] = {}  # by stamp
        self._last: Command | None = None
        self._moves: list[Floats] = []  # the last three

    def inference(self, said: Inference) -> None:
        if len(said.actions) > 1:
            self._chunks[said.stamp_ns] = said.actions
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
        old, place = self._chunks.get(before.stamp_ns), before.chunk_index + 1
        if old is not None and place < len(old):
            new = self._chunks[command.stamp_ns][command.chunk_index]
            self.seams.append(float(np.linalg.norm((new - old[place])[:GRIPPER])))
