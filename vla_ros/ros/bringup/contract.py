"""Rosetta's contracts: a robot's description as parameters and remappings of the policy node, and a
robot's parameter file as a contract.

Rosetta (ros-physical-ai) brings LeRobot to ROS 2 robots; its contract names the topic of each of
LeRobot's features. Read here are cameras, joint states, joint commands, their rates and units, and
the task's topic. Sections that are only recorded (teleop, rewards, signals, info,
complementary_data, adjunct) are passed over; anything else that would change a policy's inputs or
commands is refused with its line. Code that a contract names is never imported.

`x-vla_ros`, which Rosetta ignores as all of `x-`, holds the parameters that it has no field for; it
names no program, no server and no path outside of the roots (:mod:`vla_ros.policies.trust`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import yaml

from vla_ros.core.errors import UserError
from vla_ros.core.pixels import MOST_SIDE, sizes_of
from vla_ros.core.resources import config_path
from vla_ros.core.video import VIDEOS
from vla_ros.core.yaml_files import compose_yaml
from vla_ros.policies.trust import Untrusted, refuse_named
from vla_ros.ros.bringup.graph_file import (
    GraphSpec,
    NodeSpec,
    flatten,
    mapping,
    of_type,
    read_yaml,
)
from vla_ros.ros.common.parameter_files import is_known, meant
from vla_ros.runtime.safety import MOST_CONTROL_HZ

OWN = "x-vla_ros"
RECORDED = ("teleop", "rewards", "signals", "info", "complementary_data", "adjunct")
_TOP = ("robot_type", "robot_interface", "fps", "observations", "actions", "tasks", *RECORDED)
_OLDER = ("rate_hz", "max_duration_s", "name", "version", "recording", "process")  # of 0.1
_CHANNEL = ("topic", "type", "qos", "dtype", "safety")
_IMAGES, _STATE = "observation.images.", "observation.state"
_RAW, _COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
#: message of a camera's channel -> its transport
_CAMERAS = {_RAW: "raw", _COMPRESSED: "compressed"} | {kind: name for name, kind in VIDEOS.items()}
_ROSETTAS_SIZE = 256, 256  # a contract must say one: of a robot's file that says none
_QOS = ("reliability", "history", "depth", "durability")
_STRATEGIES = ("hold", "asof", "drop")
_JOINTS = "sensor_msgs/msg/JointState"
#: message of an action's channel -> the output and its topic
_COMMANDS = {
    _JOINTS: ("joint_state", "~/joint_commands"),
    "trajectory_msgs/msg/JointTrajectory": ("trajectory", "~/joint_trajectory"),
    "std_msgs/msg/Float64MultiArray": ("joint_positions", "~/joint_positions"),
}
_AT_THE_HAND = ("wrist", "hand", "gripper")
_STALE = {"none": "silence", "hold": "hold"}


@dataclass(frozen=True, slots=True)
class Contract:
    """``parameters`` and ``remappings`` of the policy node; ``robot``: its type."""

    robot: str
    parameters: dict[str, Any]
    remappings: dict[str, str]

    def given_to(self, spec: GraphSpec, given: Mapping[str, Any]) -> GraphSpec:
        """Graph whose policy node follows the contract; parameters ``given`` for that node win."""
        mine = {name: value for name, value in self.parameters.items() if name not in given}
        nodes = tuple(
            replace(
                node,
                parameters={**node.parameters, **mine},
                remappings={**self.remappings, **node.remappings},
            )
            if node.executable == "policy"
            else node
            for node in spec.nodes
        )
        return replace(spec, nodes=nodes)


# A contract -> parameters and remappings. Content is plain YAML; a refusal looks up its line.

_Path = tuple[str | int, ...]  # keys and indices from the root of a contract


class _Refused(Exception):
    """A part of a contract that cannot be followed: its path, and why."""

    def __init__(self, at: _Path, why: str) -> None:
        super().__init__(why)
        self.at = at


def _line_of(path: Path, at: _Path) -> int:
    """Line of a part in its file: that of its key, or of an item of a list."""
    node = compose_yaml(path)
    line = node.start_mark.line if node is not None else 0
    for step in at:
        if isinstance(node, yaml.SequenceNode):
            node = node.value[int(step)]
            line = node.start_mark.line
            continue
        pairs = [pair for pair in getattr(node, "value", ()) if pair[0].value == str(step)]
        if not pairs:  # it lacks the key, or has it from a merge
            break
        key, node = pairs[-1]
        line = key.start_mark.line
    return int(line) + 1


def _fields(content: Any, at: _Path, what: str, known: Sequence[str] = ()) -> dict[str, Any]:
    """The content as a mapping; with ``known``: of no other names."""
    if not isinstance(content, dict):
        raise _Refused(at, f"{what} must be a mapping")
    for name in content:
        if known and name not in known:
            raise _Refused(
                (*at, name),
                f"{what} has {name!r}, which cannot be followed: {', '.join(known)} can",
            )
    return content


def _items(content: Any, at: _Path, what: str) -> list[Any]:
    if not isinstance(content, list):
        raise _Refused(at, f"{what} must be a list")
    return content


def read_contract(path: str | Path) -> Contract:
    """Contract of a file. UserError, one line with the position, for a file that is none or has
    what cannot be followed."""
    path = Path(path)
    content = read_yaml(path)
    try:
        return _contract(content)
    except _Refused as refused:
        line = _line_of(path, refused.at)
        raise UserError(f"{path}, line {line}: {refused}") from None


def _contract(top: dict[str, Any]) -> Contract:
    if "robot_interface" not in top and (older := [name for name in _OLDER if name in top]):
        raise _Refused(
            (older[0],),
            f"{older[0]!r} is of an older contract of Rosetta's: one of 0.2 has robot_interface:"
            " ros2, fps, and observations, actions and tasks by the keys of LeRobot's features",
        )
    if not set(top) & {"robot_type", "observations", "actions"}:
        first = next(iter(top), "nothing")
        has = ", ".join(_TOP[:5])
        raise _Refused((first,), f"this is no contract, which has {has}; launch takes a parameter"
                       " file as robot")  # fmt: skip
    for name in top:
        if name not in _TOP and not str(name).startswith("x-"):
            raise _Refused((name,), f"a contract has no {name!r}: {', '.join(_TOP)}")
    if lacks := [name for name in _TOP[:5] if name not in top]:
        raise _Refused((), f"a contract needs {', '.join(lacks)}")
    if top["robot_interface"] != "ros2":
        raise _Refused(("robot_interface",), "robot_interface must be ros2")
    fps = top["fps"]
    number = isinstance(fps, (int, float)) and not isinstance(fps, bool)
    if not number or not 1 <= fps <= MOST_CONTROL_HZ:
        most = f"1 to {MOST_CONTROL_HZ:g} times a second"
        raise _Refused(("fps",), f"fps is {fps!r}: actions are executed {most}")
    # Rosetta commands at the rate of its data; a robot's own rate stands in x-vla_ros.
    rates = dict.fromkeys(("action_rate_hz", "control_rate_hz", "camera_rate_hz"), float(fps))
    found = Contract(str(top["robot_type"]), rates, {})
    _read_observations(top["observations"], found)
    _read_actions(top["actions"], found)
    if "tasks" in top:
        _read_task(top["tasks"], found)
    if OWN in top:
        found.parameters.update(_own_parameters(top[OWN], found.parameters))
    return found


def _own_parameters(content: Any, said: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of the section that is ours, by the policy node's names and types. ``said``:
    those of the contract."""
    own = flatten(_fields(content or {}, (OWN,), OWN))
    known = NodeSpec("policy", "policy", (config_path("policy.yaml"),)).file_parameters()
    roles = own.get("camera_roles") or said.get("camera_roles") or ()
    for name, value in own.items():
        at = (OWN, *name.split("."))
        if not is_known(name, known, roles):
            raise _Refused(at, f"the policy node has no parameter {name!r}{meant(name, known)}")
        try:
            own[name] = of_type(known.get(name), value, name)
        except UserError as error:
            raise _Refused(at, str(error)) from error
    try:
        refuse_named(own, "a contract", {}, "by -p policy.NAME=VALUE")
    except Untrusted as error:
        raise _Refused((OWN, error.parameter), str(error)) from error
    return own


