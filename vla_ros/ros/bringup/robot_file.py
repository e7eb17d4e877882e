"""Robot files (config/robots/, `vla-ros setup`): one robot's parameters and topics, for both doors.

A parameter file of ROS for the policy node, with one section more, which ROS passes over as that of
a node it does not start:

    /**/policy:
      ros__parameters:
        cameras.main.topic: /front_camera/image_raw
    remappings:
      ros__parameters:
        joint_states: /follower/joint_states

`vla-ros up` and `robot:=` of policy.launch.py read both. Apart from graph_file, which imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_ros.core.errors import UserError
from vla_ros.core.names import known_or_nearest, nearest
from vla_ros.core.resources import share
from vla_ros.core.yaml_files import read_yaml
from vla_ros.ros.common.parameter_files import (
    matches,
    names_of,
    our_nodes,
    place_of_section,
    sections,
)
from vla_ros.ros.common.topic_names import check_remapped

REMAPPINGS = "remappings"
FOLDER = "robots"


@dataclass(frozen=True, slots=True)
class RobotFile:
    """A robot file. ``remappings``: old topic -> the robot's, for every node."""

    path: Path
    content: Mapping[str, Any]
    remappings: Mapping[str, str]

    def has_part_for(self, full_name: str) -> bool:
        """True where it has parameters of the node of that name, such as /policy."""
        return any(matches(pattern, full_name) for pattern, _ in _nodes(self.content))

    def parameters(self, full_name: str = "/policy") -> dict[str, Any]:
        """Parameters of that node, by their names with dots."""
        found: dict[str, Any] = {}
        for pattern, values in _nodes(self.content):
            if matches(pattern, full_name):
                found |= {name: _at(values, name) for name in names_of(values)}
        return found


def shipped_robots() -> dict[str, Path]:
    """The robot files of config/robots/ by their short names."""
    return {path.stem: path for path in sorted((share() / "config" / FOLDER).glob("*.yaml"))}


def shipped_robot(name: str) -> Path | None:
    """One of them by its name, or as robots/NAME.yaml; None: there is none."""
    return shipped_robots().get(name.removeprefix(f"{FOLDER}/").removesuffix(".yaml"))


def find_robot(name: str) -> RobotFile:
    """The robot file of a path, or of a name in config/robots/. UserError, in one line."""
    path = Path(name)
    found = path if path.is_file() else shipped_robot(name)
    if found is None:
        raise UserError(f"no robot file {name!r}{known_or_nearest(name, shipped_robots())}")
    return read_robot(found)


def read_robot(path: Path) -> RobotFile:
    """The content of a robot file. UserError: it is none, a section is of no node here, a topic is
    none."""
    content = read_yaml(path)
    if not isinstance(content, dict) or not is_robot(content):
        raise UserError(f"{path} is no robot file, which has policy: {{ros__parameters: ...}}")
    known = {*our_nodes(), REMAPPINGS}
    for pattern, _ in sections(content):
        name = pattern.rsplit("/", 1)[-1]
        if name not in ("*", "**") and name not in known:
            hint = nearest(name, known, f"; there are {', '.join(sorted(known))}")
            where = place_of_section(name, path)
            raise UserError(f"{where}: no node here is called {name!r}{hint}")
    robot = RobotFile(path, content, _remappings(path, content))
    topics = _texts(robot.parameters())
    for old, new in robot.remappings.items():
        where = place_of_section(old, path)
        if not (isinstance(new, str) and new):
            raise UserError(f"{where}: {old} must be the name of a topic, not {new!r}")
        check_remapped(old, where, topics)
    return robot


def is_robot(content: Mapping[Any, Any]) -> bool:
    """True of a file of parameters of the policy node, which is no graph file."""
    names = [pattern.rsplit("/", 1)[-1] for pattern, _ in sections(content)]
    return "nodes" not in content and any(name in ("policy", "**") for name in names)


def _nodes(content: Mapping[Any, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return [one for one in sections(content) if one[0] != f"/{REMAPPINGS}"]


def _remappings(path: Path, content: Mapping[Any, Any]) -> dict[str, Any]:
    section = content.get(REMAPPINGS, {})
    if not isinstance(section, dict) or set(section) - {"ros__parameters"}:
        where = place_of_section(REMAPPINGS, path)
        raise UserError(f"{where}: below {REMAPPINGS} must stand ros__parameters, and below it"
                        " NAME: TOPIC")  # fmt: skip
    return dict(section.get("ros__parameters") or {})


def _at(values: Mapping[str, Any], name: str) -> Any:
    """The value of a name with dots, in a tree whose keys may have dots themselves."""
    if name in values:
        return values[name]
    for key, inner in values.items():
        if isinstance(inner, dict) and name.startswith(f"{key}."):
            return _at(inner, name[len(key) + 1 :])
    raise KeyError(name)


def _texts(values: Mapping[str, Any]) -> list[str]:
    """Words that the parameters have: names of cameras, joints and topics among them."""
    listed = (value if isinstance(value, list) else [value] for value in values.values())
    return [text for items in listed for text in items if isinstance(text, str)]
