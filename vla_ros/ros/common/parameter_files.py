"""Parameter files of ROS by their text: sections, names, lines; which names the nodes here have.

Needs no ROS: `vla-ros up` refuses a name before anything starts, a node when it starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vla_ros.core.files import MB, read_text
from vla_ros.core.names import nearest
from vla_ros.core.resources import share
from vla_ros.core.yaml_files import read_yaml

#: Parameters that rclpy declares by itself, or only in some releases.
_ROS = re.compile(r"use_sim_time|start_type_description_service|qos_overrides\..*")
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


def place_of(name: str, file: Path) -> str:
    """File and line of a parameter's name, "" where the file has none of it."""
    last = re.escape(name.rsplit(".", 1)[-1])
    key = re.compile(rf"(^|[\s{{,.\"']){last}[\"']?\s*:(\s|$)")
    for number, line in enumerate(read_text(file, MB).splitlines(), 1):
        if key.search(line.partition("#")[0]):
            return f"{file}, line {number}"
    return ""


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