@dataclass(frozen=True, slots=True)
class _Source:
    """One stream of a key: its path, its channel's fields, ``select`` and ``apply``, in order."""

    key: str
    at: _Path
    channel: dict[str, Any]
    select: list[str]
    apply: list[tuple[str, Any]]

    @property
    def topic(self) -> str:
        return str(self.channel["topic"])

    @property
    def type(self) -> str:
        return str(self.channel["type"])

    def refuse(self, why: str, *part: str | int) -> NoReturn:
        raise _Refused((*self.at, *part), why)

    def joints(self) -> list[str]:
        """Names of "position.NAME"; anything else of a joint is refused."""
        if not self.select:
            self.refuse(f"{self.key} selects nothing: which joints, and in which order?")
        for index, one in enumerate(self.select):
            if not one.startswith("position."):
                why = f"{self.key} selects {one}: only positions of joints are read"
                self.refuse(why, "select", index)
        return [one.removeprefix("position.") for one in self.select]


def _sources(key: str, content: Any, at: _Path) -> list[_Source]:
    if not isinstance(content, list):
        return [_source(key, content, at)]
    return [_source(key, one, (*at, index)) for index, one in enumerate(content)]


def _source(key: str, content: Any, at: _Path) -> _Source:
    fields = _fields(content, at, key, ("channel", "align", "select", "apply", "kind"))
    if "channel" not in fields:
        raise _Refused(at, f"{key} has no channel")
    for code in ("decoder", "encoder"):
        if code in (fields["channel"] or {}):
            why = f"{code} names code, and none is imported"
            raise _Refused((*at, "channel", code), why)
    channel = _fields(fields["channel"], (*at, "channel"), f"the channel of {key}", _CHANNEL)
    for name in ("topic", "type"):
        if name not in channel:
            raise _Refused((*at, "channel"), f"the channel of {key} has no {name}")
    kind = fields.get("kind", "continuous")
    if kind != "continuous":
        raise _Refused((*at, "kind"), f"{key} is of kind {kind}: joints are continuous")
    select = _items(fields.get("select", []), (*at, "select"), f"select of {key}")
    apply = [
        (str(next(iter(one)) if isinstance(one, dict) else one), one)
        for one in _items(fields.get("apply", []), (*at, "apply"), f"apply of {key}")
    ]
    return _Source(key, at, channel, [str(one) for one in select], apply)


