"""Size and structure of the package: lines, files, classes, functions and imports of each room.

``make house`` prints the table; with ``--against REVISION`` the same figures of another commit
stand beside it, read from git without checking it out. A room is a folder of ``vla_ros/``; its
arrows are the other rooms that it imports. Only text is read, nothing is imported.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "vla_ros"
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
    if revision is None:
        paths = git("ls-files", "-co", "--exclude-standard", f"{PACKAGE}/*.py").splitlines()
        return {p: (ROOT / p).read_text(encoding="utf-8") for p in paths if (ROOT / p).exists()}
    paths = git("ls-tree", "-r", "--name-only", revision, PACKAGE).splitlines()
    return {path: git("show", f"{revision}:{path}") for path in paths if path.endswith(".py")}


def imported(tree: ast.AST) -> set[str]:
    """Every module of the package that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return {name for name in found if name.startswith(f"{PACKAGE}.")}


def measure(files: dict[str, str], under: tuple[str, ...] = (PACKAGE,)) -> dict[str, Room]:
    """The rooms right below a folder: its folders, and its files each by its name."""
    rooms: dict[str, Room] = {}
    depth = len(under)

    def name_of(parts: tuple[str, ...]) -> str | None:
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


def figures(revision: str | None) -> dict[str, Any]:
    """All figures of one state of the package, as a dictionary that JSON can hold."""
    files = sources(revision)
    rooms, inside = measure(files), measure(files, (PACKAGE, "engine"))
    total = {
        key: sum(getattr(room, key) for room in rooms.values())
        for key in ("lines", "files", "classes", "functions")
    }
    lab = rooms.get("lab", Room()).lines
    return {
        "rooms": {
            name: {**vars(room), "imports": sorted(room.imports)}
            for name, room in sorted(rooms.items())
        },
        "total": total
        | {"rooms": len(rooms), "arrows": sum(len(r.imports) for r in rooms.values())},
        "lines_without_lab": total["lines"] - lab,
        "engine": {"rooms": len(inside), "arrows": sum(len(r.imports) for r in inside.values())},
        "parameters": parameters(revision),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Size and structure of the package, room by room.")
    parser.add_argument("--against", metavar="REVISION", help="print this commit's figures too")
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
        print(
            f"{state['lines_without_lab']:,} lines without lab; {total['rooms']} rooms with"
            f" {total['arrows']} arrows; {inside['rooms']} rooms with {inside['arrows']} arrows in"
            f" engine/; {state['parameters']} parameters of the policy node"
        )
    if args.json:
        print(json.dumps(states))


if __name__ == "__main__":
    main()
