"""What the package says it needs is what it imports: package.xml for rosdep, setup.py for pip."""

import ast
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETUP = ROOT / "setup.py"
PACKAGE = ROOT / "package.xml"
pytestmark = pytest.mark.skipif(not SETUP.is_file(), reason="no checkout here")

# Import name → rosdep key, and where pip's name is another, that. Keys are those of rosdistro's
# rosdep/python.yaml and of the distributions humble, jazzy, kilted and lyrical, as of 2026-08-22:
# bloom finds all of them (bloom-generate rosdebian).
ROSDEP = {
    "PIL": "python3-pil",
    "hypothesis": "python3-hypothesis",
    "jinja2": "python3-jinja2",
    "numpy": "python3-numpy",
    "pytest": "python3-pytest",
    "rich": "python3-rich",
    "setuptools": "python3-setuptools",
    "yaml": "python3-yaml",
}
PIP = {
    "PIL": "Pillow",
    "backports": "backports.zstd",
    "opentelemetry": "opentelemetry-sdk",
    "rerun": "rerun-sdk",
    "yaml": "PyYAML",
}
ROS = {  # packages of the three distributions that this repository may ask for
    *("ament_cmake", "ament_cmake_pytest", "ament_cmake_python", "launch_pytest"),
    *("action_msgs", "builtin_interfaces", "diagnostic_msgs", "geometry_msgs", "lifecycle_msgs"),
    *("rcl_interfaces", "rosgraph_msgs", "sensor_msgs", "service_msgs", "std_msgs", "std_srvs"),
    *("trajectory_msgs", "unique_identifier_msgs", "rclpy", "launch", "launch_ros"),
    *("ros2launch", "rosidl_default_generators", "rosidl_default_runtime"),
    *("rosidl_parser", "cv_bridge", "sensor_msgs_py"),
}
NOT_IN_HUMBLE = {"service_msgs"}

# Asked for and never imported, with the reason.
TOOLS = {
    "ament_cmake": "CMakeLists.txt is built with it",
    "ament_cmake_pytest": "runs test/launch_description in `colcon test`",
    "ament_cmake_python": "says where Python packages go",
    "launch_pytest": "imported where it is: pytest 9 does not take it",
    "python3-pytest-timeout": "a plugin of pytest, set in pyproject.toml",
    "ros2launch": "the command `ros2 launch`",
    "rosidl_default_generators": "translates msg/, srv/ and action/",
    "rosidl_default_runtime": "what translated interfaces load",
}
# Imported and never asked for, with the reason.
WITHOUT = {
    "compression": "Python 3.14's own zstd",
    "flash_attn": "used where it is installed",
    "huggingface_hub": "used where it is installed: names instead of paths",
    "lerobot": "an environment of its own (vla-ros lerobot setup)",
    "markupsafe": "jinja2 needs it",
    "robosuite": "requirements/libero.txt",
    "triton": "comes with torch's CUDA build",
    "wandb": "used where it is installed: vla-ros train --track wandb",
}


def imported(paths: Iterable[Path]) -> set[str]:
    """First names of everything that these files import, themselves and Python's own aside."""
    names = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"vla_ros", "rosidl_build"}


def sources() -> list[Path]:
    made = [ROOT / "vla_ros" / kind for kind in ("msg", "srv", "action")]
    package = [p for p in (ROOT / "vla_ros").rglob("*.py") if not set(made) & set(p.parents)]
    return [*package, *(ROOT / "launch").glob("*.py")]


def declared(*tags: str) -> set[str]:
    return {e.text for tag in tags for e in ElementTree.parse(PACKAGE).getroot().iter(tag)}


def interface_packages() -> set[str]:
    """What the interfaces refer to, also through what rosidl adds to services and actions."""
    (found,) = re.findall(r"dependencies=\((.*?)\),", SETUP.read_text(), re.DOTALL)
    return set(re.findall(r'"([a-z_]+)"', found))


def asked_of_pip(keyword: str) -> set[str]:
    """Names in setup()'s install_requires or extras_require, lower case."""
    tree = ast.parse(SETUP.read_text())
    lists = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    (value,) = (
        k.value for n in ast.walk(tree) if isinstance(n, ast.Call)
        for k in n.keywords if k.arg == keyword
    )  # fmt: skip
    names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)} & set(lists)
    strings = [n.value for v in (value, *(lists[n] for n in names))
               for n in ast.walk(v) if isinstance(n, ast.Constant)]  # fmt: skip
    return {re.split(r"[\[<>=~;, ]", text)[0].lower() for text in strings}


def needed(names: set[str]) -> set[str]:
    """Keys of rosdep for imports: of ROS, and of what a plain install asks pip for."""
    plain = asked_of_pip("install_requires")
    pip = {n for n in names - ROS - set(WITHOUT) if PIP.get(n, n).lower() in plain}
    return (names & ROS) | {ROSDEP[name] for name in pip}


def test_package_xml_is_what_is_imported():
    wanted = needed(imported(sources())) | interface_packages()
    got = declared("depend", "exec_depend") - set(TOOLS)
    assert (wanted - got, got - wanted) == (set(), set()), "(missing, never imported)"


def test_what_a_build_and_the_tests_ask_for_is_imported():
    build = {ROSDEP[n] for n in imported([SETUP, ROOT / "rosidl_build.py"]) & set(ROSDEP)}
    assert declared("build_depend") - set(TOOLS) == build
    seen = imported((ROOT / "test").rglob("*.py"))
    asked = {ROSDEP.get(n, "") for n in seen} - {""}
    extra = declared("test_depend") - set(TOOLS)
    assert extra == asked - declared("depend", "exec_depend", "build_depend")


def test_cmake_finds_what_package_xml_names():
    """What the interfaces name themselves; rosidl finds those that it adds."""
    cmake = (ROOT / "CMakeLists.txt").read_text()
    tools = declared("buildtool_depend")
    (given,) = re.findall(r"DEPENDENCIES ([a-z_ ]+)\)", cmake)
    assert set(re.findall(r"find_package\((\w+) REQUIRED\)", cmake)) == tools | set(given.split())
    assert tools == set(TOOLS) & tools
    named = set()
    for kind in ("msg", "srv", "action"):
        for path in (ROOT / kind).glob(f"*.{kind}"):
            named |= set(re.findall(r"^([a-z_]+)/[A-Z]", path.read_text(), re.MULTILINE))
    assert set(given.split()) == named <= declared("depend")


def test_pip_is_asked_for_what_is_imported():
    asked = asked_of_pip("install_requires") | asked_of_pip("extras_require")
    others = imported(sources()) - ROS - set(WITHOUT)
    assert {name for name in others if PIP.get(name, name).lower() not in asked} == set()


def test_every_key_is_known_to_rosdep():
    keys = declared("depend", "exec_depend", "build_depend", "buildtool_depend", "test_depend")
    assert keys <= ROS | set(ROSDEP.values()) | set(TOOLS)


def test_what_humble_lacks_is_asked_for_elsewhere_only():
    root = ElementTree.parse(PACKAGE).getroot()
    conditional = {e.text for e in root.iter("depend") if e.get("condition")}
    assert conditional == NOT_IN_HUMBLE & declared("depend")


def test_a_missing_and_a_needless_dependency_are_found(tmp_path):
    """The comparison itself: an import of a package nobody asked for shows."""
    stray = tmp_path / "stray.py"
    stray.write_text("import sys\nfrom launch_ros import x\nimport rich.table\n")
    assert imported([stray]) == {"launch_ros", "rich"}
    assert needed({"launch_ros", "rich", "torch"}) == {"launch_ros", "python3-rich"}
