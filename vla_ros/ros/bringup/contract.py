"""A robot described once: Rosetta's contract as parameters and remappings of the policy node, and
a robot's parameter file as a contract.

Rosetta (ros-physical-ai) brings LeRobot to ROS 2 robots; its contract says which topics are which
of LeRobot's features. Read here are cameras, joint states, joint commands, their rates and units,
and the task's topic. What is recorded only (teleop, rewards, signals, info, complementary_data,
adjunct) concerns no running policy and is passed over; what would change what a policy sees or does
and has no word of ours is refused with its line. Code that a contract names is never imported.

`x-vla_ros`, which Rosetta ignores as all of `x-`, holds parameters that it has no word for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import yaml

from vla_ros.core.errors import UserError
from vla_ros.ros.bringup.graph_file import GraphSpec, flatten, mapping, read_yaml

OWN = "x-vla_ros"
RECORDED = ("teleop", "rewards", "signals", "info", "complementary_data", "adjunct")
_TOP = ("robot_type", "robot_interface", "fps", "observations", "actions", "tasks", *RECORDED)
_CHANNEL = ("topic", "type", "qos", "dtype", "safety")
_IMAGES, _STATE = "observation.images.", "observation.state"
_RAW, _COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
_JOINTS = "sensor_msgs/msg/JointState"
#: message of an action's channel -> our output and its topic
_COMMANDS = {
    _JOINTS: ("joint_state", "~/joint_commands"),
    "trajectory_msgs/msg/JointTrajectory": ("trajectory", "~/joint_trajectory"),
    "std_msgs/msg/Float64MultiArray": ("positions", "~/positions"),
}
_AT_THE_HAND = ("wrist", "hand", "gripper")
_STALE = {"none": "silence", "hold": "hold"}


@dataclass(frozen=True, slots=True)
class Contract:
    """``parameters`` and ``remappings`` of the policy node; ``robot``: its type."""

    robot: str
    parameters: Mapping[str, Any]
    remappings: Mapping[str, str]

    def given_to(self, spec: GraphSpec, given: Mapping[str, Any]) -> GraphSpec:
        """The graph whose policy node follows it; what is ``given`` for that node wins."""
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


# YAML whose every value knows its line.


@dataclass(frozen=True, slots=True)
class Located:
    """``value``: a scalar, or a dict or list of spots."""

    path: Path
    line: int
    value: Any

    def refuse(self, why: str) -> NoReturn:
        """UserError with the line."""
        raise UserError(f"{self.path}, line {self.line}: {why}")

    def fields(self, what: str, known: Sequence[str] | None = None) -> dict[str, Located]:
        """Of a mapping; ``known``: no other names."""
        if not isinstance(self.value, dict):
            self.refuse(f"{what} must be a mapping")
        for name, spot in self.value.items():
            if known is not None and name not in known:
                spot.refuse(
                    f"{what} has {name!r}, which cannot be followed: {', '.join(known)} can"
                )
        return self.value

    def items(self, what: str) -> list[Located]:
        if not isinstance(self.value, list):
            self.refuse(f"{what} must be a list")
        return self.value

    def plain(self) -> Any:
        """As YAML reads it."""
        if isinstance(self.value, dict):
            return {name: spot.plain() for name, spot in self.value.items()}
        if isinstance(self.value, list):
            return [spot.plain() for spot in self.value]
        return self.value


def _located(path: Path) -> Located:
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: not YAML: {getattr(error, 'problem', error)}") from None

    def spot(node: yaml.Node) -> Located:
        value: Any
        if isinstance(node, yaml.MappingNode):
            loader.flatten_mapping(node)
            value = {str(key.value): spot(one) for key, one in node.value}
            value = {
                key.value: replace(value[key.value], line=key.start_mark.line + 1)
                for key, _ in node.value
            }
        elif isinstance(node, yaml.SequenceNode):
            value = [spot(one) for one in node.value]
        else:
            value = loader.construct_object(node)
        return Located(path, node.start_mark.line + 1, value)

    return spot(node) if node is not None else Located(path, 1, {})


# A contract -> parameters and remappings.


def read_contract(path: str | Path) -> Contract:
    """UserError, one line with the place, for what is no contract or cannot be followed."""
    root = _located(Path(path))
    top = root.fields("a contract")
    for name, spot in top.items():
        if name not in _TOP and not name.startswith("x-"):
            spot.refuse(f"a contract has no {name!r}: {', '.join(_TOP)}")
    if lacks := [name for name in _TOP[:5] if name not in top]:
        root.refuse(f"a contract needs {', '.join(lacks)}")
    if top["robot_interface"].value != "ros2":
        top["robot_interface"].refuse("robot_interface must be ros2")
    fps = top["fps"].value
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 1 <= fps <= 200:
        top["fps"].refuse(f"fps is {fps!r}: commands are given 1 to 200 times a second")
    found = _Found({"control_rate_hz": float(fps), "camera_rate_hz": float(fps)})
    _read_observations(top["observations"], found)
    _read_actions(top["actions"], found)
    if "tasks" in top:
        _read_task(top["tasks"], found)
    if OWN in top:
        found.parameters |= flatten(top[OWN].plain() or {})
    return Contract(str(top["robot_type"].value), found.parameters, found.remappings)


@dataclass(slots=True)
class _Found:
    parameters: dict[str, Any]
    remappings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Source:
    """One stream of a key: its channel's fields, ``select`` and what is applied, in order."""

    key: str
    spot: Located
    channel: dict[str, Located]
    select: tuple[Located, ...]
    apply: tuple[tuple[str, Located], ...]

    @property
    def topic(self) -> str:
        return str(self.channel["topic"].value)

    @property
    def type(self) -> str:
        return str(self.channel["type"].value)

    def joints(self) -> list[str]:
        """Of "position.NAME"; anything else of a joint is refused."""
        if not self.select:
            self.spot.refuse(f"{self.key} selects nothing: which joints, and in which order?")
        for one in self.select:
            if not str(one.value).startswith("position."):
                one.refuse(f"{self.key} selects {one.value}: only positions of joints are read")
        return [str(one.value).removeprefix("position.") for one in self.select]


