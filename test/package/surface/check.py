"""Find what a program uses of a distro's packages that they do not have.

Judged without running anything: imports; calls of what was imported; calls of a node's and an
executor's methods, where the program names them `node`, `executor` or, in a class of
nodes, `self`. What is guarded is not judged: imports under TYPE_CHECKING, blocks under `if
hasattr(...)`; of a try that expects ImportError, what comes after it is, where the try would fail.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NODE = "rclpy.lifecycle.node.LifecycleNode"
RECEIVERS = {"node": NODE, "executor": "rclpy.executors.Executor"}
NODE_CLASSES = {"Node": "rclpy.node.Node", "LifecycleNode": NODE}
Entry = dict[str, Any]


class Surface:
    """Names and signatures of one distro's packages, as make.py wrote them."""

    def __init__(self, path: Path) -> None:
        content = json.loads(path.read_text())
        self.distro = content["distro"]
        self._modules: dict[str, Entry] = content["modules"]
        self._packages = {name.partition(".")[0] for name in self._modules}

    def speaks_of(self, source: str) -> bool:
        """A program that may use something of it."""
        return "node." in source or any(package in source for package in self._packages)

    def covers(self, name: str) -> bool:
        """A dotted name in one of the packages."""
        return name.partition(".")[0] in self._packages

    def find(self, name: str) -> Entry | None:
        """What a dotted name is; None: nothing. {}: something without a signature."""
        if name in self._modules or not self.covers(name):
            return {}
        module, _, last = name.rpartition(".")
        found = self._modules.get(module, {}).get(last)
        return self.find(found["from"]) if found and "from" in found else found

    def has(self, module: str) -> bool:
        """There is a module of this dotted name."""
        return module in self._modules

    def method(self, kind: str, name: str) -> Entry | None:
        """Of a class or one of its bases; None: it has no such method."""
        for found in self._line(kind):
            if name in found["methods"]:
                return {"function": found["methods"][name], "bound": True}
            if name in found["others"]:
                return {}
        return None

    def _line(self, kind: str) -> Iterator[Entry]:
        """The class and its bases."""
        found = self.find(kind)
        if found and "class" in found:
            yield found["class"]
            for base in found["class"]["bases"]:
                yield from self._line(self._origin(f"{kind.rpartition('.')[0]}.{base}"))

    def _origin(self, name: str) -> str:
        """Where what a module calls so is defined."""
        module, _, last = name.rpartition(".")
        found = self._modules.get(module, {}).get(last) or {}
        return self._origin(found["from"]) if "from" in found else name

    def calling(self, entry: Entry) -> Entry | None:
        """The signature of a call; None: not known."""
        if "function" in entry:
            return entry
        if "class" in entry:
            made = entry["class"]["methods"].get("__init__")
            return {"function": made, "bound": True} if made else None
        return None


def misfit(signature: Entry, bound: bool, call: ast.Call) -> str:
    """Why a call does not fit; empty: it does, or nobody can tell."""
    starred = any(isinstance(a, ast.Starred) for a in call.args)
    if starred or any(k.arg is None for k in call.keywords):
        return ""
    places = signature["places"][1:] if bound else signature["places"]
    required = signature["required"] - bound
    any_place, any_keyword = signature["any"]
    given = {k.arg for k in call.keywords}
    if len(call.args) > len(places) and not any_place:
        return f"takes {len(places)} arguments by place, not {len(call.args)}"
    unknown = given - set(places) - set(signature["keywords"])
    if unknown and not any_keyword:
        return f"has no argument {sorted(unknown)[0]!r}"
    missing = set(places[len(call.args) : required]) - given
    missing |= {name for name, needed in signature["keywords"].items() if needed} - given
    return f"needs {sorted(missing)[0]!r}" if missing else ""


class Reader(ast.NodeVisitor):
    """Reads one module; ``found`` is what the distro lacks, "line: name: why"."""

    def __init__(self, surface: Surface, tree: ast.Module) -> None:
        self.surface = surface
        self.found: list[str] = []
        self._names: dict[str, str] = {}  # local name: what it is
        self._own: list[tuple[str, set[str]]] = []  # class of nodes we are in, its own names
        self.visit(tree)

    def _say(self, node: ast.AST, name: str, why: str) -> None:
        self.found.append(f"{node.lineno}: {name}: {why}")

    def visit_If(self, node: ast.If) -> None:
        text = ast.unparse(node.test)
        if "TYPE_CHECKING" not in text and "hasattr(" not in text:
            self.generic_visit(node)
        else:
            for part in node.orelse:
                self.visit(part)

    def visit_Try(self, node: ast.Try) -> None:
        """What is tried may lack, if what is done then does not."""
        if not any("ImportError" in ast.unparse(h.type) for h in node.handlers if h.type):
            self.generic_visit(node)
            return
        before = len(self.found)
        for part in node.body:
            self.visit(part)
        if len(self.found) > before:
            del self.found[before:]
            for handler in node.handlers:
                self.generic_visit(handler)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if self.surface.covers(alias.name):
                self._names[alias.asname or alias.name] = alias.name
                if not self.surface.has(alias.name):
                    self._say(node, alias.name, "no such module")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if not self.surface.covers(node.module or ""):
            return
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            self._names[alias.asname or alias.name] = name
            if self.surface.find(name) is None:
                self._say(node, name, "no such name")

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        kinds = [NODE_CLASSES[b] for b in map(ast.unparse, node.bases) if b in NODE_CLASSES]
        if not kinds:
            self.generic_visit(node)
            return
        own = {n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
        own |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)
                and isinstance(n.ctx, ast.Store) and ast.unparse(n.value) == "self"}  # fmt: skip
        self._own.append((kinds[0], own))
        self.generic_visit(node)
        self._own.pop()

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        name, entry = self._called(node.func)
        if entry is None:
            self._say(node, name, f"not in {self.surface.distro}")
        elif calling := self.surface.calling(entry):
            why = misfit(calling["function"], calling.get("bound", False), node)
            if why:
                self._say(node, name, why)

    def _called(self, function: ast.expr) -> tuple[str, Entry | None]:
        text = ast.unparse(function)
        if text in self._names:
            return text, self.surface.find(self._names[text]) or {}  # said at its import
        if not isinstance(function, ast.Attribute):
            return text, {}
        receiver = ast.unparse(function.value)
        module = self._names.get(receiver, "")
        if self.surface.has(module):
            return text, self.surface.find(f"{module}.{function.attr}")
        if receiver == "self" and self._own and function.attr not in self._own[-1][1]:
            return text, self.surface.method(self._own[-1][0], function.attr)
        kind = RECEIVERS.get(receiver.rpartition(".")[2].lstrip("_"))
        if kind is None or not self._knows(kind):
            return text, {}
        return text, self.surface.method(kind, function.attr)

    def _knows(self, kind: str) -> bool:
        """The module imports such a class: what it names so is rclpy's, not its own."""
        rooms = ("rclpy.node", "rclpy.lifecycle") if kind == NODE else ("rclpy.executors",)
        return any(name.startswith(rooms) for name in self._names.values())


def lacking(surface: Surface, source: str) -> list[str]:
    """What this program uses and the distro has not."""
    return Reader(surface, ast.parse(source)).found
