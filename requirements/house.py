"""Size and structure of the project: lines, files, classes, functions and imports of each room.

``make house`` prints the table; with ``--against REVISION`` the same figures of another commit
stand before it, read from git without checking it out. A room is a folder of ``vla_ros/``, and the
lab is one; its arrows are the other rooms that it imports. A circle is a set of files that import
each other. ``--max vla_ros=65000`` fails where more lines are there. Only text is read.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, LAB = "vla_ros", "vla_ros_lab"
GENERATED = ("msg", "srv", "action")
PARAMETERS = "config/policy.yaml"  # written from the policy node's table: a line a parameter


@dataclass
class Room:
    """Counts of one folder of the package; lines are physical lines."""

    lines: int = 0
    files: int = 0
    classes: int = 0
    functions: int = 0
    imports: set[str] = field(default_factory=set)


def git(*words: str) -> str:
    """What git prints."""
    command = ["git", *words]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def sources(revision: str | None) -> dict[str, str]:
    """Path -> text of every Python file of the package, of the work tree or of a commit."""
    return {**_read(revision, f"{PACKAGE}/"), **_read(revision, f"lab/{LAB}/", drop="lab/")}


def _read(revision: str | None, folder: str, drop: str = "") -> dict[str, str]:
    """The Python files of a folder, by their paths without ``drop``."""
    if revision is None:
        paths = git("ls-files", "-co", "--exclude-standard", f"{folder}*.py").splitlines()
        texts = {p: (ROOT / p).read_text(encoding="utf-8") for p in paths if (ROOT / p).exists()}
    else:
        paths = git("ls-tree", "-r", "--name-only", revision, folder).splitlines()
        texts = {p: git("show", f"{revision}:{p}") for p in paths if p.endswith(".py")}
    return {path.removeprefix(drop): text for path, text in texts.items()}


def module_of(path: str) -> str:
    """vla_ros/core/types.py -> vla_ros.core.types"""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def circles(files: dict[str, str]) -> list[set[str]]:
    """Sets of modules that import each other, also inside functions: Tarjan's algorithm."""
    known = {module_of(path) for path in files}

    def held(name: str) -> str:
        while name and name not in known:
            name = name.rpartition(".")[0]
        return name

    arrows = {
        module_of(path): {held(name) for name in imported(ast.parse(text))} - {"", PACKAGE, LAB}
        for path, text in files.items()
    }
    found: list[set[str]] = []
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(one: str) -> None:
        order[one] = low[one] = len(order)
        stack.append(one)
        for other in arrows[one] - {one}:
            if other not in order:
                visit(other)
            if other in stack:
                low[one] = min(low[one], low[other])
        if low[one] == order[one]:
            circle = set(stack[stack.index(one) :])
            del stack[stack.index(one) :]
            if len(circle) > 1:
                found.append(circle)

    for one in arrows:
        if one not in order:
            visit(one)
    return found


def imported(tree: ast.AST) -> set[str]:
    """Every module of the project that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return {name for name in found if name.startswith((f"{PACKAGE}.", f"{LAB}."))}


def measure(files: dict[str, str], under: tuple[str, ...] = (PACKAGE,)) -> dict[str, Room]:
    """The rooms right below a folder: its folders, and its files each by its name."""
    rooms: dict[str, Room] = {}
    depth = len(under)

    def name_of(parts: tuple[str, ...]) -> str | None:
        if parts[0] == LAB and depth == 1:
            return "lab"
        if parts[:depth] != under or len(parts) <= depth or parts[depth] in GENERATED:
            return None
        return parts[depth].removesuffix(".py")

    known = {name_of(Path(path).parts) for path in files}
    for path, text in files.items():
        name = name_of(Path(path).parts)
        if name is None or name in ("__init__", "__main__"):
            continue
        room, tree = rooms.setdefault(name, Room()), ast.parse(text)
        kinds = Counter(type(node) for node in ast.walk(tree))
        room.lines += text.count("\n")
        room.files += 1
        room.classes += kinds[ast.ClassDef]
        room.functions += kinds[ast.FunctionDef] + kinds[ast.AsyncFunctionDef]
        targets = {name_of(tuple(module.split("."))) for module in imported(tree)}
        room.imports |= {t for t in targets if t and t in known and t not in (name, "__init__")}
    return rooms


def parameters(revision: str | None) -> int:
    """Parameters of the policy node, as its file of defaults lists them."""
    if revision is None:
        text = (ROOT / PARAMETERS).read_text(encoding="utf-8")
    else:
        text = git("show", f"{revision}:{PARAMETERS}")
    return len(re.findall(r"^ {4,}[a-z][\w.]*: \S", text, flags=re.MULTILINE))


def verbs(files: dict[str, str]) -> int:
    """Verbs of a robot's install: rows of the table of the command line."""
    return len(re.findall(r'^    "[a-z]+": "', files["vla_ros/cli/arguments.py"], re.MULTILINE))


