"""Rules of the house that no tool checks: who may import whom."""

import ast
import re
from pathlib import Path

import pytest

import vla_ros

PACKAGE = Path(vla_ros.__file__).parent
ROS_FREE = (
    "analysis",
    "control",
    "core.py",
    "engine",
    "evaluation",
    "executor",
    "policies",
    "recording",
    "replay",
    "safety.py",
    "sim",
    "timing.py",
    "train",
)
ROS = (
    "ament_index_python",
    "cv_bridge",
    "launch",
    "launch_ros",
    "rcl_interfaces",
    "rclpy",
    "rosidl_runtime_py",
    "sensor_msgs",
    "std_msgs",
    "vla_ros.msg",
    "vla_ros.nodes",
    "vla_ros.srv",
)
SIMULATORS = ("mujoco", "libero", "robosuite", "vla_ros.sim")


def files(*places: str) -> list[Path]:
    found = []
    for place in places:
        path = PACKAGE / place
        found += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return found


def imports(path: Path) -> set[str]:
    """Every module a file imports, also inside functions; relative ones made absolute."""
    package = ["vla_ros", *path.relative_to(PACKAGE).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            found |= {module, *(f"{module}.{name.name}" for name in node.names)}
    return found


def offences(path: Path, forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(PACKAGE)} imports {module}"
        for module in sorted(imports(path))
        if any(module == name or module.startswith(f"{name}.") for name in forbidden)
    ]


def test_the_inner_rooms_know_no_ros():
    assert not [line for path in files(*ROS_FREE) for line in offences(path, ROS)]


def test_the_engine_knows_no_simulation():
    rooms = files("engine", "core.py", "safety.py", "timing.py", "control", "executor")
    assert not [line for path in rooms for line in offences(path, SIMULATORS)]


def test_what_is_written_does_not_know_who_reads_it():
    """replay/ reads what recording/ writes, and the other way round nothing."""
    readers = ("vla_ros.replay", "vla_ros.nodes.replay", "vla_ros.cli.replay")
    writers = files("recording", "nodes/recorder", "nodes/common")
    assert not [line for path in writers for line in offences(path, readers)]


def test_the_command_line_starts_without_ros_or_torch():
    """`vla-ros --help` and `vla-ros bench` must work where only numpy and PyYAML are."""
    heavy = ("rclpy", "torch", "mujoco", "transformers", "matplotlib")
    for path in files("cli/main.py", "cli/__init__.py", "bringup/graph_file.py", "resources.py"):
        assert not offences(path, heavy)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import rclpy", True),
        ("def f():\n    from sensor_msgs.msg import Image", True),
        ("from ..nodes import qos", True),
        ("from vla_ros import msg", True),
        ("import rclpython", False),
        ("from vla_ros.core import Action", False),
    ],
)
def test_the_rule_sees_each_kind_of_import(tmp_path, monkeypatch, source, found):
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    path = tmp_path / "engine" / "x.py"
    path.parent.mkdir()
    path.write_text(source)
    assert bool(offences(path, ROS)) is found


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
    arrays = PACKAGE / "sim/libero/arrays.py"  # its unpickler admits nothing but an array
    for path in files("."):
        if {"msg", "srv"} & set(path.relative_to(PACKAGE).parts) or path == arrays:
            continue  # generated, or tested by test_libero_arrays.py
        for pattern in forbidden:
            found = re.search(pattern, path.read_text(encoding="utf-8"))
            assert not found, f"{path.relative_to(PACKAGE)}: {found and found.group()}"
