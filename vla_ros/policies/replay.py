"""The policy that repeats recorded actions, one (or one chunk) per observation."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vla_ros.core.action_space import ActionSpace
from vla_ros.core.clock import Clock
from vla_ros.core.files import read_arrays
from vla_ros.core.types import Floats, Inference, Instruction, Observation, PolicyInfo, Timeline
from vla_ros.policies.base import InvalidAction, PolicyRefused, PolicySpec, finish

NPZ_KEY, NPZ_RATE = "actions", "action_rate_hz"


class ReplayPolicy:
    """Replay of ``spec.replay_file`` from its first row; ``reset`` rewinds.

    An observation with the stamp of the one before it (sent again in lock-step) gets the
    same row again. Past the end the file starts over, or, without ``replay_loop``, the robot
    stays where it is with the last grippers. A row that is not finite raises InvalidAction.
    """

    def __init__(self, spec: PolicySpec) -> None:
        self._space = spec.action_space
        self._loop = spec.replay_loop
        self._rows = read_actions(Path(spec.replay_file), self._space)
        self.info = PolicyInfo(
            "replay",
            checkpoint=spec.replay_file,
            chunk_length=self._rows.shape[1],
            action_space=self._space,
            action_rate_hz=rate_of(Path(spec.replay_file)),
        )
        self._next = 0
        self._stamp: int | None = None

    def reset(self, instruction: Instruction) -> None:
        """Rewind."""
        self._next = 0
        self._stamp = None

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference:
        """The next row, float64 [C, D]."""
        if observation.stamp_ns != self._stamp:
            self._stamp = observation.stamp_ns
            self._next += 1
        index = self._next - 1
        row = self._row(index)
        if not np.isfinite(row).all():
            raise InvalidAction(f"row {index} of the replayed file is not finite")
        return Inference(observation.stamp_ns, row.copy(), finish(timeline, clock))

    def _row(self, index: int) -> Floats:
        count = len(self._rows)
        if index < count or self._loop:
            row: Floats = self._rows[index % count]
            return row
        rest: Floats = np.repeat(self._rows[-1, -1:], self._rows.shape[1], 0)
        if not self._space.absolute:
            rest[:, list(self._space.motion)] = 0.0
        return rest


def read_actions(path: Path, space: ActionSpace) -> Floats:
    """Recorded actions, float64 [N, D], or chunks [N, C, D], of a .npy file, or of ``actions`` in a
    .npz file, as [N, C, D]. No pickles."""
    try:
        found = read_arrays(path)
        raw = found[""] if "" in found else found[NPZ_KEY]
        rows = np.asarray(raw, dtype=np.float64)
    except KeyError as error:
        raise PolicyRefused(f"{path} has no array {NPZ_KEY!r}: save it under that name") from error
    except (OSError, ValueError, TypeError) as error:
        raise PolicyRefused(f"cannot read actions from {path}: {error}") from error
    if rows.ndim not in (2, 3) or 0 in rows.shape or rows.shape[-1] != space.width:
        width = space.width
        raise PolicyRefused(
            f"{path} holds {list(rows.shape)}: it must be [N, {width}], or [N, C, {width}] of"
            f" chunks, a column a number of {space.kind.name.lower()}: {' '.join(space.names)}"
        )
    return rows[:, None] if rows.ndim == 2 else rows


def rate_of(path: Path) -> float:
    """Rate in Hz of the actions that :func:`read_actions` has read: ``action_rate_hz`` of a .npz
    file, 0 where it says none. PolicyRefused: it is no rate."""
    said = read_arrays(path).get(NPZ_RATE)
    if said is None:
        return 0.0
    if said.size != 1 or said.dtype.kind not in "iuf" or not 0.0 < float(said.item()) < np.inf:
        raise PolicyRefused(f"{path}: {NPZ_RATE} is {said!r}: one number of Hz is wanted")
    return float(said.item())
