"""What the package declares, read where it stands: parameters, topics, interfaces, launch
arguments, targets of the Makefile. The commands of the documentation are held to it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import yaml

from support.docs.pages import ROOT
from vla_ros.ros.bringup.graph_file import GraphSpec

LAUNCH_TABLES = ("OVERRIDES", "TOPICS", "OPTIONS")


@cache
def parameters(node: str) -> dict[str, tuple[str, ...]]:
    """The parameters of a node and the choices of each, by docs/reference/parameters.md, which a
    test holds to the nodes' tables, and by the parameter file; empty: there is no such node."""
    page = (ROOT / "docs/reference/parameters.md").read_text(encoding="utf-8")
    rows = page.partition(f"\n## {node}\n")[2].partition("\n## ")[0]
    found = {
        name: tuple(re.findall(r"`([^`]+)`", allowed))
        for name, allowed in re.findall(r"^\| `([^`]+)` \| [^|]* \| ([^|]*) \|", rows, re.M)
    }
    file = ROOT / "config" / f"{node}.yaml"
    if file.is_file():
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        body = next(iter(content.values()))["ros__parameters"]
        found = {**dict.fromkeys(_flat(body), ()), **found}
    return found


def _flat(values: dict, prefix: str = "") -> list[str]:
    return [
        name
        for key, value in values.items()
        for name in (_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key])
    ]


@cache
def names(folder: str = "") -> frozenset[str]:
    """Every string in the code of the nodes that can be the name of a topic or service."""
    found: set[str] = set()
    for file in (ROOT / "vla_ros/ros/nodes" / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.JoinedStr):  # f"~/{arm}twist", where arm may be empty
                fixed = (p.value for p in node.values if isinstance(p, ast.Constant))
                found.add("".join(map(str, fixed)))
    return frozenset(found)


def is_name(name: str) -> bool:
    """Whether a topic, service or action of this name is one of ours: /policy/stop, image."""
    short = name.removeprefix("/")
    node, _, own = short.partition("/")
    private = (
        bool(own) and (ROOT / "vla_ros/ros/nodes" / node).is_dir() and f"~/{own}" in names(node)
    )
    return private or bool({short, f"/{short}"} & names())


@cache
def interface(kind: str) -> tuple[str, ...] | None:
    """The fields of `vla_ros/msg/X` (of an action or service: of the goal or request);
    None: there is none. Of other packages only what the pages use is known."""
    if kind == "std_msgs/msg/String":
        return ("data",)
    file = ROOT / f"{kind.removeprefix('vla_ros/')}.{kind.split('/')[1] if '/' in kind else ''}"
    if not kind.startswith("vla_ros/") or not file.is_file():
        return None
    asked = file.read_text(encoding="utf-8").partition("\n---")[0]
    return tuple(re.findall(r"^[\w/\[\]<=]+ (\w+)(?!.*=.*#)", asked, re.MULTILINE))


def message_fields() -> frozenset[str]:
    """The fields of all our messages."""
    files = (ROOT / "msg").glob("*.msg")
    return frozenset(field for f in files for field in interface(f"vla_ros/msg/{f.stem}") or ())


@cache
def launch_arguments(file: str) -> dict[str, tuple[str, ...]]:
    """The arguments of a launch file and of those that it includes, with the choices of each;
    read from the source, since launch need not be installed."""
    found: dict[str, tuple[str, ...]] = {}
    tree = ast.parse((ROOT / "launch" / file).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and str(node.value).endswith(".launch.py"):
            if isinstance(node.value, str) and (ROOT / "launch" / node.value).is_file():
                found = {**launch_arguments(node.value), **found}
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "DeclareLaunchArgument":
            if node.args and isinstance(node.args[0], ast.Constant):
                found[node.args[0].value] = _choices(node)
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in LAUNCH_TABLES:
            found = {**found, **_table(node.value)}
    return found


def _choices(call: ast.Call) -> tuple[str, ...]:
    for keyword in call.keywords:
        if keyword.arg == "choices" and isinstance(keyword.value, ast.List):
            return tuple(e.value for e in keyword.value.elts if isinstance(e, ast.Constant))
    return ()


def _table(value: ast.expr) -> dict[str, tuple[str, ...]]:
    """The rows of OVERRIDES, TOPICS or OPTIONS: name → choices."""
    if isinstance(value, ast.Dict):
        return {key.value: () for key in value.keys if isinstance(key, ast.Constant)}
    assert isinstance(value, ast.Tuple)
    found: dict[str, tuple[str, ...]] = {}
    for row in value.elts:
        if isinstance(row, ast.Constant):
            found[row.value] = ()
        elif isinstance(row, ast.Tuple) and isinstance(row.elts[0], ast.Constant):
            last = row.elts[-1]
            options = last.elts if isinstance(last, ast.Tuple) else []
            found[row.elts[0].value] = tuple(
                option.value for option in options if isinstance(option, ast.Constant)
            )
    return found


@cache
def make_targets() -> frozenset[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^([a-z-]+):(?!=)", makefile, re.MULTILINE))


@cache
def make_variables() -> frozenset[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return frozenset(re.findall(r"\$\(([A-Z_]+)\)", makefile))


def graph_nodes(graph: str) -> dict[str, str]:
    """The nodes of a shipped graph: name → executable."""
    return {node.name: node.executable for node in GraphSpec.load(graph).nodes}


def is_shipped(checkpoint: str) -> bool:
    return (ROOT / "vla_ros/shipped" / checkpoint.removeprefix("shipped:")).is_dir()


def compose_variables() -> frozenset[str]:
    """What docker/compose*.yaml take from the environment."""
    files = (ROOT / "docker").glob("compose*.yaml")
    texts = (file.read_text(encoding="utf-8") for file in files)
    return frozenset(name for text in texts for name in re.findall(r"\$\{(\w+)", text))


def dockerfile_arguments(file: str) -> frozenset[str] | None:
    path = Path(ROOT / file)
    if not path.is_file():
        return None
    return frozenset(re.findall(r"^ARG (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