def _sources(key: str, spot: Located) -> list[_Source]:
    return [_source(key, one) for one in (spot.value if isinstance(spot.value, list) else [spot])]


def _source(key: str, spot: Located) -> _Source:
    fields = spot.fields(key, ("channel", "align", "select", "apply", "kind"))
    if "channel" not in fields:
        spot.refuse(f"{key} has no channel")
    for code in ("decoder", "encoder"):
        if code in (fields["channel"].value or {}):
            fields["channel"].value[code].refuse(f"{code} names code, and none is imported")
    channel = fields["channel"].fields(f"the channel of {key}", _CHANNEL)
    for name in ("topic", "type"):
        if name not in channel:
            fields["channel"].refuse(f"the channel of {key} has no {name}")
    kind = fields.get("kind")
    if kind is not None and kind.value != "continuous":
        kind.refuse(f"{key} is of kind {kind.value}: joints are continuous")
    select = tuple(fields["select"].items(f"select of {key}")) if "select" in fields else ()
    apply = []
    for one in fields["apply"].items(f"apply of {key}") if "apply" in fields else ():
        name = next(iter(one.value)) if isinstance(one.value, dict) else str(one.value)
        apply.append((name, one))
    return _Source(key, spot, channel, select, tuple(apply))


def _read_observations(spot: Located, found: _Found) -> None:
    cameras: list[_Source] = []
    for key, value in spot.fields("observations").items():
        if key.startswith(_IMAGES):
            cameras += _sources(key, value)
        elif key == _STATE:
            _read_state(_sources(key, value), found)
        else:
            value.refuse(f"{key} cannot be followed: policies here look at images and joints")
        _check_timeline(key, value, found)
    if not cameras:
        spot.refuse(f"there is no {_IMAGES}NAME: a policy here looks through a camera")
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


def _check_timeline(key: str, spot: Located, found: _Found) -> None:
    for one in spot.value if isinstance(spot.value, list) else [spot]:
        align = one.value.get("align")
        if align is None:
            one.refuse(f"{key} has no align")
        fields = align.fields(f"align of {key}", ("strategy", "timeline", "tolerance_ms"))
        timeline = fields.get("timeline", align)
        if timeline.value != "header":
            timeline.refuse(
                f"{key} is not aligned by its header: streams are joined by stamps here"
            )
        if "tolerance_ms" in fields:
            slop = float(fields["tolerance_ms"].value) / 1e3
            slop = max(slop, found.parameters.get("pairing_slop_s", 0.0))
            found.parameters["pairing_slop_s"] = slop


