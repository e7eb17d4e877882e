"""Graph files (config/*.up.yaml): which nodes `vla-ros up` and `vla-ros demo` start.

    log_level: info                # of every node; a node may have its own
    parameters: {use_sim_time: false}          # of every node
    nodes:
      policy:                      # the node's name; started in this order
        executable: policy         # vla_ros/ros/nodes/policy/; default: the name
        parameter_files: [policy.yaml]         # beside this file, in config/, or absolute
        parameters: {control_rate_hz: 20.0}    # after the files
        remappings: {image: /camera/image_raw}
        namespace: ""
        lifecycle: true            # configure and activate it
        spectator: false           # true: its end is logged and ends nothing else

A parameter given from outside (`-p policy.control_rate_hz=10`) wins over all of these.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from vla_ros.core import yaml_files
from vla_ros.core.errors import UserError
from vla_ros.core.files import BadFile, read_text
from vla_ros.core.names import known_or_nearest, nearest
from vla_ros.core.resources import config_path, share
from vla_ros.core.yaml_files import parse_yaml
from vla_ros.ros.bringup.environment import enclave_of
from vla_ros.ros.bringup.robot_file import (
    RobotFile,
    is_robot,
    read_robot,
    shipped_robot,
    shipped_robots,
)
from vla_ros.ros.common.parameter_files import (
    is_known,
    meant,
    named_for,
    our_nodes,
    parameters_of_all,
    place_of,
    sections,
    whose,
)
from vla_ros.ros.common.topic_names import check_remapped

# The graph files that come with the package (config/*.up.yaml), and any other by its path.


SUFFIX = ".up.yaml"
#: The graph of a robot file.
ROBOT_GRAPH = f"policy{SUFFIX}"


def find_graph_file(path: str | Path) -> Path:
    """Path of a graph or robot file: the file itself, or the one of that name in config/; where
    both have the name, the graph."""
    given = Path(path)
    if given.is_file():
        return given
    if len(given.parts) == 1:
        for name in (given.name, f"{given.name}{SUFFIX}"):
            try:
                return config_path(name)
            except FileNotFoundError:
                continue
    if (robot := shipped_robot(str(path))) is not None:
        return robot
    if given.is_dir():
        raise UserError(f"{given} is a directory; name a graph file such as sim.up.yaml")
    known = known_or_nearest(str(path), shipped_graphs() | shipped_robots())
    raise UserError(f"no graph or robot file {str(path)!r}{known}")


def shipped_graphs() -> dict[str, Path]:
    """The graphs of config/ by their short names."""
    files = sorted((share() / "config").glob(f"*{SUFFIX}"))
    return {path.name.removesuffix(SUFFIX): path for path in files}


def title_of(file: Path) -> str:
    """Title of a graph file: the first sentence of its comment; "" where it has none."""
    words = []
    for line in read_text(file).splitlines():
        if not line.startswith("#"):
            break
        words += line.lstrip("# ").split()
    return re.split(r"[.:] ", " ".join(words))[0].rstrip(".")


# Names in ROS that a user gives: namespaces and remappings, refused before anything starts.


_NAME = r"[A-Za-z_][A-Za-z0-9_]*"  # one part of a name in ROS
_NAMESPACE = re.compile(rf"/?{_NAME}(/{_NAME})*/?")
_TOPIC = re.compile(rf"(~/|/)?({_NAME}/)*{_NAME}")
_RULE = "parts of letters, digits and _, none first a digit, joined by /"


def check_namespace(text: str, place: str = "--namespace") -> None:
    """Raise UserError, which begins with ``place``, for text that is no namespace of ROS; the empty
    one is none."""
    if text and not _NAMESPACE.fullmatch(text):
        raise UserError(f"{place} {text}: {_RULE}, such as arm_left or lab/arm_left")


def remapping(item: str) -> tuple[str, str, str]:
    """Node ("": every one), old and new name of "[NODE:]FROM=TO". UserError."""
    where, equals, new = item.replace(":=", "=").partition("=")
    node, _, old = where.rpartition(":")
    if not (equals and old and new):
        raise UserError(f"-r {item}: write FROM=TO, such as image=/camera/image_raw")
    for name in (old, new):
        if not _TOPIC.fullmatch(name):
            raise UserError(f"-r {item}: {name!r} is no topic: {_RULE}")
    return node, old, new


# Parameters of ROS are typed: a value that is given for one is converted to its type, or refused.
#
# rcl silently drops a value whose type is not that of the parameter file: `image_size:=2.5` would
# leave it at 256.


_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
}


def of_type(before: object, value: Any, place: str) -> Any:
    """Value of YAML, converted to the type of ``before``; None: any type.

    A whole number may be a fraction's or a text's, and a text a number's (1e3 is text to YAML).
    UserError, which begins with ``place``, for everything else.
    """
    kind = next((kind for kind in _WORDS if type(before) is kind), None)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is None or type(value) is kind is not list:
        return value
    if kind is list and isinstance(value, Sequence) and not isinstance(value, str):
        first = before[0] if isinstance(before, list) and before else None
        return [of_type(first, one, place) for one in value]
    if kind is float and (number or isinstance(value, str)):
        with contextlib.suppress(ValueError):
            return float(value)
    if kind is str and number:
        return str(value)
    assert kind is not None
    example = "" if kind is bool else f" such as {before!r}"
    if kind is list and isinstance(value, str):
        example = f" such as [{value}]"
    raise UserError(f"{place}: must be {_WORDS[kind]}{example}, not {value!r}")


# YAML of users: an error is one line with its position.


def read_yaml(path: Path) -> dict[str, Any]:
    """Content of a file that is a mapping. UserError: the line in which it is not YAML."""
    try:
        content = yaml_files.read_yaml(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error}") from None
    return mapping(content, str(path))


def mapping(value: object, place: str) -> dict[str, Any]:
    """Value that has to be a mapping; None is an empty one. UserError, which begins with
    ``place``."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{place} must be a mapping of names, not {type(value).__name__}")
    return value


