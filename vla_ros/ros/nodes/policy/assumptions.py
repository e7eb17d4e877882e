"""Assumptions of the policy node about its robot, each with where it comes from.

With those that the policy names itself they are the table at configure and ~/description.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from vla_ros.core.action_space import ActionSpace
from vla_ros.core.adaptation import adaptation_of
from vla_ros.core.assumption import Assumption
from vla_ros.core.types import PolicyInfo
from vla_ros.engine.io import lock
from vla_ros.msg import Assumption as AssumptionMessage
from vla_ros.msg import PolicyDescription
from vla_ros.ros.nodes.policy.needs import FrameStreams
from vla_ros.ros.nodes.policy.outputs import outputs_of
from vla_ros.ros.nodes.policy.parameters import TABLE, roles_of
from vla_ros.ros.nodes.policy.rates import SettledRate
from vla_ros.ros.nodes.policy.shadow import compared_with
from vla_ros.runtime.safety import Limits

DEFAULTS: Mapping[str, Any] = {row.name: row.default for row in TABLE}
Writers = Callable[[str], list[str]]  # a topic -> full names of the nodes that publish it
Resolve = Callable[..., str]  # rclpy's Node.resolve_topic_name


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
    outputs: Sequence[str],
) -> list[Assumption]:
    """Assumptions about the robot and its topics, for the policy of ``info``. ``outputs``: topics
    of commands beside ~/action, in full."""
    return [
        *_checkpoint(values),
        *_commands(values, limits.space, outputs),
        _action_rate(values, info, rate),
        _said(values, f"{limits.control_rate_hz:g} Hz", "command rate", "control_rate_hz"),
        *_chunks(values, info),
        _said(values, f"{limits.max_age_s:g} s", "oldest observation", "max_age_s"),
        _said(values, limits.stale_action.value, "when it is older", "stale_action"),
        *_limits(values, limits),
        *_cameras(values, streams, resolve, writers),
        *_state(values, info, streams, resolve, writers),
        *_adapted(values),
    ]


def _said(values: Mapping[str, Any], value: str, what: str, *parameters: str) -> Assumption:
    """An assumption that parameters make; one that is as its defaults is said by nobody."""
    given = [name for name in parameters if values[name] != DEFAULTS.get(name)]
    if not given:
        return Assumption.taken(what, value)
    return Assumption(what, value, f"parameter{'s' * (len(given) > 1)} {' and '.join(given)}")


def _checkpoint(values: Mapping[str, Any]) -> Iterator[Assumption]:
    """The commit that a hub id without one is held to, and by which file."""
    name = str(values["checkpoint"]).partition("#")[0]
    if not Path(name).expanduser().exists() and (held := lock.find(name)) is not None:
        yield Assumption("checkpoint", f"{name} at {held.commit}", str(held.source))


def _commands(
    values: Mapping[str, Any], space: ActionSpace, topics: Sequence[str]
) -> Iterator[Assumption]:
    numbers = ", ".join(f"{n} [{u}]" for n, u in zip(space.names, space.units, strict=True))
    kind = f"{space.kind.name.lower()}: {numbers}"
    yield _said(values, kind, "commands", "action_space")
    outputs = outputs_of(values)
    if values["shadow"]:
        yield from _shadow(values, space)
    else:
        where = f" on {', '.join(topics)}" if topics else ""
        yield _said(values, ", ".join(outputs) + where or "~/action alone", "outputs", "outputs")
    if not space.kind.joints:
        yield _said(values, values["frame_id"], "frame of commands", "frame_id")
        return
    names = ", ".join(space.names[index] for index in space.grippers)
    yield _said(values, names or "none of the joints", "grippers", "gripper_names")
    if names and outputs:
        ends = ", ".join(f"{end:g}" for end in values["gripper_range"])
        yield _said(values, f"closed, open: {ends}", "a gripper's controller", "gripper_range")


def _shadow(values: Mapping[str, Any], space: ActionSpace) -> Iterator[Assumption]:
    alone = "SHADOW: ~/shadow/action alone; nothing of ours moves the robot"
    yield Assumption("where commands go", alone, "parameter shadow")
    compared = compared_with(values, space) or "nothing: name the topic of the person's commands"
    yield _said(values, compared, "compared with", "shadow_topic")


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
    space = limits.space
    for what, most, a, parameter in (
        ("largest speeds", limits.velocity, "/s", "velocity_limits"),
        ("largest accelerations", limits.acceleration, "/s²", "acceleration_limits"),
    ):
        if most:
            value = _each(space, (f"{x:g}" for x in most), a)
            yield Assumption(what, value, f"parameter {parameter}")
    ends = zip(limits.low, limits.high, strict=True)
    bounds = _each(space, (f"{low:g} to {high:g}" for low, high in ends))
    yield _said(values, bounds, "bounds of an action", "bounds_low", "bounds_high")


def _each(space: ActionSpace, numbers: Iterable[str], a: str = "") -> str:
    """Numbers of the values that move, with their units and ``a`` (such as "/s"): once where all
    are the same, else neighbours that are the same by their names."""
    values = [f"{x} {space.units[i]}{a}" for i, x in zip(space.motion, numbers, strict=True)]
    if len(set(values)) == 1:
        return f"{values[0]} each"
    names = (space.names[i] for i in space.motion)
    runs = groupby(zip(values, names, strict=True), key=lambda pair: pair[0])
    return ", ".join(f"{' '.join(name for _, name in run)} {value}" for value, run in runs)


def _cameras(
    values: Mapping[str, Any], streams: FrameStreams, resolve: Resolve, writers: Writers
) -> Iterator[Assumption]:
    cameras = {"main": streams.main, "wrist": streams.wrist, **streams.more}
    for role, camera in cameras.items():
        if camera is not None:
            topic = camera.topic + ("/compressed" if camera.transport == "compressed" else "")
            yield _topic(f"camera {role}", topic, f"cameras.{role}.topic", values, resolve, writers)
    yield Assumption("colors of images", "RGB, whatever the driver sends", "each image's encoding")
    if any(values["image_resize"]):
        sizes = f"brought to {', '.join(values['image_resize'])} (height x width)"
        yield _said(values, sizes, "size of images", "image_resize")


def _adapted(values: Mapping[str, Any]) -> Iterator[Assumption]:
    """What images, state and actions are changed by on their way (vla_ros.core.adaptation)."""
    adaptation = adaptation_of(values, ("main", "wrist", *roles_of(values)))
    for name, value in adaptation.parameters().items():
        whose, _, field = name.partition("_")
        if name.startswith("cameras."):
            _, role, field = name.split(".")
            whose = f"camera {role}"
        yield Assumption(f"{whose}, {field}", f"{value}", f"parameter {name}")


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
        layout = f"{values['state_layout']}, {info.state_dim} values"
        yield _said(values, layout, "layout of the state", "state_layout")
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
    if full != resolve(topic, only_expand=True):
        return Assumption(what, value, "a remapping")
    return _said(values, value, what, parameter) if parameter else Assumption.taken(what, value)


def message_of(info: PolicyInfo, assumptions: Iterable[Assumption]) -> PolicyDescription:
    """The message of a description; the caller stamps it."""
    rows = [
        AssumptionMessage(what=a.what, value=a.value, source=a.source, is_default=a.default)
        for a in assumptions
    ]
    return PolicyDescription(policy=info.name, checkpoint=info.checkpoint, assumptions=rows)
