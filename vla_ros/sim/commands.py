"""Commands of a simulated robot between their arrival and the step that executes them. No ROS.

The consumer's side of the command contract: each command is executed at most once. One is refused
when it is no action, when its time has passed, or when it belongs to an earlier episode; of two
that come between two steps the newer one counts, and the loss of the older one is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionSpace
from vla_ros.core.clock import MS
from vla_ros.core.types import ACTION_DIM, GRIPPER, Command, CommandKind, Floats
from vla_ros.sim.env import EnvSpec

OPEN = 1.0  # a gripper's number in a command


@dataclass(frozen=True, slots=True)
class CommandCounts:
    """Counts of an episode's commands and steps, as EpisodeStatus.msg explains them."""

    applied: int = 0
    idle: int = 0
    rejected: int = 0
    superseded: int = 0  # real time: replaced by a newer command before a step executed it
    late: int = 0
    resends: int = 0


def environment_action(command: Command | None, gripper: float, spec: EnvSpec) -> Floats:
    """Action of an environment of end-effector deltas: float64 [7] in [-1, 1].

    Only a command that moves does so; without one the arm stands still and the gripper stays as it
    was commanded last, ``gripper`` (0 closed to 1 open).
    """
    action = np.zeros(ACTION_DIM)
    if command is not None and command.kind.moves:
        action[:3] = command.action[:3] / spec.position_scale
        action[3:6] = command.action[3:6] / spec.rotation_scale
        gripper = opening_of(command, GRIPPER, gripper)
    action[GRIPPER] = 1.0 - 2.0 * gripper
    return np.clip(action, -1.0, 1.0)


def opening_of(command: Command, index: int, before: float) -> float:
    """Opening of a gripper by a command; NaN leaves it as it was ``before``."""
    opening = float(command.action[index])
    return before if np.isnan(opening) else opening


class CommandInbox:
    """Commands between their arrival and the step that executes them.

    Not thread-safe: the episode's lock guards it. Rejections and losses are counted in
    ``counters`` while an episode runs; outside of one everything is ignored.
    """

    def __init__(self, space: ActionSpace = END_EFFECTOR_DELTA) -> None:
        self._space = space
        self.counters = CommandCounts()
        self.last_rejection = ""
        self._running = False
        self._start_ns = 0
        self._awaited_ns: int | None = None  # lock-step: the frame whose answer is missing
        self._lockstep = False
        self._pending: Command | None = None
        self._last = (0, -1)  # publication stamp and sequence of the newest command seen

    def begin(self, start_ns: int, lockstep: bool) -> None:
        """Begin an episode whose first observation is stamped ``start_ns``."""
        self.counters = CommandCounts()
        self.last_rejection = ""
        self._running, self._start_ns, self._lockstep = True, start_ns, lockstep
        self._awaited_ns = self._pending = None

    def end(self) -> None:
        """End the episode: no further command counts."""
        self._running = False
        self._awaited_ns = self._pending = None

    def await_answer(self, stamp_ns: int) -> None:
        """Lock-step: take only the answer to the frame of that stamp from now on."""
        self._awaited_ns, self._pending = stamp_ns, None

    @property
    def answered(self) -> bool:
        """True while a command waits to be taken."""
        return self._pending is not None

    def count(self, **changes: int) -> None:
        """Add to counters: ``count(late=1)``."""
        added = {name: getattr(self.counters, name) + more for name, more in changes.items()}
        self.counters = replace(self.counters, **added)

    def offer(self, command: Command, now_ns: int) -> str:
        """Take in a command that arrived at ``now_ns``; returns the reason of a rejection, or
        ''."""
        if not self._running:
            return ""
        reason = self._fault(command, now_ns)
        if reason:
            return self._reject(command, reason)
        self._last = (command.published_ns, command.sequence)
        waiting = self._pending
        moving = waiting is not None and waiting.kind.moves
        if moving and command.kind is CommandKind.HELD:
            return ""  # "nothing new": what waits is still to be executed
        if moving:
            self.count(superseded=1)
        self._pending = command
        self._awaited_ns = None
        return ""

    def take(self, now_ns: int) -> Command | None:
        """The command to execute now, if there is one that is still valid."""
        command, self._pending = self._pending, None
        if command is not None and (reason := _expired(command, now_ns)):
            self._reject(command, reason)
            return None
        return command

    def _fault(self, command: Command, now_ns: int) -> str:
        if command.action.shape != (self._space.width,):
            return f"its action has shape {command.action.shape}, expected ({self._space.width},)"
        grippers = np.isin(np.arange(self._space.width), self._space.grippers)
        if not (np.isfinite(command.action) | (np.isnan(command.action) & grippers)).all():
            return "its action is not finite"
        if self._origin(command) < self._start_ns:
            return "it belongs to an earlier episode"
        if self._lockstep and command.latest_ns != self._awaited_ns:
            return "it does not answer the frame that was shown last, or not first"
        if (command.published_ns, command.sequence) == self._last:
            return "it came before"
        if command.published_ns < self._last[0] and not self._lockstep:
            return "a newer one came before it"
        return _expired(command, now_ns)

    @staticmethod
    def _origin(command: Command) -> int:
        """Stamp that decides which episode a command belongs to."""
        return command.stamp_ns or command.latest_ns or command.published_ns

    def _reject(self, command: Command, reason: str) -> str:
        if not command.kind.moves:
            return ""  # it would not have moved anything
        self.count(rejected=1)
        self.last_rejection = reason
        return reason


def _expired(command: Command, now_ns: int) -> str:
    late = now_ns - command.valid_until_ns
    if command.valid_until_ns and late > 0:
        return f"it expired {late / MS:.0f} ms ago"
    return ""
