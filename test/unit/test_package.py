"""Rules of the package as a whole; who may import whom is import-linter's, in pyproject.toml."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import vla_ros
from support.missing import LAB, import_without

PACKAGE = Path(vla_ros.__file__).parent
GENERATED = {"msg", "srv", "action"}  # built from the interface files


def files() -> list[Path]:
    """Every Python file of the package but the generated ones."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return [path for path in paths if path.relative_to(PACKAGE).parts[0] not in GENERATED]


def test_the_command_line_starts_without_ros_or_torch(tmp_path):
    """`vla-ros --help` must work where only numpy and PyYAML are."""
    heavy = ("rclpy", "torch", "mujoco", "transformers", "matplotlib")
    import_without(tmp_path, ["vla_ros.cli.main", "vla_ros.ros.bringup.graph_file"], heavy)


def test_the_verbs_of_a_robot_need_nothing_of_the_lab(tmp_path):
    verbs = ("demo", "up", "doctor", "record", "replay", "export", "convert")
    import_without(tmp_path, [f"vla_ros.cli.{verb}" for verb in verbs], LAB)


def test_the_nodes_need_nothing_of_the_lab(tmp_path):
    pytest.importorskip("rclpy", reason="rclpy is not installed: source a ROS 2 or use its wheels")
    found = sorted(PACKAGE.glob("ros/nodes/*/node.py"))
    assert len(found) >= 5
    import_without(tmp_path, [f"vla_ros.ros.nodes.{path.parent.name}.node" for path in found], LAB)


def test_the_command_line_holds_verbs_only():
    """One verb a file or a folder: everything else has a room of its own."""
    from vla_ros.cli.main import VERBS

    names = {
        path.relative_to(PACKAGE / "cli").parts[0].removesuffix(".py")
        for path in files()
        if PACKAGE / "cli" in path.parents
    }
    assert names - {"__init__", "main", "defaults", "arguments"} == set(VERBS)


def test_no_file_of_a_stranger_can_run_code():
    """Checkpoints are safetensors, configuration is JSON or plain YAML."""
    forbidden = (
        r"torch\.load\((?!.*weights_only=True)",
        r"\bpickle\.(load|Unpickler)\b",
        r"allow_pickle=True",
        r"yaml\.(unsafe_|full_)?load\(",
        r"trust_remote_code=True",
        r"(?<![\w.])(eval|exec)\(",
    )
    # Its unpickler admits nothing but an array of numbers; it has tests of its own.
    own = {PACKAGE / "sim" / "libero" / "environment.py"}
    assert own <= set(files())
    found = [
        f"{path.relative_to(PACKAGE)}: {match.group()}"
        for path in files()
        for pattern in forbidden
        if path not in own and (match := re.search(pattern, path.read_text(encoding="utf-8")))
    ]
    assert not found, "\n".join(found)


def test_files_that_mutation_testing_names_are_there():
    root = Path(__file__).resolve().parents[2]
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r'"((?:vla_ros|test)/[^"*:]+)', text.partition("[tool.mutmut]")[2])
    assert len(named) > 10
    assert not [name for name in named if not (root / name).exists()]