def options(files: dict[str, str]) -> int:
    """Options of the engine: fields of their class."""
    return len(re.findall(r"^    \w+: .* = _option\(", files[f"{PACKAGE}/engine/options.py"], re.M))


def figures(revision: str | None) -> dict[str, Any]:
    """All figures of one state of the package, as a dictionary that JSON can hold."""
    files = sources(revision)
    rooms, inside = measure(files), measure(files, (PACKAGE, "engine"))
    total = {
        key: sum(getattr(room, key) for room in rooms.values())
        for key in ("lines", "files", "classes", "functions")
    }
    lab = rooms.get("lab", Room())
    beside = {
        name: sum(
            text.count("\n") for folder in folders for text in _read(revision, folder).values()
        )
        for name, folders in {"test": ("test/", "lab/test/"), "tools": ("tools/",)}.items()
    }
    return {
        "rooms": {
            name: {**vars(room), "imports": sorted(room.imports)}
            for name, room in sorted(rooms.items())
        },
        "total": total
        | {"rooms": len(rooms), "arrows": sum(len(r.imports) for r in rooms.values())},
        "vla_ros": {"lines": total["lines"] - lab.lines, "files": total["files"] - lab.files},
        "lab": {"lines": lab.lines, "files": lab.files},
        "beside": beside,
        "circles": sorted(map(len, circles(files)), reverse=True),
        "verbs": verbs(files),
        "options": options(files),
        "engine": {"rooms": len(inside), "arrows": sum(len(r.imports) for r in inside.values())},
        "parameters": parameters(revision),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Size and structure of the package, room by room.")
    parser.add_argument("--against", metavar="REVISION", help="print this commit's figures too")
    parser.add_argument("--max", nargs="*", default=[], metavar="ROOM=LINES")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    args = parser.parse_args()
    revisions = [args.against, None] if args.against else [None]
    states = {revision or "now": figures(revision) for revision in revisions}
    for title, state in states.items():
        print(f"\n{title}")
        print(f"{'room':<12}{'lines':>8}{'files':>7}{'classes':>9}{'functions':>11}  imports")
        for name, room in [*state["rooms"].items(), ("all", state["total"])]:
            print(
                f"{name:<12}{room['lines']:>8,}{room['files']:>7,}{room['classes']:>9,}"
                f"{room['functions']:>11,}  {' '.join(room.get('imports', ()))}"
            )
        total, inside = state["total"], state["engine"]
        own, lab, beside = state["vla_ros"], state["lab"], state["beside"]
        print(
            f"vla_ros {own['lines']:,} lines in {own['files']} files, lab {lab['lines']:,} in"
            f" {lab['files']}; tests {beside['test']:,}, tools {beside['tools']:,}\n"
            f"{len(state['circles'])} circles {state['circles'] or ''}; {total['rooms']} rooms with"
            f" {total['arrows']} arrows; {inside['rooms']} with {inside['arrows']} in engine/\n"
            f"{state['verbs']} verbs of a robot's install, {state['options']} engine options,"
            f" {state['parameters']} parameters of the policy node"
        )
    if args.json:
        print(json.dumps(states))
    over = []
    for word in args.max:
        room, _, most = word.partition("=")
        now = states["now"]
        lines = now.get(room, now["rooms"].get(room, {})).get("lines", 0)
        if lines > int(most):
            over.append(f"{room} has {lines:,} lines, {int(most):,} are meant: say what can go")
    sys.exit("\n".join(over) or 0)


if __name__ == "__main__":
    main()