def _read_observations(content: Any, found: Contract) -> None:
    cameras: list[_Source] = []
    for key, value in _fields(content, ("observations",), "observations").items():
        at: _Path = ("observations", key)
        sources = _sources(key, value, at) if key.startswith((_IMAGES, _STATE)) else []
        if key.startswith(_IMAGES):
            cameras += sources
        elif key == _STATE:
            _read_state(sources, found)
        else:
            raise _Refused(at, f"{key} cannot be followed: policies here look at images and joints")
        for source, one in zip(sources, value if isinstance(value, list) else [value], strict=True):
            _check_timeline(source, one.get("align"), found)
    if not cameras:
        why = f"there is no {_IMAGES}NAME: a policy here looks through a camera"
        raise _Refused(("observations",), why)
    roles = _roles([camera.key.removeprefix(_IMAGES) for camera in cameras])
    if "wrist" not in roles.values():
        found.parameters["cameras.wrist.topic"] = ""
    for camera in cameras:
        _read_camera(camera, roles[camera.key.removeprefix(_IMAGES)], found)
    more = [role for role in roles.values() if role not in ("main", "wrist")]
    if more:
        found.parameters["camera_roles"] = more
    pairs = (f"{name}={role}" for name, role in roles.items())
    found.parameters["camera_map"] = " ".join(pairs)


def _check_timeline(source: _Source, align: Any, found: Contract) -> None:
    key, at = source.key, (*source.at, "align")
    if align is None:
        source.refuse(f"{key} has no align")
    fields = _fields(align, at, f"align of {key}", ("strategy", "timeline", "tolerance_ms"))
    if fields.get("strategy", "hold") not in _STRATEGIES:
        why = f"strategy {fields['strategy']} is none of {', '.join(_STRATEGIES)}"
        raise _Refused((*at, "strategy"), why)
    if fields.get("timeline") != "header":
        why = f"{key} is not aligned by its header: streams are joined by stamps here"
        raise _Refused((*at, "timeline"), why)
    if "tolerance_ms" in fields:
        slop = float(fields["tolerance_ms"]) / 1e3
        found.parameters["pairing_slop_s"] = max(slop, found.parameters.get("pairing_slop_s", 0.0))


