"""The types of vla_ros: what passes between its parts.

Everything here is frozen and typed; nothing here imports ROS, torch or a simulator.

Units and stamps used everywhere:

* a *stamp* is an integer count of nanoseconds of the ROS clock (wall or simulated time);
* a *steady* time is an integer count of nanoseconds of the monotonic clock, which all
  processes of one machine share; durations come from it and never from stamps;
* images are uint8 [height, width, 3], RGB, C-contiguous;
* an action is float64 [D], of an :class:`~vla_ros.core.action_space.ActionSpace`. The default has
  7 numbers: dx, dy, dz in metres, a rotation as axis-angle rx, ry, rz in radians, and the gripper
  from 0 (closed) to 1 (open). It is a *delta* of the end effector pose, to be executed once, over
  one action period.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

import numpy as np
import numpy.typing as npt

from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionSpace
from vla_ros.core.assumption import Assumption

ACTION_DIM = 7  # of the default action space, which models and simulations here are made for
GRIPPER = 6  # index of the gripper in such an action

Image = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]

#: The stages between capture and publication, in order. They abut: each begins where the
#: one before it ended, so their durations sum to the latency of the command.
STAGES = ("transport", "queue", "preprocess", "vision", "prefill", "decode", "gate")
INFERENCE_STAGES = STAGES[2:6]  # the model's part


@dataclass(frozen=True, slots=True)
class Instruction:
    """A task in words.

    ``epoch`` counts changes of the task. Whatever was computed for an older epoch is void.
    """

    text: str
    epoch: int

    @property
    def digest(self) -> int:
        """64-bit hash of the text (first 8 bytes of SHA-256), as carried by every command."""
        return int.from_bytes(hashlib.sha256(self.text.encode()).digest()[:8], "big")


@dataclass(frozen=True, slots=True)
class Pose:
    """A rigid pose: position [3] in metres, quaternion [4] as x, y, z, w."""

    position: tuple[float, float, float]
    quaternion: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Executing:
    """The chunk that the robot executes while another is computed.

    ``stamp_ns`` is its observation's, ``index`` its action at the moment of the new observation:
    the row of the new chunk's first action. ``delay_steps``: how many rows from there on will have
    been executed when the new chunk is there, by recent delays. ``guided``: how many rows behind
    those guide the new chunk too; 0: all that are left.
    """

    stamp_ns: int
    index: int
    delay_steps: int
    guided: int = 0


@dataclass(frozen=True, slots=True)
class Uncorrected:
    """Actions of a chunk that a newer observation is to correct.

    ``stamp_ns`` is the chunk's observation's; ``actions``, float64 [n, D], are those from ``index``
    on.
    """

    stamp_ns: int
    index: int
    actions: Floats


@dataclass(frozen=True, slots=True)
class Observation:
    """Images and state of one instant, by which a policy decides.

    ``stamp_ns`` is the capture stamp of the *oldest* camera used; every age is counted from
    it, and no two observations have the same. ``more_images`` are those of further cameras by
    their roles. ``proprio`` is the robot's own state at the main image's stamp, in the layout that
    was asked for (:mod:`vla_ros.runtime.control.observation`), ``poses`` the simulator's privileged
    ground truth, which only the scripted policy reads. ``executing`` is the chunk under way, for
    policies that continue it; None: the robot stands still, or was held to something else than its
    chunk. ``delay_steps``: how many action periods after this frame its action will be executed,
    by recent delays, for policies that take it into account (``PolicyInfo.max_delay``).
    ``uncorrected``: the actions that a corrector is asked about.
    """

    stamp_ns: int
    received_ns: int
    received_steady_ns: int
    image: Image
    wrist_image: Image | None = None
    proprio: Floats | None = None
    poses: Mapping[str, Pose] = field(default_factory=dict)
    more_images: Mapping[str, Image] = field(default_factory=dict)
    executing: Executing | None = None
    delay_steps: int = 0
    uncorrected: Uncorrected | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Steady-time marks of one request: where it began and when each stage ended."""

    start_ns: int
    marks: tuple[tuple[str, int], ...] = ()

    def mark(self, stage: str, steady_ns: int) -> Timeline:
        """Return a timeline in which ``stage`` ended at ``steady_ns``."""
        return Timeline(self.start_ns, (*self.marks, (stage, steady_ns)))

    @property
    def end_ns(self) -> int:
        return self.marks[-1][1] if self.marks else self.start_ns

    def durations_ms(self) -> dict[str, float]:
        """Duration of every stage in milliseconds; a stage marked twice counts once, summed."""
        out: dict[str, float] = {}
        previous = self.start_ns
        for stage, end in self.marks:
            out[stage] = out.get(stage, 0.0) + (end - previous) / 1e6
            previous = end
        return out


