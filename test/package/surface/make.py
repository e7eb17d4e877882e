"""The surface of a ROS 2 distro: names and signatures of its Python packages, no code.

    cd test && python -m package.surface.make lyrical FOLDER...

writes ``lyrical.json`` beside this file, from the folders of packages in the distro's own sources:
``rclpy/rclpy``, ``launch/launch``, ... Of them it keeps the modules that vla_ros imports, and what
those take from others: run it again when vla_ros uses another module. Private names are left out.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
ALWAYS = {"rclpy", "rclpy.node", "rclpy.lifecycle.node", "rclpy.executors"}  # check.py's receivers

Signature = dict[str, object]


def signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Signature:
    """Names that a caller can give by place and by keyword, how many it must give."""
    arguments = function.args
    places = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    required = len(places) - len(arguments.defaults)
    defaults = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    keywords = {a.arg: default is None for a, default in defaults}
    return {
        "places": places,
        "required": required,
        "keywords": keywords,  # name: must be given
        "any": [arguments.vararg is not None, arguments.kwarg is not None],
    }


def class_of(node: ast.ClassDef) -> dict[str, object]:
    """Bases, methods with signatures, and other names."""
    methods, others = {}, []
    for part in node.body:
        if _private(getattr(part, "name", "")):
            continue
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = {ast.unparse(d) for d in part.decorator_list}
            if "property" in decorators or any(d.endswith(".setter") for d in decorators):
                others.append(part.name)
            else:
                methods[part.name] = signature(part)
        elif isinstance(part, ast.Assign):
            others += [t.id for t in part.targets if isinstance(t, ast.Name)]
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            others.append(part.target.id)
    return {"bases": [ast.unparse(b) for b in node.bases], "methods": methods, "others": others}


def _private(name: str) -> bool:
    return name.startswith("_") and name != "__init__"


def module_of(tree: ast.Module, name: str, is_package: bool) -> dict[str, object]:
    """What an import of the module ``name`` finds."""
    names: dict[str, object] = {}
    for node in _statements(tree.body):
        if isinstance(node, ast.ClassDef):
            names[node.name] = {"class": class_of(node)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names[node.name] = {"function": signature(node)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            where = _origin(node, name, is_package)
            for alias in node.names:
                names.setdefault(alias.asname or alias.name, {"from": where + alias.name})
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    names.setdefault(target.id, {})
    return {name: entry for name, entry in names.items() if not _private(name)}


def _statements(body: list[ast.stmt]) -> Iterable[ast.stmt]:
    """Those of a module, and those in its conditions and tries."""
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from _statements([*node.body, *node.orelse])
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)
        else:
            yield node


def _origin(node: ast.Import | ast.ImportFrom, name: str, is_package: bool) -> str:
    """The module that names are imported from, with a dot behind it; of `import x` nothing."""
    if isinstance(node, ast.Import):
        return ""
    parts = name.split(".")[: len(name.split(".")) - node.level + is_package] if node.level else []
    return ".".join([*parts, *filter(None, [node.module])]) + "."


def used() -> set[str]:
    """The modules that our programs import from."""
    found = set()
    for path in programs():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def programs() -> list[Path]:
    """What of this checkout is compared: the package, its launch files, the messages' builder."""
    made = {ROOT / "vla_ros" / kind for kind in ("msg", "srv", "action")}
    own = [p for p in sorted((ROOT / "vla_ros").rglob("*.py")) if not made & set(p.parents)]
    return [*own, *sorted((ROOT / "launch").glob("*.py")), ROOT / "rosidl_build.py"]


def kept(modules: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The modules that we import, whole, and the names that they take from the others."""
    out = {name: dict(modules[name]) for name in (used() | ALWAYS) & set(modules)}
    wanted = [name for module, names in out.items() for name in _origins(module, names, set(names))]
    while wanted:
        module, _, last = wanted.pop().rpartition(".")
        if last in modules.get(module, {}) and last not in out.setdefault(module, {}):
            out[module][last] = modules[module][last]
            wanted += _origins(module, modules[module], {last})
    return {name: names for name, names in out.items() if names or name in modules}


def _origins(module: str, names: dict[str, Any], of: set[str]) -> list[str]:
    """Where these names of a module come from: imports, and bases of classes."""
    found = []
    for name in of:
        entry = names[name]
        found += [entry["from"]] if "from" in entry else []
        found += [f"{module}.{base}" for base in entry.get("class", {}).get("bases", [])]
    return found


def write_surface(folders: Iterable[Path], distro: str, to: Path) -> None:
    """Of the Python packages in ``folders``, which have their names, in sources of ``distro``."""
    modules = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            place = path.relative_to(folder.parent).with_suffix("").parts
            is_package = place[-1] == "__init__"
            name = ".".join(place[:-1] if is_package else place)
            modules[name] = module_of(ast.parse(path.read_text("utf-8")), name, is_package)
    to.write_text(_text(distro, kept(modules)), "utf-8")


def _text(distro: str, modules: dict[str, dict[str, Any]]) -> str:
    """As JSON, a name a line. Where a name of another package comes from is left out."""
    own = {name.partition(".")[0] for name in modules}
    parts = []
    for module, names in sorted(modules.items()):
        lines = []
        for name, entry in sorted(names.items()):
            foreign = "from" in entry and entry["from"].partition(".")[0] not in own
            said = json.dumps({} if foreign else entry, separators=(",", ":"), sort_keys=True)
            lines.append(f"{json.dumps(name)}:{said}")
        parts.append(f"{json.dumps(module)}:{{\n" + ",\n".join(lines) + "\n}")
    return f'{{"distro":{json.dumps(distro)},"modules":{{\n' + ",\n".join(parts) + "\n}}\n"


if __name__ == "__main__":
    write_surface(map(Path, sys.argv[2:]), sys.argv[1], HERE / f"{sys.argv[1]}.json")
