"""What install.py asks of a machine that has a ROS 2 install of its own: which Python it is of,
what must stay as it is, and what setup.py asks for beside it.

Standard library only, as install.py.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path

MACHINES_OWN = ("torch", "torchvision", "torchaudio")
JETSON = Path("/etc/nv_tegra_release")  # there on every JetPack


class SetupError(Exception):
    """One line: what is missing and what to do about it."""


def say(text: str) -> None:
    """A step that begins."""
    print(f"==> {text}", flush=True)


def sourced_ros() -> bool:
    """True where a ROS 2 install of this Python has been sourced."""
    return "ROS_DISTRO" in os.environ and importlib.util.find_spec("rclpy") is not None


def found_version(package: str) -> str:
    """The version that this Python already has, which a sourced ROS 2's venv sees; "" if none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def ros_pythons() -> list[str]:
    """Pythons that the sourced ROS 2 has an rclpy for, such as python3.10."""
    found = []
    for prefix in filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)):
        for folder in ("lib/python3.*/site-packages", "local/lib/python3.*/dist-packages"):
            found += [p.parts[-3] for p in Path(prefix).glob(f"{folder}/rclpy")]
    return sorted(set(found))


def sourced_workspace() -> bool:
    """True where vla_ros itself comes of a sourced workspace (`colcon build`)."""
    prefixes = os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)
    return any(Path(p, "share/vla_ros/package.xml").is_file() for p in prefixes if p)


def constraints(pins: Path) -> list[str]:
    """What pip must leave as it is beside a sourced ROS 2: the machine's torch, which on a Jetson
    is the only one with its CUDA, and numpy 1 where the apt packages were compiled for it.

    ``pins``: a file with the torch that is taken where the machine has none.
    """
    kept = [f"{name}=={found_version(name)}" for name in MACHINES_OWN if found_version(name)]
    if not found_version("torch"):
        if JETSON.is_file():
            raise SetupError(
                "this Jetson's Python has no torch, and PyPI's does not know its GPU: install"
                " JetPack's torch for this Python first (docs/how-to/jetson.md)"
            )
        kept += [n for n in pins.read_text().splitlines() if n.strip() and n[0] not in "#-"]
    numpy = found_version("numpy")
    if os.environ.get("ROS_DISTRO") == "humble" or numpy.startswith("1."):
        kept.append("numpy<2")
    return kept


def requirements(setup: Path, extras: Iterable[str]) -> list[str]:
    """What setup.py asks pip for, with these extras, read without running it."""
    tree = ast.parse(setup.read_text(encoding="utf-8"))
    lists: dict[str, list[str]] = {}

    def read(node: ast.expr) -> list[str]:
        if isinstance(node, ast.Name):
            return lists[node.id]
        if isinstance(node, ast.Starred):
            return read(node.value)
        if isinstance(node, ast.List):
            return [text for element in node.elts for text in read(element)]
        return [str(ast.literal_eval(node))]

    found: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            (target,) = node.targets
            if isinstance(target, ast.Name):
                lists[target.id] = read(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "install_requires":
            found += read(node.value)
        if isinstance(node, ast.keyword) and node.arg == "extras_require":
            assert isinstance(node.value, ast.Dict)
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if isinstance(key, ast.Constant) and key.value in extras:
                    found += read(value)
    return found
