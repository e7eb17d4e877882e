"""Assumptions of the policy node about its robot, each with where it comes from.

With those that the policy names itself they are the table at configure and ~/description.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from vla_ros.core.action_space import ActionSpace
from vla_ros.core.assumption import Assumption
from vla_ros.core.types import PolicyInfo
from vla_ros.msg import Assumption as AssumptionMessage
from vla_ros.msg import PolicyDescription
from vla_ros.ros.nodes.policy.needs import FrameStreams
from vla_ros.ros.nodes.policy.outputs import outputs_of
from vla_ros.ros.nodes.policy.parameters import TABLE
from vla_ros.ros.nodes.policy.rates import SettledRate
from vla_ros.runtime.safety import Limits

DEFAULTS: Mapping[str, Any] = {row.name: row.default for row in TABLE}
Writers = Callable[[str], list[str]]  # a topic -> full names of the nodes that publish it
Resolve = Callable[[str], str]  # a topic's name -> its full one, remappings applied


def of_policy(info: PolicyInfo) -> list[Assumption]:
    """The policy's own assumptions; of one that names none, the line that it gives."""
    if info.assumptions or not info.conventions:
        return list(info.assumptions)
    return [Assumption("the checkpoint is read so", info.conventions, "the policy")]


def of_robot(
    values: Mapping[str, Any],
    info: PolicyInfo,
    limits: Limits,
    rate: SettledRate,
    streams: FrameStreams,
    resolve: Resolve,
    writers: Writers,
) -> list[Assumption]:
    """Assumptions about the robot and its topics, for the policy of ``info``."""
    return [
        *_commands(values, limits.space),
        _action_rate(values, info, rate),
        _said(values, f"{limits.control_rate_hz:g} Hz", "command rate", "control_rate_hz"),
        *_chunks(values, info),
        _said(values, f"{limits.max_age_s:g} s", "oldest observation", "max_age_s"),
        *_limits(values, limits),
        *_cameras(values, streams, resolve, writers),
        *_state(values, info, streams, resolve, writers),
    ]


def _said(values: Mapping[str, Any], value: str, what: str, parameter: str) -> Assumption:
    """An assumption that a parameter makes; one that is as its default is said by nobody."""
    if parameter in DEFAULTS and values[parameter] == DEFAULTS[parameter]:
        return Assumption.taken(what, value)
    return Assumption(what, value, f"parameter {parameter}")


def _commands(values: Mapping[str, Any], space: ActionSpace) -> Iterator[Assumption]:
    numbers = ", ".join(f"{n} [{u}]" for n, u in zip(space.names, space.units, strict=True))
    kind = f"{space.kind.name.lower()}: {numbers}"
    yield _said(values, kind, "commands", "action_space")
    outputs = outputs_of(values)
    yield _said(values, ", ".join(outputs) or "~/action alone", "outputs", "outputs")
    if not space.kind.joints:
        yield _said(values, values["frame_id"], "frame of commands", "frame_id")
        return
    names = ", ".join(space.names[index] for index in space.grippers)
    yield _said(values, names or "none of the joints", "grippers", "gripper_names")
    if names and outputs:
        ends = ", ".join(f"{end:g}" for end in values["gripper_range"])
        yield _said(values, f"closed, open: {ends}", "a gripper's controller", "gripper_range")


def _action_rate(values: Mapping[str, Any], info: PolicyInfo, rate: SettledRate) -> Assumption:
    value = f"{rate.hz:g} Hz"
    if values["action_rate_hz"]:
        return Assumption("action rate", value, "parameter action_rate_hz")
    if info.action_rate_hz:
        return Assumption("action rate", value, "the policy's data")
    return Assumption.taken("action rate", f"{value}, as control_rate_hz")


def _chunks(values: Mapping[str, Any], info: PolicyInfo) -> Iterator[Assumption]:
    if info.chunk_length > 1:
        chunk = f"{values['execution']}, of {info.chunk_length} actions an answer"
        yield _said(values, chunk, "execution of chunks", "execution")


def _limits(values: Mapping[str, Any], limits: Limits) -> Iterator[Assumption]:
    if limits.velocity:
        speeds = ", ".join(f"{speed:g}" for speed in limits.velocity)
        yield Assumption("largest speeds", f"{speeds} a second", "parameter velocity_limits")
    ends = zip(limits.low, limits.high, strict=True)
    bounds = ", ".join(f"{low:g} to {high:g}" for low, high in ends)
    yield _said(values, bounds, "bounds of an action", "bounds_high")


def _cameras(
    values: Mapping[str, Any], streams: FrameStreams, resolve: Resolve, writers: Writers
) -> Iterator[Assumption]:
    cameras = {"main": streams.main, "wrist": streams.wrist, **streams.more}
    for role, camera in cameras.items():
        if camera is not None:
            topic = camera.topic + ("/compressed" if camera.transport == "compressed" else "")
            yield _topic(f"camera {role}", topic, f"cameras.{role}.topic", values, resolve, writers)
    yield Assumption("colors of images", "RGB, whatever the driver sends", "each image's encoding")


def _state(
    values: Mapping[str, Any],
    info: PolicyInfo,
    streams: FrameStreams,
    resolve: Resolve,
    writers: Writers,
) -> Iterator[Assumption]:
    if not streams.joints:
        return
    if info.state_dim:
        what = "the robot's state"
        layout = f"{info.state_dim} values, {values['state_layout']}"
        yield _said(values, layout, what, "state_layout")
    names = ", ".join(streams.joint_names) or "as each message has them"
    yield _said(values, names, "order of joints", "joint_names")
    yield _topic("joint states", "joint_states", "", values, resolve, writers)
    if streams.end_effector:
        frame = f"{streams.end_effector} in {values['frame_id']}, from tf2"
        yield Assumption("end effector's pose", frame, "parameter end_effector_frame")
    elif streams.end_effector is not None:
        yield _topic("end effector's pose", "end_effector_pose", "", values, resolve, writers)


def _topic(
    what: str,
    topic: str,
    parameter: str,
    values: Mapping[str, Any],
    resolve: Resolve,
    writers: Writers,
) -> Assumption:
    """A topic, and who publishes it by now."""
    full = resolve(topic)
    by = ", ".join(sorted(set(writers(full)))) or "nobody yet"
    value = f"{full}, published by {by}"
    if not full.endswith(f"/{topic.lstrip('/')}"):
        return Assumption(what, value, "a remapping")
    return _said(values, value, what, parameter) if parameter else Assumption.taken(what, value)


def message_of(info: PolicyInfo, assumptions: Iterable[Assumption]) -> PolicyDescription:
    """The message of a description; the caller stamps it."""
    rows = [
        AssumptionMessage(what=a.what, value=a.value, source=a.source, is_default=a.default)
        for a in assumptions
    ]
    return PolicyDescription(policy=info.name, checkpoint=info.checkpoint, assumptions=rows)
