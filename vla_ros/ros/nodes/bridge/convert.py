"""Between the simulation's nouns and messages. What comes in is validated first."""

from __future__ import annotations

import array
from math import isfinite

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import Point, Pose, Quaternion
from sensor_msgs.msg import Image, JointState

from vla_ros import core
from vla_ros.core import Command, CommandKind
from vla_ros.msg import ActionCommand, EpisodeStatus, NamedPoses
from vla_ros.nodes.common.convert import BadMessage, stamp_of, to_time
from vla_ros.nodes.common.diagnostics import status
from vla_ros.sim.env import WORLD, SimObservation
from vla_ros.sim.episode.state import EpisodeState, EpisodeView
from vla_ros.timing import SECOND


def command_of(message: ActionCommand) -> Command:
    """The command that a message carries; the simulation judges its numbers. Raises
    :class:`BadMessage`, also for a space that the simulation has not."""
    try:
        kind = CommandKind(message.kind)
    except ValueError:
        raise BadMessage(f"kind {message.kind} is none of ActionCommand.KIND_*") from None
    if message.action_space != ActionCommand.SPACE_END_EFFECTOR_DELTA:
        raise BadMessage(
            f"action_space {message.action_space}: the simulated arm takes end-effector deltas"
            f" only ({ActionCommand.SPACE_END_EFFECTOR_DELTA}): x y z rx ry rz gripper"
        )
    staleness = message.staleness_s * SECOND  # a finite number of seconds may overflow as ns
    return Command(
        kind=kind,
        action=np.array(message.action, np.float64),
        sequence=message.sequence,
        epoch=message.epoch,
        instruction_digest=message.instruction_hash,
        published_ns=stamp_of(message.header.stamp),
        stamp_ns=stamp_of(message.observation_stamp),
        received_ns=stamp_of(message.receive_stamp),
        latest_ns=stamp_of(message.latest_observation_stamp),
        valid_until_ns=stamp_of(message.valid_until),
        chunk_index=message.chunk_index,
        chunk_length=message.chunk_length,
        staleness_ns=round(staleness) if isfinite(staleness) else 0,
    )


def image_message(image: core.Image, stamp_ns: int, frame_id: str) -> Image:
    """An rgb8 message of a uint8 [height, width, 3]."""
    height, width, channels = image.shape
    out = Image(height=height, width=width, encoding="rgb8", step=width * channels)
    out.header.stamp = to_time(stamp_ns)
    out.header.frame_id = frame_id
    pixels = array.array("B")
    pixels.frombytes(image.tobytes())
    out.data = pixels  # rclpy takes an array of bytes as it is; anything else is 100 times slower
    return out


def joints_message(observation: SimObservation, stamp_ns: int) -> JointState:
    """Positions only, rad and m."""
    if len(observation.joint_names) != len(observation.joint_positions):
        raise ValueError("an observation has as many joint names as positions")
    out = JointState(name=list(observation.joint_names))
    out.header.stamp = to_time(stamp_ns)
    out.position = observation.joint_positions.tolist()
    return out


def poses_message(observation: SimObservation, stamp_ns: int) -> NamedPoses:
    """The ground truth in the world frame."""
    out = NamedPoses(names=list(observation.poses))
    out.header.stamp = to_time(stamp_ns)
    out.header.frame_id = WORLD
    out.poses = [pose_message(pose) for pose in observation.poses.values()]
    return out


def pose_message(pose: core.Pose) -> Pose:
    x, y, z = pose.position
    qx, qy, qz, qw = pose.quaternion
    return Pose(position=Point(x=x, y=y, z=z), orientation=Quaternion(x=qx, y=qy, z=qz, w=qw))


def episode_message(
    view: EpisodeView, environment: str, mode: str, control_rate_hz: float
) -> EpisodeStatus:
    """The message of an episode's state; the caller stamps it."""
    counters = view.counters
    return EpisodeStatus(
        state=int(view.state),
        reason=view.reason,
        environment=environment,
        mode=mode,
        task=view.request.task,
        instruction=view.instruction,
        episode=view.episode,
        initial_state=view.request.initial_state,
        seed=view.request.seed,
        step=view.step,
        max_steps=view.max_steps,
        control_rate_hz=control_rate_hz,
        achieved_rate_hz=view.achieved_rate_hz,
        actions_applied=counters.applied,
        idle_steps=counters.idle,
        # Displacement that was replaced before it was executed is lost like a rejected one.
        actions_rejected=counters.rejected,
        actions_superseded=counters.superseded,
        late_steps=counters.late,
        resends=counters.resends,
    )


def diagnostic_of(view: EpisodeView) -> DiagnosticStatus:
    """How the simulation is. Warns where it waits for something, or obeys too late."""
    counters = view.counters
    waits = view.state is EpisodeState.RESETTING and bool(view.reason)
    message = f"{view.state.name}: {view.reason}" if view.reason else view.state.name
    values = {
        "episode": view.episode,
        "task": view.request.task,
        "step": view.step,
        "rate": f"{view.achieved_rate_hz:.2f} Hz",
        "actions rejected": counters.rejected,
        "late steps": counters.late,
        "resends": counters.resends,
    }
    return status(int(waits or bool(counters.late)), "episode", message, values.items())
