"""Messages as the page's frozen views. What is malformed raises BadMessage or ValueError."""

from __future__ import annotations

import numpy as np
from rcl_interfaces.msg import Log, ParameterType, ParameterValue
from sensor_msgs.msg import JointState

from vla_ros.core import Floats
from vla_ros.msg import ActionCommand, EpisodeStatus, NamedPoses
from vla_ros.nodes.monitor.convert import command_seen
from vla_ros.view.page import LogLine, World
from vla_ros.view.robot import place_of
from vla_ros.view.strips import CommandShown

_STATES = {
    EpisodeStatus.STATE_RESETTING: "resetting",
    EpisodeStatus.STATE_RUNNING: "running",
    EpisodeStatus.STATE_SUCCESS: "success",
    EpisodeStatus.STATE_FAILURE: "failure",
}


def command_shown(message: ActionCommand) -> CommandShown:
    """Of any action space."""
    return CommandShown(
        seen=command_seen(message),
        action=tuple(message.action),
        names=tuple(message.names),
        units=tuple(message.units),
    )


def step_of(message: ActionCommand) -> Floats | None:
    """Float64 [3], the displacement of the end effector that it asks for; None: it asks for
    another thing."""
    if message.action_space != ActionCommand.SPACE_END_EFFECTOR_DELTA or len(message.action) < 3:
        return None
    step = np.array(message.action[:3], np.float64)
    return step if np.isfinite(step).all() else None


def world_of(message: EpisodeStatus) -> World:
    """What a simulation says of its episode."""
    return World(
        environment=message.environment,
        task=message.task,
        number=message.episode,
        step=message.step,
        max_steps=message.max_steps,
        state=_STATES.get(message.state, "unknown"),
    )


def joints_of(message: JointState) -> dict[str, float]:
    """Positions by name; those of a message with too few of them are left out."""
    return dict(zip(message.name, map(float, message.position), strict=False))


def poses_of(message: NamedPoses) -> dict[str, Floats]:
    """Float64 [4, 4] by name."""
    found = {}
    for name, pose in zip(message.names, message.poses, strict=False):
        p, q = pose.position, pose.orientation
        found[name] = place_of((p.x, p.y, p.z), (q.x, q.y, q.z, q.w))
    return found


def line_of(message: Log) -> LogLine:
    """One line of a node's log."""
    return LogLine(message.name, int(message.level), message.msg)


def numbers_of(value: ParameterValue) -> tuple[float, ...]:
    """Of a parameter that is a list of numbers; () for another."""
    if value.type != ParameterType.PARAMETER_DOUBLE_ARRAY:
        return ()
    return tuple(map(float, value.double_array_value))