@dataclass(frozen=True, slots=True)
class Inference:
    """A policy's answer to one observation.

    ``actions`` is float64 [C, D] of the policy's action space, C = 1 for single-step policies.
    ``stamp_ns`` names the observation it belongs to: for a pipelined decoding that is an
    older one than the observation just given. ``tokens`` are the action tokens in the
    target's vocabulary (empty for policies without a model), ``accepted`` the number of
    draft tokens accepted out of ``drafted``, per action dimension. ``continues`` is the chunk
    that this one was made to continue or to correct, None where it was made by itself.
    ``conditioning_delay``: its first action was made for so many action periods after the
    observation (0: the policy is not conditioned on its delay).
    ``captures``: CUDA graphs that were captured in service so far, each while the robot waited.
    """

    stamp_ns: int
    actions: Floats
    timeline: Timeline
    tokens: tuple[int, ...] = ()
    target_passes: int = 0
    draft_passes: int = 0
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    continues: Executing | None = None
    conditioning_delay: int = 0
    captures: int = 0


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """Description of a loaded policy.

    ``conventions``: how its outputs and inputs are read, for the log; ``contradiction``: where
    parameters and checkpoint disagree. One line each, or "". ``assumptions``: what it takes for
    granted, each with its source. ``moves_grippers``: whether its actions command the grippers;
    False: their numbers for grippers mean nothing.
    ``image_sizes``: height and width that it
    wants of the main image, the wrist's and those of ``camera_roles``, one behind the other, 0 for
    a camera that it does not look at; empty: of any size.
    """

    name: str
    decoding: str = "none"
    checkpoint: str = ""
    checkpoint_sha256: str = ""
    device: str = "cpu"
    dtype: str = "none"
    pipeline_depth: int = 1  # calls of step() from an observation to its action
    chunk_length: int = 1  # actions an inference returns
    max_tokens: int = 0
    cameras: int = 1  # 2: it needs the wrist image too
    conventions: str = ""
    contradiction: str = ""
    assumptions: tuple[Assumption, ...] = ()
    state_dim: int = 0  # values of robot state that an observation must have
    action_space: ActionSpace = END_EFFECTOR_DELTA  # what its actions are
    camera_roles: tuple[str, ...] = ()  # further cameras that it needs
    continues: tuple[str, ...] = ()  # executions of chunks that it takes part in: rtc, rtc_trained
    max_delay: int = 0  # action periods of delay that it was trained for; 0: none
    state_middle: tuple[float, ...] = ()  # of each value of the state in its data; empty: unknown
    corrects: int = 0  # actions that it corrects, from the one due with a newer frame on
    action_rate_hz: float = 0.0  # of the data that it learned from; 0: nothing says it
    moves_grippers: bool = True
    image_sizes: tuple[int, ...] = ()
    observations: int = 1  # that an answer looks at: the newest, and those of the periods before


class PolicyState(IntEnum):
    """States of the policy node; the values are those of PolicyStatus.msg."""

    UNCONFIGURED = 0
    INACTIVE = 1
    WAITING = 2
    RUNNING = 3
    HOLD = 4
    FAULT = 5
    TAKEOVER = 6


#: How the reason of a policy that is WAITING begins between two episodes of a simulation.
EPISODE_OVER = "the episode is over"
#: How it begins while a task is stopped by a person.
STOPPED = "stopped: "
#: A reason has it, first or behind another one, while no command of the policy reaches a robot.
SHADOW = "SHADOW: "


class CommandKind(IntEnum):
    """Reason for a command; the values are those of ActionCommand.msg."""

    POLICY = 0  # a new action of the policy
    HELD = 1  # nothing new came this period: no motion, the gripper as before
    STOP = 2  # the stale policy of WAITING, HOLD and FAULT, and the last word at shutdown
    TAKEOVER = 3  # a person's, who has taken over

    @property
    def moves(self) -> bool:
        """False of HELD and STOP, which move nothing."""
        return self in (CommandKind.POLICY, CommandKind.TAKEOVER)


class StaleAction(str, Enum):
    """The command when the observation is too old."""

    ZERO = "zero"  # zero deltas, then silence after `silence_after_s`
    HOLD = "hold"  # where the robot was measured; only for poses and joint positions
    SILENCE = "silence"  # nothing: the consumer times out by itself


@dataclass(frozen=True, slots=True)
class Plan:
    """A trajectory of joints or end effectors: seconds after its begin, positions, float64 [M], and
    velocities, float64 [M] per second, of each point, with cubics between them. Positions of end
    effectors are x y z in m and an axis-angle in rad.

    ``begin_ns``: a stamp of the ROS clock; ``at_once``: it begins when it is received, whatever the
    clocks show."""

    points: tuple[tuple[float, Floats, Floats], ...]
    begin_ns: int = 0
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """One command as it leaves the publish gate, before it becomes a message.

    ``stamp_ns``/``received_ns`` are those of the observation it rests on (0 when it rests
    on none), ``latest_ns`` the stamp of the newest observation taken in by then. ``action_phase``:
    the part of its action that commands before it have made, 0 to 1. ``staleness_ns``: how long
    after it was due the action of a policy was published. ``corrected_ns``: the stamp of
    the newer observation by which the action was corrected, 0 for none; ages are counted from
    ``stamp_ns`` all the same. A gripper that was neither commanded nor measured is NaN: it stays as
    it is.

    ``joint_positions``, where an output takes them: those for the end of the period, float64 [M],
    grippers left out. ``plan``, where an output takes trajectories: it replaces the one before it;
    None: that goes on.
    """

    kind: CommandKind
    action: Floats
    sequence: int
    epoch: int
    instruction_digest: int
    published_ns: int
    stamp_ns: int = 0
    received_ns: int = 0
    latest_ns: int = 0
    valid_until_ns: int = 0
    chunk_index: int = 0
    chunk_length: int = 1
    action_phase: float = 0.0
    staleness_ns: int = 0
    stages_ms: Mapping[str, float] = field(default_factory=dict)
    total_ms: float = 0.0
    joint_positions: Floats | None = None
    plan: Plan | None = None
    corrected_ns: int = 0