def argument(name: str, text: str) -> dict[str, Any]:
    """Mapping of the launch argument ``name:=text``, which may be empty. UserError in one line."""
    found = parse_yaml(text or "{}", f"{name}:={text}")
    if not isinstance(found, dict):
        raise UserError(f"{name}:={text}: write '{{NAME: VALUE, NAME: VALUE}}'")
    return found


def known_keys(content: Mapping[str, Any], known: Iterable[str], place: str) -> None:
    """Raise UserError with the first key that is none of these."""
    unknown = [str(key) for key in content if key not in known]
    if unknown:
        raise UserError(f"{place}: unknown key {unknown[0]!r}; known: {', '.join(known)}")


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Parameters of a tree, by their names with dots."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


#: node name → parameter → value
Overrides = Mapping[str, Mapping[str, Any]]

LOG_LEVELS = ("debug", "info", "warn", "error", "fatal")
_NODE_KEYS = (
    "executable",
    "parameter_files",
    "parameters",
    "remappings",
    "namespace",
    "lifecycle",
    "log_level",
    "spectator",
)


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One process to start."""

    name: str
    executable: str  # a folder of vla_ros/ros/nodes
    parameter_files: tuple[Path, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)  # after the files
    remappings: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""
    lifecycle: bool = False
    log_level: str = "info"
    spectator: bool = False  # the graph goes on without it
    enclave: str = ""  # of its keys, such as /vla_ros/policy

    @property
    def full_name(self) -> str:
        """Name in the ROS graph, such as /arm/policy."""
        return f"/{self.namespace.strip('/')}/{self.name}".replace("//", "/")

    def file_parameters(self) -> dict[str, Any]:
        """Parameters that its files set, flattened: {"limits.max_age_s": 0.3, ...}."""
        found: dict[str, Any] = {}
        for path in self.parameter_files:
            content = read_yaml(path)
            for pattern, body in content.items():
                names = ("/**", self.name, self.full_name, f"/**/{self.name}")
                if pattern not in names or not isinstance(body, dict):
                    continue
                found |= flatten(body.get("ros__parameters") or {})
        return found

    def values(self) -> dict[str, Any]:
        """Parameters that its files and the graph set; the graph wins."""
        return {**self.file_parameters(), **self.parameters}


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """The nodes of one graph, in the order in which they start."""

    nodes: tuple[NodeSpec, ...]
    source: str = "graph"

    @staticmethod
    def load(
        path: str | Path,
        overrides: Overrides | None = None,
        *,
        namespace: str = "",
        log_level: str | None = None,
        remappings: Iterable[str] = (),
        more: Mapping[str, Mapping[str, Any]] | None = None,
        enclave: str = "",
    ) -> GraphSpec:
        """Read a graph file and apply parameters given from outside.

        Args:
            path: a file, or the name of one in config/ ("sim.up.yaml", or just "sim"); a robot
                file is read by the nodes of policy.up.yaml.
            overrides: node name → parameter → value.
            namespace: put in front of every node's namespace.
            log_level: of every node, instead of the file's.
            remappings: "FROM=TO" for every node, "NODE:FROM=TO" for one.
            more: further nodes, with the fields of the file's.
            enclave: a folder of SROS 2 enclaves; each node uses ENCLAVE/NAME. "": none.

        Raises:
            UserError: one line that names the file and what is wrong in it.
        """
        check_namespace(namespace)
        file = find_graph_file(path)
        content = read_yaml(file)
        robot = None
        if is_robot(content):
            robot, file = read_robot(file), config_path(ROBOT_GRAPH)
            content = read_yaml(file)
        _refuse_other(content, file)
        known_keys(content, ("nodes", "parameters", "log_level"), str(file))
        nodes = mapping(content.get("nodes"), f"{file}: nodes")
        if not nodes:
            raise UserError(f"{file}: 'nodes' is empty; name at least one node")
        nodes = {**(more or {}), **nodes}  # one that the file has already is the file's
        shared = flatten(mapping(content.get("parameters"), f"{file}: parameters"))
        level = log_level or content.get("log_level", "info")
        specs = tuple(
            _node(str(name), mapping(body, f"{file}: nodes.{name}"), file, shared, level, namespace)
            for name, body in nodes.items()
        )
        source = file
        if robot is not None:
            specs, source = tuple(_with_part_of(spec, robot) for spec in specs), robot.path
        specs = tuple(checked(spec, file) for spec in specs)
        if robot is not None:  # whose topics are checked: one node alone knows its arms
            specs = tuple(
                dataclasses.replace(spec, remappings={**spec.remappings, **robot.remappings})
                for spec in specs
            )
        specs = _with_overrides(specs, overrides or {}, source.name)
        if enclave:
            specs = tuple(
                dataclasses.replace(spec, enclave=enclave_of(enclave, spec.name)) for spec in specs
            )
        return GraphSpec(_with_remappings(specs, remappings, source.name), str(source))

    def node(self, name: str) -> NodeSpec:
        """One node by name."""
        return next(spec for spec in self.nodes if spec.name == name)


def _refuse_other(content: Mapping[str, Any], file: Path) -> None:
    """Raise UserError for a file of another kind, with what takes it."""
    if "robot_interface" in content:
        raise UserError(f"{file} is a contract: vla-ros up policy --contract {file}")
    names = [pattern.rsplit("/", 1)[-1] for pattern, _ in sections(content)]
    if names and "nodes" not in content:
        hint = nearest(names[0], our_nodes(), ": name one policy")
        raise UserError(
            f"{file} is neither a graph file, which has nodes, nor a robot file, which has a"
            f" section of the node policy: its section is {names[0]!r}{hint}"
        )


def _with_part_of(spec: NodeSpec, robot: RobotFile) -> NodeSpec:
    """Node that reads a robot file, where that has parameters of it."""
    if not robot.has_part_for(spec.full_name):
        return spec
    files = (*spec.parameter_files, robot.path.resolve())
    return dataclasses.replace(spec, parameter_files=files)


def parse_overrides(items: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Overrides of ["policy.control_rate_hz=10", ...]: {"policy": {"control_rate_hz": 10}}.

    The value is read as YAML; quote it twice to keep a number a string.

    Raises:
        UserError: for an item that has not this form.
    """
    found: dict[str, dict[str, Any]] = {}
    for item in items:
        target, equals, text = item.partition("=")
        node, dot, parameter = target.strip().removeprefix("/").partition(".")
        if not (equals and dot and node and parameter):
            raise UserError(f"-p {item}: write NODE.PARAMETER=VALUE, such as policy.mode=lockstep")
        try:
            value = parse_yaml(text, item) if text else ""
        except BadFile:
            value = text
        found.setdefault(node, {})[parameter.strip()] = value
    return found


