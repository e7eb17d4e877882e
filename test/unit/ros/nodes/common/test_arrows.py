"""What every node is made of stands below every node."""

import ast
from pathlib import Path

import vla_ros

COMMON = Path(vla_ros.__file__).parent / "ros" / "common"
ALLOWED = (
    "vla_ros.core.types",
    "vla_ros.core.pixels",  # imports core alone
    "vla_ros.core.clock",
    "vla_ros.core.errors",
    "vla_ros.core.files",  # imports core alone, as the two below
    "vla_ros.core.resources",
    "vla_ros.core.yaml_files",
    "vla_ros.core.names",  # imports nothing
    "vla_ros.core.signals",
    "vla_ros.core.console",  # imports core alone
    "vla_ros.core.text",
    "vla_ros.core.video",  # imports core alone
    "vla_ros.msg",
    "vla_ros.ros.common",
)


def test_common_imports_only_what_stands_below_every_node():
    for path in COMMON.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vla_ros"):
                named = [f"{node.module}.{alias.name}" for alias in node.names]
                wrong = [name for name in named if not name.startswith(ALLOWED)]
                assert not wrong, f"{path.name} imports {wrong}"
            elif isinstance(node, ast.Import):
                assert not [n.name for n in node.names if n.name.startswith("vla_ros")], path
