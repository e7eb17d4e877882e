"""What the package is made of and asks for: its files, its extras, its lock files.

Standard library only, as install.py.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from over_ros import SetupError

ROOT = Path(__file__).resolve().parent.parent
TORCH = ROOT / "requirements" / "torch.txt"
PINS = ROOT / "requirements" / "pins.txt"
LIBERO = ROOT / "requirements" / "libero.txt"
LAUNCH = ROOT / "requirements" / "launch.txt"
LAUNCH_PYTEST = LAUNCH.with_name("launch_pytest.txt")
WHEEL_PYTHONS = [(3, 10), (3, 11), (3, 12), (3, 13)]  # CPythons with ROS 2 wheels
EXTRAS = ("model", "sim", "so101", "replay", "video", "serve", "tracing", "dev")
ROS_EXTRAS = {"kilted": "ros", "jazzy": "ros-jazzy"}  # distro: the extra with its wheels
DEFAULT_ROS = "kilted"
LAB = ROOT / "lab"
SOURCES = ("vla_ros", "msg", "srv", "action", "launch", "config")
SOURCE_FILES = ("setup.py", "setup.cfg", "pyproject.toml", "package.xml", "rosidl_build.py")
GENERATED = ("vla_ros/msg/", "vla_ros/srv/", "vla_ros/action/")


def lock_file(ros: str, version: tuple[int, int]) -> Path:
    """Where the locked packages of one distro and one CPython are, whether written or not."""
    distro = "" if ros == DEFAULT_ROS else f"{ros}-"
    return ROOT / "requirements" / f"lock-{distro}cp{version[0]}{version[1]}-linux-x86_64.txt"


def digest(paths: Iterable[Path], *more: str) -> str:
    """One name for the contents of many files."""
    total = hashlib.sha256("\0".join(more).encode())
    for path in sorted(paths):
        total.update(f"\0{path.relative_to(ROOT)}\0".encode())
        total.update(path.read_bytes())
    return total.hexdigest()


def extra(name: str) -> list[str]:
    """The packages of one extra in setup.py, read without running it."""
    for node in ast.walk(ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == name:
                    return list(ast.literal_eval(value))
    raise SetupError(f"setup.py has no extra {name!r}")


def lab_requirements() -> list[str]:
    """What the lab asks pip for beside vla_ros. Python 3.10 has no reader of TOML."""
    text = (LAB / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r"^dependencies = (\[.*?^\])", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise SetupError("lab/pyproject.toml has no dependencies")
    return [line for line in ast.literal_eval(found[1]) if not line.startswith("vla_ros")]


def lab_files() -> list[Path]:
    """Everything the installed lab is made of."""
    found = (LAB / "vla_ros_lab").rglob("*")
    files = [path for path in found if path.is_file() and path.suffix != ".pyc"]
    return [LAB / "pyproject.toml", *files]


def source_files() -> list[Path]:
    """Everything the installed package is made of."""
    found = [ROOT / name for name in SOURCE_FILES]
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            built = name.startswith(GENERATED) or path.suffix in (".so", ".pyc")
            if path.is_file() and not built:
                found.append(path)
    return found
