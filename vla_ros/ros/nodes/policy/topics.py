"""Between the policy node's messages and nouns. What comes in is validated first."""

from __future__ import annotations

import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import JointState

from vla_ros import core
from vla_ros.action_space import ActionSpace
from vla_ros.control import ControlCounts
from vla_ros.control.queue import Answer
from vla_ros.core import (
    INFERENCE_STAGES,
    STAGES,
    Command,
    Instruction,
    PolicyInfo,
    PolicyState,
    Pose,
)
from vla_ros.executor.messages import Result
from vla_ros.msg import ActionChunk, ActionCommand, Latency, NamedPoses, PolicyStatus, Stages
from vla_ros.nodes.common.convert import BadMessage, quoted, set_times, to_time
from vla_ros.nodes.common.diagnostics import status
from vla_ros.safety import Limits, Safety
from vla_ros.timing import SECOND, Distribution

#: what /diagnostics tells of a status beside its state
_TOLD = (
    "policy", "schedule", "checkpoint", "device", "instruction", "worker_pid", "worker_restarts",
    "frames_received", "frames_dropped", "last_drop", "actions_published", "missed_deadlines",
    "actions_blocked", "last_block", "actions_clamped", "graphs_captured",
)  # fmt: skip

# ------------------------------------------------------------------------------ in


def joints_of(
    message: JointState, wanted: frozenset[str] = frozenset()
) -> tuple[tuple[str, ...], core.Floats]:
    """Names and positions, float64 [n], in the message's own order. Raises :class:`BadMessage`.

    With ``wanted`` names the message must name its joints, and only those must be finite.
    """
    names, positions = tuple(message.name), np.asarray(message.position, dtype=np.float64)
    most = 1024 if wanted else 64
    if positions.size > most:
        raise BadMessage(f"joint state has {positions.size} positions, at most {most}")
    if not wanted:
        if not np.isfinite(positions).all():
            raise BadMessage("joint state has positions that are not finite")
        return names, positions
    if len(names) != positions.size:
        raise BadMessage(f"joint state has {len(names)} names for {positions.size} positions")
    for name, position in zip(names, positions, strict=True):
        if name in wanted and not np.isfinite(position):
            raise BadMessage(f"the position of joint {quoted(name)} is not finite")
    return names, positions


def poses_of(message: NamedPoses) -> dict[str, Pose]:
    """Ground truth by name. Raises :class:`BadMessage`."""
    if len(message.names) != len(message.poses):
        raise BadMessage(f"{len(message.names)} names for {len(message.poses)} poses")
    poses = {
        name: Pose(
            (pose.position.x, pose.position.y, pose.position.z),
            (pose.orientation.x, pose.orientation.y, pose.orientation.z, pose.orientation.w),
        )
        for name, pose in zip(message.names, message.poses, strict=True)
    }
    for name, pose in poses.items():
        if not np.isfinite((*pose.position, *pose.quaternion)).all():
            raise BadMessage(f"the pose of {quoted(name)} is not finite")
    return poses


def pose_of(message: PoseStamped) -> Pose:
    """A pose with a quaternion of length 1. Raises :class:`BadMessage`."""
    p, q = message.pose.position, message.pose.orientation
    position, quaternion = (p.x, p.y, p.z), (q.x, q.y, q.z, q.w)
    length = float(np.linalg.norm(quaternion))
    if not np.isfinite((*position, length)).all() or abs(length - 1.0) > 1e-3:
        raise BadMessage("end effector pose is not finite, or its quaternion not of length 1")
    return Pose(position, quaternion)


def pose_action_of(message: PoseStamped) -> core.Floats:
    """A measured pose as an arm's numbers of an action, float64 [6]: x y z in m, axis-angle in
    rad. Raises :class:`BadMessage`."""
    p, q = message.pose.position, message.pose.orientation
    vector, w = np.array([q.x, q.y, q.z]), float(q.w)
    norm, sine = float(np.hypot(np.linalg.norm(vector), w)), float(np.linalg.norm(vector))
    out = np.array([p.x, p.y, p.z, 0.0, 0.0, 0.0])
    if not np.isfinite(out).all() or not np.isfinite(norm) or abs(norm - 1.0) > 1e-3:
        raise BadMessage("measured pose is not finite, or its quaternion not of length 1")
    if sine > 1e-9:
        # The shorter way round: q and -q are the same rotation.
        sign = 1.0 if w >= 0.0 else -1.0
        out[3:6] = sign * vector / sine * 2.0 * np.arctan2(sine, abs(w))
    return out


# ------------------------------------------------------------------------------ out


def _stages(command: Command) -> Stages:
    out = Stages()
    for stage in (*STAGES, "total"):
        spent_ms = command.total_ms if stage == "total" else command.stages_ms.get(stage, 0.0)
        setattr(out, f"{stage}_s", spent_ms / 1e3)
        setattr(out, stage, float(spent_ms))  # deprecated
    return out


