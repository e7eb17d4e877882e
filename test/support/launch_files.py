"""Launch files as text, for where launch is not installed."""

import ast

from vla_ros.core.resources import share


def tree(name: str) -> ast.Module:
    return ast.parse((share() / "launch" / name).read_text(encoding="utf-8"))


def own_arguments(name: str) -> set[str]:
    """What a launch file declares by itself, in its tables too."""
    found = {
        node.args[0].value
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "DeclareLaunchArgument"
        and isinstance(node.args[0], ast.Constant)
    }
    for node in tree(name).body:
        if not isinstance(node, ast.Assign):
            continue
        table = getattr(node.targets[0], "id", "")
        if table in ("OVERRIDES", "OPTIONS"):
            found |= {getattr(row, "elts", [row])[0].value for row in node.value.elts}
        elif table == "TOPICS" and isinstance(node.value, ast.Dict):
            found |= {key.value for key in node.value.keys}
        elif table == "TOPICS":
            found |= {cell.value for cell in node.value.elts[:3]}
    return found
