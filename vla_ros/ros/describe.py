"""The nodes' parameter tables as files: `python -m vla_ros.ros.describe` writes
docs/reference/parameters.md and config/policy.yaml; a test holds them to the tables."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from vla_ros.engine.options import OPTIONS, extra_options
from vla_ros.ros.common.parameters import Parameter
from vla_ros.ros.nodes.bridge import node as bridge
from vla_ros.ros.nodes.monitor import node as monitor
from vla_ros.ros.nodes.policy import parameters as policy_parameters
from vla_ros.ros.nodes.rerun import node as rerun
from vla_ros.ros.nodes.view import node as view

_HEAD = """# Parameters

Written by `python -m vla_ros.ros.describe`, as config/policy.yaml is.

Parameters are given at start, in a parameter file or with `-p`. Those of the policy node are read
at configure: they may be set again after cleanup, and what they cannot mean together is a configure
that fails with the reason. Those marked *live* may also be set while the node runs; a bad value is
refused with the reason. Defaults are in `config/`.

A name that no node has, and a value that it cannot have, is refused with its file and line: by
`vla-ros up` before anything starts, by a node of `ros2 launch` or `ros2 run` as it starts. In a
file ROS takes no whole number for a fraction: write 30.0.
"""
_OPTIONS = """### engine_options

What the parameters above leave out of the engine's options, with `engine_options: [gamma=3]`;
`vla-ros bench`, `verify`, `eval` and `demo` take some of them as flags, such as `--num-threads`.
The last rows are those of decodings that come with the lab (`pip install ./lab`).
"""
_YAML = """# Parameters of the policy node with their defaults, written by `python -m
# vla_ros.ros.describe`. `ros2 param describe /policy NAME` gives the ranges. /**: whatever the
# node's name and namespace are.
/**:
  ros__parameters:
"""
WIDTH = 100


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"`{value}`" if value else "empty"
    if isinstance(value, Sequence):
        if isinstance(value[0], str):
            return ", ".join(f"`{v}`" for v in value) if any(value) else "empty"
        return "[" + ", ".join(f"{v:g}" for v in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _allowed(row: Parameter) -> str:
    if row.choices:
        return ", ".join(f"`{choice}`" for choice in row.choices if choice)
    if row.low is not None and row.high is not None:
        return f"{row.low:g} to {row.high:g}"
    return ""


def table(rows: Sequence[Parameter]) -> str:
    """One Markdown table."""
    lines = ["| name | default | allowed | meaning |", "|---|---|---|---|"]
    for row in rows:
        text = row.text if row.fixed else f"*live*: {row.text}"
        lines.append(f"| `{row.name}` | {_value(row.default)} | {_allowed(row)} | {text} |")
    return "\n".join(lines)


def options() -> str:
    """The Markdown table of what goes through engine_options."""
    lines = ["| name | default | allowed | policies | meaning |", "|---|---|---|---|---|"]
    here = [OPTIONS[name] for name in policy_parameters.IN_ENGINE_OPTIONS]
    for option in (*here, *extra_options().values()):
        allowed = ", ".join(f"`{choice}`" for choice in option.choices if choice)
        if option.low is not None and option.high is not None:
            allowed = f"{option.low:g} to {option.high:g} {option.unit}".rstrip()
        default = _value(option.default or _EMPTY[type(option.default)])
        lines.append(
            f"| `{option.name}` | {default} | {allowed}"
            f" | {option.of.removesuffix(' policies')} | {option.text} |"
        )
    return "\n".join(lines)


#: What stands for an option that is not given, as it is written in a table.
_EMPTY: dict[type, object] = {bool: False, int: 0, float: 0.0, str: "", tuple: ""}


def policy_yaml() -> str:
    """config/policy.yaml: every parameter with its default, its text above it."""
    lines = []
    for name, (about, rows) in policy_parameters.GROUPS.items():
        lines += ["\0", *textwrap.wrap(f"------------ {name}: {about}", WIDTH - 6)]
        for row in rows:
            text = (
                f"{row.text} ({', '.join(filter(None, row.choices))})" if row.choices else row.text
            )
            lines += [*textwrap.wrap(text, WIDTH - 6), f"\0{row.name}: {json.dumps(row.default)}"]
    words = (line[1:] if line.startswith("\0") else f"# {line}" for line in lines)
    return _YAML + "".join(f"    {line}".rstrip() + "\n" for line in words)


def document() -> str:
    """The whole page."""
    parts = [_HEAD, "## policy\n"]
    for name, (about, rows) in policy_parameters.GROUPS.items():
        parts.append(f"### {name}\n\n{about}\n\n{table(rows)}\n")
    parts.append(f"{_OPTIONS}\n{options()}\n")
    for name, rows in (
        ("bridge", bridge.TABLE),
        ("monitor", monitor.TABLE),
        ("view", view.TABLE),
        ("rerun", rerun.TABLE),
    ):
        parts.append(f"## {name}\n\n{table(rows)}\n")
    return "\n".join(parts)


def main(arguments: Sequence[str]) -> int:
    """Write both files into the checkout; ``--check``: only say, by status 1, which are not as
    they would be written."""
    root, stale = Path(__file__).resolve().parents[2], []
    for path, text in (("docs/reference/parameters.md", document()),
                       ("config/policy.yaml", policy_yaml())):  # fmt: skip
        if (root / path).read_text() != text:
            stale.append(path)
            if "--check" not in arguments:
                (root / path).write_text(text)
    print("\n".join(stale))
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
