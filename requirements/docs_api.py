"""The page of the Python interface on the documentation site, of the docstrings in the sources.

Apart from docs_site.py: it reads code, that one Markdown. Nothing is imported: the site is built
where neither ROS nor torch is. Standard library only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from sources import ROOT

PAGE = "api.md"  # its place on the site
#: What somebody else's Python has a reason to import: module → for what.
MODULES = {
    "vla_ros.policies.base": "a policy of your own",
    "vla_ros.core.types": "what goes in and out of one",
    "vla_ros.core.action_space": "what the numbers of an action are",
    "vla_ros.core.errors": "errors that end a verb with one line",
    "vla_ros.engine.load": "a checkpoint without ROS",
    "vla_ros.engine.options": "how it is run",
    "vla_ros.engine.families.base": "a family of your own",
    "vla_ros.engine.decoding.base": "a way of decoding of your own",
    "vla_ros.sim.env": "a simulation of your own",
    "vla_ros.data.bags": "recordings",
}
_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?([^`]+)`")


def api_page() -> str:
    """The page, as Markdown."""
    parts = [
        "# Python interface\n",
        "Of the sources' docstrings. Names that begin with `_`, and modules that are not here, may"
        " change without a word. Topics, parameters and messages have pages of their own.\n",
    ]
    for module, purpose in MODULES.items():
        path = ROOT / f"{module.replace('.', '/')}.py"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        parts.append(f"## {module}\n\nFor {purpose}. {_text(tree)}\n")
        parts += _entries(tree.body)
    return "\n".join(parts)


def _entries(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            yield f"### {node.name}\n\n```python\n{_head(node)}\n```\n\n{_text(node)}\n"
            if isinstance(node, ast.ClassDef):
                yield from _members(node)


def _members(of: ast.ClassDef) -> Iterator[str]:
    """Its public methods and properties, a line each."""
    rows = [
        f"- `{_head(one)}`: {_text(one).partition(chr(10))[0]}"
        for one in of.body
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("_") and _text(one)
    ]
    if rows:
        yield "\n".join([*rows, ""])


def _head(node: ast.ClassDef | ast.FunctionDef) -> str:
    """A signature on one line; of a class with its fields."""
    if isinstance(node, ast.FunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"{node.name}({ast.unparse(node.args)}){returns}"
    bases = ", ".join(map(ast.unparse, node.bases))
    fields = [
        f"    {ast.unparse(one)}"
        for one in node.body
        if isinstance(one, (ast.AnnAssign, ast.Assign)) and not ast.unparse(one).startswith("_")
    ]
    return "\n".join([f"class {node.name}" + (f"({bases})" if bases else ""), *fields])


def _text(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    """A docstring as Markdown: names of other objects, and code, between single marks."""
    found = ast.get_docstring(node) or ""
    found = _ROLE.sub(r"`\1`", found).replace("``", "`")
    return re.sub(r"(?<=[^\n]):\n\n(?=    )", ":\n\n", found).replace("<", "&lt;")