def _roles(names: list[str]) -> dict[str, str]:
    """Camera -> role: the first at the hand is the wrist's, the first other one the main one."""
    hand = [name for name in names if any(word in name.lower() for word in _AT_THE_HAND)]
    main = next((name for name in names if name not in hand), names[0])
    wrist = next((name for name in hand if name != main), None)
    special = {main: "main", wrist: "wrist"}
    return {name: special.get(name) or re.sub(r"\W", "_", name) for name in names}


def _read_camera(camera: _Source, role: str, found: Contract) -> None:
    if camera.type not in _CAMERAS:
        camera.refuse(f"{camera.key} is a {camera.type}, no image", "channel", "type")
    for index, (name, one) in enumerate(camera.apply):
        if name != "resize" or index:
            why = f"{camera.key} applies {name}: images can be resized, once, and nothing else"
            camera.refuse(why, "apply", index)
        size = one["resize"] if isinstance(one, dict) and len(one) == 1 else None
        if not _is_size(size):
            why = f"resize is {size!r}: give height and width, such as [480, 640]"
            camera.refuse(why, "apply", index)
        assert size is not None
        sizes = found.parameters.setdefault("image_resize", [])
        sizes.append(f"{role}={size[0]}x{size[1]}")
    topic, transport = camera.topic, _CAMERAS[camera.type]
    ending = "" if transport == "raw" else f"/{transport}"
    if not topic.endswith(ending):
        what = "compressed images" if transport == "compressed" else f"images of {transport}"
        camera.refuse(f"{what} come on TOPIC{ending}, not {topic}", "channel", "topic")
    found.parameters.update(
        {
            f"cameras.{role}.topic": topic.removesuffix(ending),
            f"cameras.{role}.transport": transport,
        }
    )
    qos = _fields(camera.channel.get("qos", {}), (*camera.at, "channel", "qos"), "qos", _QOS)
    if "reliability" in qos:
        found.parameters[f"cameras.{role}.reliability"] = qos["reliability"]


def _is_size(size: Any) -> bool:
    """Whether it is a height and a width."""
    whole = isinstance(size, list) and len(size) == 2 and all(type(one) is int for one in size)
    return whole and all(0 < one <= MOST_SIDE for one in size)


def _one_channel(sources: list[_Source]) -> _Source:
    """The channel that all of them share."""
    first = sources[0]
    for other in sources[1:]:
        if (other.topic, other.type) != (first.topic, first.type):
            other.refuse(
                f"{other.key} has {other.topic} beside {first.topic}: all joints are on one topic"
            )
    return first


def _unit(source: _Source, also: tuple[str, ...] = ()) -> str:
    """Unit of the data set, rad or deg."""
    names = [name for name, _ in source.apply]
    for index, name in enumerate(names):
        if name not in ("rad2deg", *also) or names.count(name) > 1:
            why = f"{source.key} applies {name}, which cannot be followed"
            source.refuse(why, "apply", index)
    return "deg" if "rad2deg" in names else "rad"


def _read_state(sources: list[_Source], found: Contract) -> None:
    first = _one_channel(sources)
    if first.type != _JOINTS:
        why = f"{_STATE} is a {first.type}: joint states are {_JOINTS}"
        first.refuse(why, "channel", "type")
    names, units = [], []
    for source in sources:
        joints = source.joints()
        names += joints
        units += [_unit(source)] * len(joints)
    found.parameters.update({"joint_names": names, "use_joint_states": True})
    if "deg" in units:
        found.parameters["state_units"] = units
    found.remappings["joint_states"] = first.topic


