"""No node of ours calls something by a name that rclpy's own node has for itself."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

rclpy_node = pytest.importorskip("rclpy.node", reason="rclpy is not installed: no ROS 2 here")

import rclpy.lifecycle

import vla_ros.ros.nodes

FILES = sorted(Path(vla_ros.ros.nodes.__path__[0]).glob("*/node.py"))


def assigned(source: str, of: str = "") -> set[str]:
    """What ``self`` is given; in classes whose base is ``of``, if that is said."""
    found = set()
    for part in ast.walk(ast.parse(source)):
        if isinstance(part, ast.ClassDef) and (not of or of in map(ast.unparse, part.bases)):
            for one in ast.walk(part):
                target = isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)
                if target and isinstance(one.value, ast.Name) and one.value.id == "self":
                    found.add(one.attr)
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_a_node_leaves_rclpy_s_names_alone(file: Path) -> None:
    """`/view` answered no question about its parameters."""
    taken = assigned(inspect.getsource(rclpy_node)) | assigned(inspect.getsource(rclpy.lifecycle))
    assert "_parameters" in taken
    source = file.read_text(encoding="utf-8")
    ours = assigned(source, "Node") | assigned(source, "LifecycleNode")
    assert not ours & taken