def node_names() -> list[str]:
    """Folders of vla_ros/ros/nodes that can be started."""
    folder = Path(__file__).resolve().parent.parent / "nodes"
    return [path.parent.name for path in sorted(folder.glob("*/node.py"))]


def _node(
    name: str,
    body: dict[str, Any],
    file: Path,
    shared: dict[str, Any],
    log_level: str,
    namespace: str,
) -> NodeSpec:
    place = f"{file}: nodes.{name}"
    known_keys(body, _NODE_KEYS, place)
    executable = str(body.get("executable", name))
    if executable not in (known := node_names()):
        raise UserError(f"{place}: no node {executable!r}{known_or_nearest(executable, known)}")
    level = str(body.get("log_level", log_level)).lower()
    if level not in LOG_LEVELS:
        raise UserError(f"{place}: log_level {level!r} is none of {', '.join(LOG_LEVELS)}")
    lifecycle = body.get("lifecycle", False)
    if not isinstance(lifecycle, bool):
        raise UserError(f"{place}: lifecycle must be true or false, not {lifecycle!r}")
    spectator = body.get("spectator", False)
    if not isinstance(spectator, bool) or (spectator and lifecycle):
        raise UserError(f"{place}: spectator must be true or false, and no lifecycle node is one")
    files = body.get("parameter_files", [])
    if not isinstance(files, list):
        raise UserError(f"{place}: parameter_files must be a list of file names")
    remappings = mapping(body.get("remappings"), f"{place}.remappings")
    own = str(body.get("namespace", "") or "")
    check_namespace(own, f"{place}: namespace")
    return NodeSpec(
        name=name,
        executable=executable,
        parameter_files=tuple(_parameter_file(str(f), file, place) for f in files),
        parameters={**shared, **flatten(mapping(body.get("parameters"), f"{place}.parameters"))},
        remappings={str(old): str(new) for old, new in remappings.items()},
        namespace="/".join(part.strip("/") for part in (namespace, own) if part.strip("/")),
        lifecycle=lifecycle,
        log_level=level,
        spectator=spectator,
    )


