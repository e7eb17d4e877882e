"""Names that a node was given at its start and does not have: refused, with the meant.

ROS passes them over, so that a limit which is misspelt, or stands in a file for another node, is
the default without a word.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from rclpy.node import Node

from vla_ros.core.files import BadFile
from vla_ros.core.resources import share
from vla_ros.core.yaml_files import read_yaml
from vla_ros.ros.common.parameter_files import (
    is_known,
    meant,
    named_for,
    parameters_of_all,
    place_of,
    place_of_error,
    whose,
)


def refuse_unknown(node: Node) -> None:
    """Raise ValueError, one line, for a name that this process was given and the node does not
    have.

    A name that is another node's here (one file may be for all) is a line in the log.
    """
    files = list(_parameter_files(sys.argv))
    others = []
    # What the command line and the files give; rclpy has no public name for it.
    for name in sorted(node._parameter_overrides):
        if node.has_parameter(name) or is_known(name, ()):
            continue
        if name not in parameters_of_all() or any(name in _mine(node, file) for file in files):
            own = [one for one in parameters_of_all() if node.has_parameter(one)]
            mine = node.get_fully_qualified_name()
            where = next(filter(None, (place_of(name, file, mine) for file in files)), "")
            raise ValueError(
                f"{where + ': ' if where else ''}{node.get_name()} has no parameter"
                f" {name!r}{meant(name, own)}"
            )
        others.append(name)
    if others:
        node.get_logger().info(f"given, but of other nodes: {', '.join(others)}")
    for file in files:
        _check_sections(node, file)


def _mine(node: Node, file: Path) -> set[str]:
    """Parameters of a file's sections that are for this node alone."""
    try:
        content = read_yaml(file)
    except (OSError, BadFile):  # rcl has read it: only it knows how
        return set()
    return named_for(content if isinstance(content, dict) else {}, node.get_fully_qualified_name())


def own_parameter_file() -> Path | None:
    """The last of this process's parameter files that somebody wrote; None: there is none."""
    return last_written(_parameter_files(sys.argv))


def last_written(files: Iterable[Path]) -> Path | None:
    """The last of a node's parameter files that somebody wrote: neither one of the package nor what
    `vla-ros up` and launch write of the values that they were given. None: there is none."""
    ours, written = (share() / "config").resolve(), Path(tempfile.gettempdir()).resolve()
    for file in reversed([one.expanduser().resolve() for one in files]):
        if not file.is_relative_to(ours) and file.parent != written:
            return file
    return None


def given_place(text: str) -> str:
    """File and line of the parameter that an error names; "": it is in none of this process's
    files, or the command line gives it."""
    if _given_by_itself(sys.argv) & set(re.findall(r"[\w.]+", text)):
        return ""
    return place_of_error(text, list(_parameter_files(sys.argv)))


def _given_by_itself(arguments: Iterable[str]) -> set[str]:
    """Names of the parameters that -p gives."""
    words, found = iter(arguments), set[str]()
    for word in words:
        if word in ("-p", "--param"):
            found.add(next(words, "").partition(":=")[0].rpartition(":")[2])
    return found


def _check_sections(node: Node, file: Path) -> None:
    """Raise ValueError for a file none of whose sections is for a node of ours."""
    try:
        content = read_yaml(file)
    except (OSError, BadFile):  # rcl has read it: only it knows how
        return
    line, of_ours = whose(
        content if isinstance(content, dict) else {}, file, node.get_fully_qualified_name()
    )
    if of_ours:
        node.get_logger().info(f"nothing in it applies here: {line}")
    elif line:
        raise ValueError(f"{line}: name the section {node.get_name()} or /**")


def _parameter_files(arguments: Iterable[str]) -> Iterator[Path]:
    words = iter(arguments)
    for word in words:
        if word == "--params-file":
            yield Path(next(words, ""))