def _read_actions(content: Any, found: Contract) -> None:
    keys = _fields(content, ("actions",), "actions")
    for key in keys:
        if key != "action":
            why = f"{key} cannot be followed: a policy here has one action"
            raise _Refused(("actions", key), why)
    if "action" not in keys:
        raise _Refused(("actions",), "there is no action")
    sources = _sources("action", keys["action"], ("actions", "action"))
    first = _one_channel(sources)
    if first.type not in _COMMANDS:
        why = f"the action is a {first.type}; joints are commanded by {', '.join(_COMMANDS)}"
        first.refuse(why, "channel", "type")
    names, units, bounds = [], [], []
    for source in sources:
        joints, unit = source.joints(), _unit(source, ("clamp",))
        names += joints
        units += [unit] * len(joints)
        bounds += [_clamped(source)] * len(joints)
    output, topic = _COMMANDS[first.type]
    found.parameters.update(
        {
            "action_space": "joint_position",
            "action_names": names,
            "outputs": [output],
            "stale_action": _stale(sources),
        }
    )
    if "deg" in units:
        found.parameters["action_units"] = units
    if all(bounds):
        low, high = zip(*bounds, strict=True)
        found.parameters.update({"bounds_low": list(low), "bounds_high": list(high)})
    found.remappings[topic] = first.topic


def _clamped(source: _Source) -> tuple[float, float] | None:
    """Bounds of a clamp, rad; one behind rad2deg is in degrees."""
    factor = 1.0
    for index, (name, one) in enumerate(source.apply):
        if name == "rad2deg":
            factor = math.pi / 180.0
        elif name == "clamp":
            at = (*source.at, "apply", index, "clamp")
            ends = _fields(one["clamp"], at, "clamp", ("min", "max"))
            if set(ends) != {"min", "max"}:
                source.refuse("clamp needs min and max", "apply", index)
            return float(ends["min"]) * factor, float(ends["max"]) * factor
    return None


def _stale(sources: list[_Source]) -> str:
    """Stale action of the sources, which must agree."""
    found = set()
    for source in sources:
        word = str(source.channel.get("safety", "none"))
        if word not in _STALE:
            why = "zero is a place to go to" if word == "zeros" else f"it is none of {list(_STALE)}"
            source.refuse(
                f"safety {word} of joint positions cannot be followed: {why}", "channel", "safety"
            )
        found.add(word)
    if len(found) > 1:
        sources[-1].refuse("safety differs within one action: a stop is one for all joints")
    return _STALE[found.pop()]


def _read_task(content: Any, found: Contract) -> None:
    for key, value in _fields(content, ("tasks",), "tasks").items():
        if key != "task":
            why = f"{key} cannot be followed: a policy here has one task"
            raise _Refused(("tasks", key), why)
        source = _source(key, value, ("tasks", key))
        if source.type != "std_msgs/msg/String":
            source.refuse(
                f"the task is a {source.type}, not std_msgs/msg/String", "channel", "type"
            )
        found.remappings["instruction"] = source.topic


# A robot's parameter file -> a contract, and back.


def is_contract(path: Path) -> bool:
    """True for a contract, False for a parameter file of ROS."""
    return "robot_interface" in read_yaml(path)


def robot_parameters(path: Path) -> dict[str, Any]:
    """Parameters of the policy node in a parameter file. UserError: it describes no joints."""
    found: dict[str, Any] = {}
    for pattern, body in read_yaml(path).items():
        if pattern.rsplit("/", 1)[-1] in ("**", "policy"):
            inner = mapping(body, f"{path}: {pattern}").get("ros__parameters")
            found |= flatten(mapping(inner, f"{path}: {pattern}"))
    if found.get("action_space") != "joint_position" or not any(found.get("joint_names", ())):
        raise UserError(
            f"{path}: a contract describes joints: action_space joint_position and joint_names"
        )
    return found