def _with_overrides(
    specs: tuple[NodeSpec, ...], overrides: Overrides, source: str
) -> tuple[NodeSpec, ...]:
    names = [spec.name for spec in specs]
    for node in overrides:
        if node not in names:
            raise UserError(f"{source} has no node {node!r}{known_or_nearest(node, names)}")
    return tuple(with_parameters(spec, overrides.get(spec.name, {})) for spec in specs)


def with_parameters(spec: NodeSpec, given: Mapping[str, Any]) -> NodeSpec:
    """Node with these parameters too. UserError: it has none of that name."""
    known = shipped_values(spec) | spec.values()
    values = dict(spec.parameters)
    cameras = given.get("camera_roles", known.get("camera_roles"))
    roles = list(map(str, cameras)) if isinstance(cameras, list) else []
    for name, value in given.items():
        if not is_known(name, known, roles):
            raise UserError(f"node {spec.name} has no parameter {name!r}{meant(name, known)}")
        values[name] = of_type(known.get(name), value, f"{spec.name}.{name}")
    return dataclasses.replace(spec, parameters=values)


def shipped_values(spec: NodeSpec) -> dict[str, Any]:
    """Parameters of the node as its file in config/ has them."""
    shipped = config_path(f"{spec.executable}.yaml")
    return NodeSpec(spec.executable, spec.executable, (shipped,)).file_parameters()


