"""The surface of a ROS 2 distro's rclpy: names and signatures, no code."""

from __future__ import annotations

import ast
import json
from pathlib import Path

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


def module_of(tree: ast.Module) -> dict[str, object]:
    """What an import of the module finds."""
    names: dict[str, object] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names[node.name] = {"class": class_of(node)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names[node.name] = {"function": signature(node)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            where = (getattr(node, "module", None) or "") + "."
            for alias in node.names:
                names.setdefault(alias.asname or alias.name, {"from": where + alias.name})
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    names[target.id] = {}
    return names


def write_surface(folder: Path, distro: str, to: Path) -> None:
    """Of the Python package ``rclpy`` in ``folder``, a checkout of rclpy's branch of ``distro``."""
    modules = {}
    for path in sorted(folder.rglob("*.py")):
        name = ".".join(("rclpy", *path.relative_to(folder).with_suffix("").parts))
        modules[name.removesuffix(".__init__")] = module_of(ast.parse(path.read_text("utf-8")))
    to.write_text(json.dumps({"distro": distro, "modules": modules}), "utf-8")