def command_message(
    command: Command, info: PolicyInfo, space: ActionSpace, frame_id: str
) -> ActionCommand:
    """The message of a command that has passed the gate: finite numbers of ``space``, always."""
    out = ActionCommand()
    out.header.stamp = to_time(command.published_ns)
    out.header.frame_id = frame_id
    out.observation_stamp = to_time(command.stamp_ns)
    out.receive_stamp = to_time(command.received_ns)
    out.latest_observation_stamp = to_time(command.latest_ns)
    out.valid_until = to_time(command.valid_until_ns)
    out.sequence = command.sequence
    out.epoch = command.epoch
    out.kind = int(command.kind)
    out.chunk_index = command.chunk_index
    out.chunk_length = command.chunk_length
    out.staleness_s = command.staleness_ns / SECOND
    out.pipeline_depth = info.pipeline_depth
    out.schedule = info.schedule
    out.instruction_hash = command.instruction_digest
    if command.action.shape != (space.width,) or not np.isfinite(command.action).all():
        raise ValueError(f"command is not {space.width} finite numbers: {command.action}")
    out.action_space = int(space.kind)
    out.names, out.units = list(space.names), list(space.units)
    out.action = array.array("d", command.action.astype(np.float64).tobytes())
    out.stages = _stages(command)
    return out


def chunk_message(answer: Answer, result: Result, info: PolicyInfo, limits: Limits) -> ActionChunk:
    """Everything one inference returned; the caller stamps it."""
    inference = answer.inference
    out = ActionChunk()
    out.observation_stamp = to_time(inference.stamp_ns)
    out.receive_stamp = to_time(answer.received_ns)
    out.epoch = result.epoch
    out.schedule = info.schedule
    out.instruction_hash = result.instruction_digest
    out.length = len(inference.actions)
    out.period_s = limits.period_s
    if (before := inference.continues) is not None:
        out.previous_stamp = to_time(before.stamp_ns)
        out.previous_index, out.delay_steps = before.index, before.delay_steps
    out.told_delay = inference.told_delay
    out.action_space, out.width = int(limits.space.kind), inference.actions.shape[-1]
    out.names, out.units = list(limits.space.names), list(limits.space.units)
    out.actions = inference.actions.astype(np.float64).ravel().tolist()
    out.tokens = list(inference.tokens)
    out.target_passes = inference.target_passes
    out.draft_passes = inference.draft_passes
    out.drafted = list(inference.drafted)
    out.accepted = list(inference.accepted)
    spent_ms = inference.timeline.durations_ms()
    out.inference_s = sum(spent_ms.get(stage, 0.0) for stage in INFERENCE_STAGES) / 1e3
    return out


def latency_message(
    windows: dict[str, Distribution], last: Command | None, window_s: float
) -> Latency:
    """Stage latencies in ms over a window; ``windows`` is keyed by the message's field names
    without their unit."""
    out = Latency(window_s=window_s)
    if last is not None:
        out.last = _stages(last)
    for name, distribution in windows.items():
        set_times(out, name, distribution)
    return out


def idle_message(safety: Safety, values: Mapping[str, Any]) -> PolicyStatus:
    """The status of a node that is not configured, from its parameters; the caller stamps it."""
    out = PolicyStatus(state=int(safety.state), reason=safety.reason)
    out.policy, out.schedule, out.checkpoint = (
        values[name] for name in ("policy", "schedule", "checkpoint")
    )
    out.control_rate_hz, out.max_age_s = values["control_rate_hz"], values["max_age_s"]
    out.max_age_ms = out.max_age_s * 1e3  # deprecated
    return out


def status_message(
    safety: Safety,
    instruction: Instruction,
    info: PolicyInfo,
    counters: ControlCounts,
    limits: Limits,
) -> PolicyStatus:
    """The part of the status that follows from the loop's state; the caller stamps it."""
    out = PolicyStatus(state=int(safety.state), reason=safety.reason)
    out.policy, out.schedule = info.name, info.schedule
    out.checkpoint, out.checkpoint_sha256 = info.checkpoint, info.checkpoint_sha256
    out.device, out.dtype = info.device, info.dtype
    out.pipeline_depth, out.chunk_length = info.pipeline_depth, info.chunk_length
    out.instruction, out.epoch = instruction.text, instruction.epoch
    out.control_rate_hz, out.max_age_s = limits.control_rate_hz, limits.max_age_s
    out.max_age_ms = out.max_age_s * 1e3  # deprecated
    for name in ControlCounts.__slots__:
        setattr(out, name, getattr(counters, name))
    return out


def diagnostic_of(message: PolicyStatus, spare: str = "", captured: int = 0) -> DiagnosticStatus:
    """How the node is, in its own words. A robot in HOLD or FAULT does not do its task: error.
    ``spare``: how its spare worker is; "": none is wanted. ``captured``: CUDA graphs that were
    captured lately, while the robot waited for them."""
    state = PolicyState(message.state)
    bad = state in (PolicyState.HOLD, PolicyState.FAULT)
    idle = state in (PolicyState.UNCONFIGURED, PolicyState.WAITING)
    values = {name: getattr(message, name) for name in _TOLD}
    if spare:
        values["spare_worker"] = spare
    said = f"{state.name}: {message.reason}" if message.reason else state.name
    if captured:
        said += f"; {captured} CUDA graphs captured in service, each while the robot waited"
    return status(2 if bad else int(idle or captured > 0), "state", said, values.items())