def checked(spec: NodeSpec, graph: Path) -> NodeSpec:
    """Node whose parameters in ``graph`` have the types of its own. UserError: one there or in its
    files that no node has, a value of another type, a file none of whose sections is for a node of
    ours."""
    known = shipped_values(spec)
    roles = [str(role) for role in spec.values().get("camera_roles") or ()]
    for file in (*spec.parameter_files, graph):
        only = dataclasses.replace(spec, parameter_files=(file,))
        mine = set() if file == graph else named_for(read_yaml(file), spec.full_name)
        values = spec.parameters if file == graph else only.file_parameters()
        for name, value in values.items():
            where = place_of(name, file, spec.full_name) or str(file)
            if file != graph and value is not None and not (value == [] and name in known):
                _as_ros_reads(known.get(name), value, f"{where}: {spec.name}.{name}")
            if not is_known(name, known if name in mine else parameters_of_all(), roles):
                raise UserError(
                    f"{where}: node {spec.name} has no parameter {name!r}{meant(name, known)}"
                )
    for file in spec.parameter_files:
        content = read_yaml(file)
        if content and not any(sections(content)):
            first = next(iter(content))
            raise UserError(
                f"{file}: no ros__parameters: below {first!r} it must stand above the parameters"
            )
        line, of_ours = whose(content, file, spec.full_name)
        if line and not of_ours:
            raise UserError(f"{line}: name the section {spec.name} or /**")
    for old in spec.remappings:
        check_remapped(old, place_of(old, graph, spec.full_name) or str(graph), _topics_of(spec))
    given = {
        name: of_type(known.get(name), value, f"{graph}: {spec.name}.{name}")
        for name, value in spec.parameters.items()
    }
    return dataclasses.replace(spec, parameters=given)


def _as_ros_reads(before: object, value: Any, place: str) -> None:
    """Raise UserError, which begins with ``place``, for a value of a parameter file that ROS would
    not take for one of the type of ``before``: it converts no number to a text, and no whole
    number to a fraction."""
    of_type(before, value, place)
    items = value if isinstance(value, list) else [value]
    first = before[0] if isinstance(before, list) and before else before
    for item in items:
        if isinstance(first, str) and not isinstance(item, str):
            raise UserError(f"{place}: must be text: write '{item}' in quotes")
        if isinstance(first, float) and isinstance(item, int):
            raise UserError(f"{place}: must be no whole number to ROS: write {item} as {item}.0")


def _topics_of(spec: NodeSpec) -> Iterator[str]:
    """Topics that a node's parameters name."""
    for value in spec.values().values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                yield from text.replace(",", " ").split()


def _with_remappings(
    specs: tuple[NodeSpec, ...], items: Iterable[str], source: str
) -> tuple[NodeSpec, ...]:
    for item in items:
        node, old, new = remapping(item)
        if node and node not in [spec.name for spec in specs]:
            names = [spec.name for spec in specs]
            raise UserError(f"{source} has no node {node!r}{known_or_nearest(node, names)}")
        check_remapped(old, f"-r {item}", chain.from_iterable(map(_topics_of, specs)))
        specs = tuple(
            dataclasses.replace(spec, remappings={**spec.remappings, old: new})
            if node in ("", spec.name)
            else spec
            for spec in specs
        )
    return specs


def _parameter_file(name: str, graph_file: Path, place: str) -> Path:
    beside = graph_file.parent / name
    if beside.is_file():
        return beside.resolve()
    try:
        return config_path(name)
    except FileNotFoundError as error:
        raise UserError(f"{place}: {error}") from None