def _roles(names: list[str]) -> dict[str, str]:
    """Camera -> role: the first at the hand is the wrist's, the first other one the main one."""
    hand = [name for name in names if any(word in name.lower() for word in _AT_THE_HAND)]
    main = next((name for name in names if name not in hand), names[0])
    wrist = next((name for name in hand if name != main), None)
    special = {main: "main", wrist: "wrist"}
    return {name: special.get(name) or re.sub(r"\W", "_", name) for name in names}


def _read_camera(camera: _Source, role: str, found: _Found) -> None:
    if camera.type not in (_RAW, _COMPRESSED):
        camera.channel["type"].refuse(f"{camera.key} is a {camera.type}, no image")
    for name, one in camera.apply:
        if name != "resize":
            one.refuse(f"{camera.key} applies {name}: images are resized as the checkpoint says")
    topic, compressed = camera.topic, camera.type == _COMPRESSED
    if compressed and not topic.endswith("/compressed"):
        camera.channel["topic"].refuse(f"compressed images come on TOPIC/compressed, not {topic}")
    found.parameters |= {
        f"cameras.{role}.topic": topic.removesuffix("/compressed") if compressed else topic,
        f"cameras.{role}.transport": "compressed" if compressed else "raw",
    }
    qos = camera.channel["qos"].plain() if "qos" in camera.channel else {}
    if "reliability" in qos:
        found.parameters[f"cameras.{role}.reliability"] = qos["reliability"]


def _one_channel(sources: list[_Source]) -> _Source:
    """The channel that all of them share."""
    first = sources[0]
    for other in sources[1:]:
        if (other.topic, other.type) != (first.topic, first.type):
            other.spot.refuse(
                f"{other.key} has {other.topic} beside {first.topic}: all joints are on one topic"
            )
    return first


def _unit(source: _Source, also: tuple[str, ...] = ()) -> str:
    """rad or deg, as the data set has it."""
    names = [name for name, _ in source.apply]
    for name, one in source.apply:
        if name not in ("rad2deg", *also) or names.count(name) > 1:
            one.refuse(f"{source.key} applies {name}, which cannot be followed")
    return "deg" if "rad2deg" in names else "rad"


def _read_state(sources: list[_Source], found: _Found) -> None:
    first = _one_channel(sources)
    if first.type != _JOINTS:
        first.channel["type"].refuse(f"{_STATE} is a {first.type}: joint states are {_JOINTS}")
    names, units = [], []
    for source in sources:
        joints = source.joints()
        names += joints
        units += [_unit(source)] * len(joints)
    found.parameters |= {"joint_names": names, "use_joint_states": True}
    if "deg" in units:
        found.parameters["state_units"] = units
    found.remappings["joint_states"] = first.topic


def _read_actions(spot: Located, found: _Found) -> None:
    keys = spot.fields("actions")
    for key, value in keys.items():
        if key != "action":
            value.refuse(f"{key} cannot be followed: a policy here has one action")
    if "action" not in keys:
        spot.refuse("there is no action")
    sources = _sources("action", keys["action"])
    first = _one_channel(sources)
    if first.type not in _COMMANDS:
        first.channel["type"].refuse(
            f"the action is a {first.type}; joints are told by {', '.join(_COMMANDS)}"
        )
    names, units, bounds = [], [], []
    for source in sources:
        joints, unit = source.joints(), _unit(source, ("clamp",))
        names += joints
        units += [unit] * len(joints)
        bounds += [_clamped(source)] * len(joints)
    output, topic = _COMMANDS[first.type]
    found.parameters |= {
        "action_space": "joint_position",
        "action_names": names,
        "outputs": [output],
        "stale_action": _stale(sources),
    }
    if "deg" in units:
        found.parameters["action_units"] = units
    if all(bounds):
        low, high = zip(*bounds, strict=True)
        found.parameters |= {"bounds_low": list(low), "bounds_high": list(high)}
    found.remappings[topic] = first.topic


def _clamped(source: _Source) -> tuple[float, float] | None:
    """rad. A clamp behind rad2deg is of degrees."""
    factor = 1.0
    for name, one in source.apply:
        if name == "rad2deg":
            factor = 3.141592653589793 / 180.0
        elif name == "clamp":
            ends = one.value["clamp"].fields("clamp", ("min", "max")) if one.value else {}
            if set(ends) != {"min", "max"}:
                one.refuse("clamp needs min and max")
            return float(ends["min"].value) * factor, float(ends["max"].value) * factor
    return None


