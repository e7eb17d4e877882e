"""Parameter files of ROS by their text: sections, names, lines; which names the nodes here have.

Needs no ROS: `vla-ros up` refuses a name before anything starts, a node when it starts.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from vla_ros.core.files import BadFile
from vla_ros.core.names import nearest
from vla_ros.core.resources import share
from vla_ros.core.yaml_files import compose_yaml, read_yaml

#: Parameters that rclpy declares by itself, or only in some releases.
_ROS = re.compile(r"use_sim_time|start_type_description_service|qos_overrides\..*")
Keys = tuple[str, ...]
_CAMERA = re.compile(
    r"cameras\.(\w+)\.(topic|transport|reliability|colors|gamma|rotate|mirror|crop|fit)"
)


def is_known(name: str, known: Iterable[str], roles: Iterable[str] = ()) -> bool:
    """True of a parameter in ``known``, one of ROS's own, or one of a camera in ``roles``."""
    camera = _CAMERA.fullmatch(name)
    return name in known or bool(_ROS.fullmatch(name)) or bool(camera and camera[1] in roles)


def meant(name: str, known: Iterable[str]) -> str:
    """End of a line that refuses a parameter."""
    return nearest(name, known, "; see docs/reference/parameters.md")


#: Keys below which the parameters and remappings of a node stand, in files of ROS and of graphs.
_OF_A_NODE = ("ros__parameters", "parameters", "remappings")


def place_of(name: str, file: Path, full_name: str = "") -> str:
    """File and line of a parameter or a remapping, "" where the file has none of that name.
    ``full_name``: in the sections for that node; the last one wins, as in ROS."""
    found = ""
    with contextlib.suppress(OSError, BadFile):  # rcl may have read what is no YAML to us
        for keys, line in _keys(compose_yaml(file)):
            first = next((i for i, key in enumerate(keys) if key in _OF_A_NODE), len(keys))
            section, inner = keys[:first], ".".join(keys[first + 1 :])
            pattern = "/" + "/".join(key.strip("/") for key in section)
            graphs = section[:1] == ("nodes",) and full_name.endswith("/" + section[-1])
            here = not (full_name and section) or graphs or matches(pattern, full_name)
            if inner == name and here:
                found = f"{file}, line {line}"
    return found


def line_of(name: str, file: Path) -> int:
    """Line of a parameter, a remapping or a section, whatever stands above it; 0: there is none."""
    for keys, line in _keys(compose_yaml(file)):
        own = keys[keys.index("ros__parameters") + 1 :] if "ros__parameters" in keys else ()
        if ".".join(own) == name or keys[-1].rsplit("/", 1)[-1] == name:
            return line
    return 0


def place_of_section(name: str, file: Path) -> str:
    """File and line of it; the file alone where there is none."""
    return f"{file}, line {line}" if (line := line_of(name, file)) else str(file)


def place_of_error(text: str, files: Sequence[Path], full_name: str = "") -> str:
    """File and line of the parameter that an error names, last as rclpy's do or first; of several
    files the last one wins. "": none of them has it."""
    names = (text.rsplit(": ", 1)[-1], text.split(" ", 1)[0].rstrip(":"))
    known = [name for name in names if re.fullmatch(r"[a-z][\w.]*", name)]
    places = (place_of(name, file, full_name) for name in known for file in reversed(files))
    return next(filter(None, places), "")


def _keys(node: yaml.Node | None, above: tuple[str, ...] = ()) -> Iterator[tuple[Keys, int]]:
    """Every key of a tree of YAML with those above it, and its line, from 1."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        merged = key.value == "<<"
        keys = above if merged else (*above, str(key.value))
        if not merged:
            yield keys, key.start_mark.line + 1
        yield from _keys(value, keys)


@cache
def parameters_of_all() -> frozenset[str]:
    """Names of the parameters of all nodes, from their files in config/."""
    found: set[str] = set()
    for file in (share() / "config").glob("*.yaml"):
        if file.name.endswith(".up.yaml"):
            continue
        content = read_yaml(file)
        for _, values in sections(content if isinstance(content, dict) else {}):
            found |= set(names_of(values))
    return frozenset(found)


def names_of(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Names of parameters, with dots, of a tree."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from names_of(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def sections(
    content: Mapping[Any, Any], above: str = ""
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Pattern of each section of a parameter file, namespaces included, and its parameters."""
    for key, body in content.items():
        pattern = f"{above}/{str(key).strip('/')}"
        if not isinstance(body, dict):
            continue
        if isinstance(body.get("ros__parameters"), dict):
            yield pattern, body["ros__parameters"]
        yield from sections({k: v for k, v in body.items() if k != "ros__parameters"}, pattern)


def matches(pattern: str, full_name: str) -> bool:
    """True of a section for the node of this name; ``**`` is any number of parts, ``*`` one."""
    parts = re.split(r"(\*\*|\*)", pattern)
    wild = {"**": ".*", "*": "[^/]+"}
    expression = "".join(wild.get(part, re.escape(part)) for part in parts)
    return re.fullmatch(expression.replace("/.*/", "/(.*/)?"), full_name) is not None


def whose(content: Mapping[Any, Any], file: Path, full_name: str) -> tuple[str, bool]:
    """What a parameter file is for, in a line, where no section of it is for the node of this
    name, else ""; and whether one is for another node of ours."""
    found = [pattern for pattern, _ in sections(content)]
    if not found or any(matches(pattern, full_name) for pattern in found):
        return "", False
    names = ", ".join(pattern.removeprefix("/") for pattern in found)
    others = our_nodes() - {full_name.rsplit("/", 1)[-1]}
    return (
        f"{file} is for {names}, and this node is {full_name}",
        bool(others & {pattern.rsplit("/", 1)[-1] for pattern in found}),
    )


def named_for(content: Mapping[Any, Any], full_name: str) -> set[str]:
    """Parameters of the sections that are for the node of this name alone."""
    return {
        name
        for pattern, values in sections(content)
        if "*" not in pattern and matches(pattern, full_name)
        for name in names_of(values)
    }


def our_nodes() -> set[str]:
    """Names of the nodes that have a file in config/."""
    return {file.stem for file in (share() / "config").glob("*.yaml") if "." not in file.stem}
