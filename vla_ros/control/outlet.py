"""What the control loop tells the world: its decisions as they fall, and its counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from vla_ros.core import Command, Instruction, Observation
from vla_ros.safety import Safety


class ControlOutlet(Protocol):
    """Where the loop's decisions go. Every call is made with the loop's lock held."""

    def submit(self, observation: Observation, instruction: Instruction) -> None:
        """Hand a frame to the worker; must not block."""

    def publish(self, command: Command) -> None:
        """Publish a command that has passed the gate."""

    def changed(self, before: Safety, after: Safety) -> None:
        """The state, its reason or the task is another one."""

    def warn(self, kind: str, text: str) -> None:
        """Something was dropped, clamped or blocked; ``kind`` is for throttling."""


@dataclass(slots=True)
class ControlCounts:
    """Counts since configuration, as PolicyStatus.msg reports them."""

    frames_received: int = 0
    frames_dropped: int = 0
    last_drop: str = ""
    actions_published: int = 0
    held_published: int = 0
    stops_published: int = 0
    missed_deadlines: int = 0
    actions_blocked: int = 0
    last_block: str = ""
    actions_clamped: int = 0

    def blocked(self, reason: str) -> None:
        """One action more that the gate stopped."""
        self.actions_blocked += 1
        self.last_block = reason