def _stale(sources: list[_Source]) -> str:
    """What a stop is: the last source's word, all must say the same."""
    words = {}
    for source in sources:
        safety = source.channel.get("safety")
        word = "none" if safety is None else str(safety.value)
        if word not in _STALE:
            assert safety is not None
            why = "zero is a place to go to" if word == "zeros" else f"it is none of {list(_STALE)}"
            safety.refuse(f"safety {word} of joint positions cannot be followed: {why}")
        words[word] = source
    if len(words) > 1:
        sources[-1].spot.refuse("safety differs within one action: a stop is one for all joints")
    return _STALE[next(iter(words))]


def _read_task(spot: Located, found: _Found) -> None:
    for key, value in spot.fields("tasks").items():
        if key != "task":
            value.refuse(f"{key} cannot be followed: a policy here is told one task")
        source = _source(key, value)
        if source.type != "std_msgs/msg/String":
            source.channel["type"].refuse(f"the task is a {source.type}, not std_msgs/msg/String")
        found.remappings["instruction"] = source.topic


# A robot's parameter file -> a contract, and back.


def is_contract(path: Path) -> bool:
    """Whether the file is one, and no parameter file of ROS."""
    return "robot_interface" in read_yaml(path)


def robot_parameters(path: Path) -> dict[str, Any]:
    """The policy node's, of a parameter file."""
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


def contract_of(parameters: Mapping[str, Any], robot: str) -> dict[str, Any]:
    """The contract that says these parameters. What it has no word for is in ``x-vla_ros``."""
    said = {"control_rate_hz": 20.0, **parameters}
    align = {"strategy": "hold", "timeline": "header"}
    observations: dict[str, Any] = {}
    pairs = dict(pair.split("=") for pair in str(said.get("camera_map", "")).split())
    for name, role in (pairs or {"front": "main", "wrist": "wrist"}).items():
        default = {"main": "image", "wrist": "wrist_image"}.get(role, f"{role}_image")
        topic = said.get(f"cameras.{role}.topic", default)
        packed = said.get(f"cameras.{role}.transport") == "compressed"
        observations[_IMAGES + name] = {
            "channel": {
                "topic": f"{topic}/compressed" if packed else topic,
                "type": _COMPRESSED if packed else _RAW,
            },
            "align": align,
            "apply": [{"resize": [256, 256]}],
        }
    joints = {"topic": "/joint_states", "type": _JOINTS}
    names = [name for name in said["joint_names"] if name]
    state = _runs(names, said.get("state_units"), joints, align)
    output = next((name for name in said.get("outputs", ()) if name), "joint_state")
    message = next(kind for kind, (name, _) in _COMMANDS.items() if name == output)
    channel = {"topic": f"/policy/{_COMMANDS[message][1][2:]}", "type": message}
    if said.get("stale_action") == "hold":
        channel["safety"] = "hold"
    told = [name for name in said.get("action_names", ()) if name] or names
    made: dict[str, Any] = {
        "robot_type": robot,
        "robot_interface": "ros2",
        "fps": int(said["control_rate_hz"]),
        "observations": {**observations, _STATE: state},
        "actions": {"action": _runs(told, said.get("action_units"), channel, align)},
        "tasks": {
            "task": {"channel": {"topic": "/instruction", "type": "std_msgs/msg/String"}},
        },
    }
    return made


def _runs(
    names: list[str], units: Sequence[str] | None, channel: dict[str, str], align: dict[str, str]
) -> list[dict[str, Any]]:
    """One source for each run of joints of one unit."""
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


def write_contract(parameters: Mapping[str, Any], robot: str, path: Path) -> None:
    """The contract of these parameters as a file, exact when it is read again."""
    made = contract_of(parameters, robot)
    path.write_text(_dump(made), encoding="utf-8")
    heard = read_contract(path).parameters
    rest = {name: value for name, value in parameters.items() if heard.get(name) != value}
    if rest:
        path.write_text(_dump({**made, OWN: rest}), encoding="utf-8")


def _dump(content: Mapping[str, Any]) -> str:
    class PlainDumper(yaml.SafeDumper):
        """Without anchors: people read it."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump(
        dict(content), Dumper=PlainDumper, sort_keys=False, default_flow_style=None, width=96
    )


def parameters_text(contract: Contract) -> str:
    """A contract as a parameter file; its remappings as comments."""
    tree = {"/**/policy": {"ros__parameters": dict(contract.parameters)}}
    lines = [f"# The robot {contract.robot}. Topics that it calls otherwise:"]
    lines += [f"#   -r {old}:={new}" for old, new in contract.remappings.items()]
    return "\n".join(lines) + "\n" + _dump(tree)