def contract_of(
    parameters: Mapping[str, Any], robot: str, topics: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Contract of these parameters, without those that it has no field for. ``topics``: what the
    robot calls joint_states, the output's topic and the instruction's. UserError: others."""
    moved = dict(topics or {})
    given = {"control_rate_hz": 20.0, "action_rate_hz": 0.0, **parameters}
    align = {"strategy": "hold", "timeline": "header"}
    observations: dict[str, Any] = {}
    cameras = ("main", "wrist", *given.get("camera_roles", ()))
    sizes = sizes_of(given.get("image_resize", ()), cameras)
    pairs = dict(pair.split("=") for pair in str(given.get("camera_map", "")).split())
    for name, role in (pairs or {"front": "main", "wrist": "wrist"}).items():
        default = {"main": "image", "wrist": "wrist_image"}.get(role, f"{role}_image")
        topic = given.get(f"cameras.{role}.topic", default)
        transport = given.get(f"cameras.{role}.transport", "raw")
        if transport not in _CAMERAS.values():  # auto
            transport = "raw"
        size = sizes.get(role) or sizes.get("") or _ROSETTAS_SIZE
        observations[_IMAGES + name] = {
            "channel": {
                "topic": topic if transport == "raw" else f"{topic}/{transport}",
                "type": next(kind for kind, one in _CAMERAS.items() if one == transport),
            },
            "align": align,
            "apply": [{"resize": list(size)}],
        }
    joints = {"topic": moved.pop("joint_states", "/joint_states"), "type": _JOINTS}
    names = [name for name in given["joint_names"] if name]
    state = _runs(names, given.get("state_units"), joints, align)
    output = next((name for name in given.get("outputs", ()) if name), "joint_state")
    message = next((kind for kind, (name, _) in _COMMANDS.items() if name == output), "")
    if not message:
        known = ", ".join(name for name, _ in _COMMANDS.values())
        raise UserError(f"a contract has no word for outputs {output}: one of {known}")
    topic = _COMMANDS[message][1]
    channel = {"topic": moved.pop(topic, f"/policy/{topic[2:]}"), "type": message}
    if given.get("stale_action") == "hold":
        channel["safety"] = "hold"
    commanded = [name for name in given.get("action_names", ()) if name] or names
    task = {"topic": moved.pop("instruction", "/instruction"), "type": "std_msgs/msg/String"}
    if moved:
        raise UserError(f"a contract has no word for the topic {next(iter(moved))}: leave it out of"
                        " remappings")  # fmt: skip
    return {
        "robot_type": robot,
        "robot_interface": "ros2",
        "fps": max(1, int(given["action_rate_hz"] or given["control_rate_hz"])),
        "observations": {**observations, _STATE: state},
        "actions": {"action": _runs(commanded, given.get("action_units"), channel, align)},
        "tasks": {"task": {"channel": task}},
    }


def _runs(
    names: list[str], units: Sequence[str] | None, channel: dict[str, str], align: dict[str, str]
) -> list[dict[str, Any]]:
    """Sources of a key, one for each run of joints of one unit."""
    words = list(units or ())
    words = words * len(names) if len(words) == 1 else words or [""] * len(names)
    out: list[dict[str, Any]] = []
    before: bool | None = None
    for name, word in zip(names, words, strict=True):
        degrees = word == "deg"
        if degrees is not before:
            out.append({"channel": channel, "align": align, "select": []})
            if degrees:
                out[-1]["apply"] = ["rad2deg"]
        out[-1]["select"].append(f"position.{name}")
        before = degrees
    return out


def write_contract(
    parameters: Mapping[str, Any],
    robot: str,
    path: Path,
    topics: Mapping[str, str] | None = None,
) -> None:
    """Write the contract of these parameters, exact when it is read again: those that it has no
    field for are in ``x-vla_ros``. Rosetta records no image without a ``resize``: where the
    parameters have none, the contract has one, by which images are recorded and seen."""
    made = contract_of(parameters, robot, topics)
    path.write_text(_dump(made), encoding="utf-8")
    again = read_contract(path).parameters
    said = {"action_rate_hz": 0.0, **parameters}  # 0: the checkpoint says it, and no contract
    rest = {
        name: value
        for name, value in said.items()
        if again.get(name) != value and name != "image_resize"
    }
    if rest:
        refuse_named(rest, "a contract", {}, "by -p policy.NAME=VALUE")
        path.write_text(_dump({**made, OWN: rest}), encoding="utf-8")


def _dump(content: Mapping[str, Any]) -> str:
    class PlainDumper(yaml.SafeDumper):
        """YAML without anchors: people read it."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump(
        dict(content), Dumper=PlainDumper, sort_keys=False, default_flow_style=None, width=96
    )


def parameters_text(contract: Contract) -> str:
    """Parameter file of a contract; its remappings are comments."""
    tree = {"/**/policy": {"ros__parameters": dict(contract.parameters)}}
    lines = [f"# The robot {contract.robot}. Topics that it calls otherwise:"]
    lines += [f"#   -r {old}:={new}" for old, new in contract.remappings.items()]
    return "\n".join(lines) + "\n" + _dump(tree)
