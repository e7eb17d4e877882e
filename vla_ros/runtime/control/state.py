"""The state of one control loop, which its publish gate and its driver share.

Plain values and the trackers that more than one of the three reads. All of it is guarded by the
loop's one lock (:class:`vla_ros.runtime.control.control.Control` holds it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from vla_ros.core.clock import Moment
from vla_ros.core.types import (
    Command,
    Floats,
    Instruction,
    Observation,
    PolicyInfo,
    PolicyState,
)
from vla_ros.runtime.control.goals import GoalTracker, PersistentState
from vla_ros.runtime.control.joints import MeasuredState
from vla_ros.runtime.safety import Limits, Safety


class ControlSink(Protocol):
    """Receiver of the loop's decisions. Every call is made with the loop's lock held."""

    def submit(self, observation: Observation, instruction: Instruction) -> None:
        """Hand a frame to the worker; must not block."""

    def publish(self, command: Command) -> None:
        """Publish a command that has passed the gate."""

    def rest(self, command: Command) -> None:
        """A period without a command: bring the outputs to rest by this one, which has no
        number."""

    def changed(self, before: Safety, after: Safety) -> None:
        """Another state, reason or task."""

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
    takeover_published: int = 0
    missed_deadlines: int = 0
    actions_blocked: int = 0
    last_block: str = ""
    actions_clamped: int = 0

    def blocked(self, reason: str) -> None:
        """One action more that the gate stopped."""
        self.actions_blocked += 1
        self.last_block = reason


@dataclass(frozen=True, slots=True)
class JointOutputs:
    """Needs of the outputs beside the action: ``positions`` of the joints, and ``plans`` of them
    that begin ``lead_s`` after their publication.

    A displacement of joints is added to the position ``commanded`` last, as of demonstrations
    whose actions are the difference of two commands (ManiSkill's ``pd_joint_target_delta_pos``,
    robosuite's ``goal_update_mode: desired``); else to where the joints are measured to be, as of
    those whose actions are the next command minus the measured joints (``pd_joint_delta_pos``,
    ``achieved``): a servo that is behind makes less of its way. Actions relative to the state that
    a chunk was asked for (openpi, LeRobot) are neither: what reads such a checkpoint makes joint
    positions of them.

    ``wrapped``: joints that turn without end are commanded from -pi to pi; else they are counted
    on.
    """

    positions: bool = False
    plans: bool = False
    commanded: bool = False
    lead_s: float = 0.0
    wrapped: bool = False


@dataclass(slots=True)
class WorkerState:
    """The worker, for the loop. ``missing``: why there is none, "" where there is one.
    ``ended_running``: its loss is what ended RUNNING."""

    missing: str = ""
    ended_running: bool = False


@dataclass(slots=True)
class LoopState:
    """The state of one loop. The limits and the outputs may be replaced while it runs.

    ``inference_s``: L, as it was measured last. ``persistent`` outlives this loop. ``safety`` is
    changed by :meth:`become` alone, which calls ``faulted`` with the reason of a FAULT. ``goals``
    and ``instruction`` are the task, since ``epoch_began_ns`` (steady time).
    ``measured`` is the robot's measured state, and ``latest`` the newest frame that was taken in.
    ``outputs``: their needs beside the action. ``turning``: the indices in an action of joints that
    turn without end. ``shadow``: somebody else moves the robot, and no command of this loop does.
    """

    limits: Limits
    info: PolicyInfo
    sink: ControlSink
    sim_time: bool
    inference_s: float
    persistent: PersistentState
    faulted: Callable[[str], None]
    goals: GoalTracker
    measured: MeasuredState
    instruction: Instruction
    safety: Safety
    epoch_began_ns: int
    counters: ControlCounts = field(default_factory=ControlCounts)
    outputs: JointOutputs = JointOutputs()
    turning: frozenset[int] = frozenset()
    shadow: bool = False
    latest: Observation | None = None
    instructed: bool = False  # an instruction, a stop or a goal has come
    resting: bool = False  # between two episodes: nothing is asked for

    def become(self, new: Safety) -> None:
        """Take on ``new``; the sink is called with another state or reason, and FAULT ends a
        goal."""
        old, self.safety = self.safety, new
        if (old.state, old.said) != (new.state, new.said):
            self.sink.changed(old, new)
        if new.state is PolicyState.FAULT:
            self.faulted(new.reason)

    def fresh_pose(self, now: Moment) -> Floats | None:
        """The measured state, None where it was measured longer than ``max_age_s`` ago."""
        return self.measured.at(now, self.limits.max_age_ns)
