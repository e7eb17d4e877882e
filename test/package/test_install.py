"""requirements/: a Jetson, faked; a sourced ROS of another Python; Pythons that are not on PATH."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from pathlib import Path

import pytest

INSTALL = Path(__file__).resolve().parents[2] / "requirements" / "install.py"
if not INSTALL.is_file():
    pytest.skip("no checkout here", allow_module_level=True)
JETPACK = {"torch": "2.5.0a0+872d972e41.nv24.8", "numpy": "1.21.5"}


@pytest.fixture
def install(monkeypatch):
    monkeypatch.syspath_prepend(INSTALL.parent)
    spec = importlib.util.spec_from_file_location("install_under_test", INSTALL)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    module.sources = importlib.import_module("sources")
    for name in ("ROS_DISTRO", "AMENT_PREFIX_PATH"):
        monkeypatch.delenv(name, raising=False)
    return module


@pytest.fixture
def jetson(install, monkeypatch, tmp_path):
    """An Orin with JetPack 6: aarch64, Humble from apt, JetPack's torch."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setenv("ROS_DISTRO", "humble")
    monkeypatch.setattr(install.over_ros, "sourced_ros", lambda: True)
    monkeypatch.setattr(install.over_ros, "found_version", lambda name: JETPACK.get(name, ""))
    release = tmp_path / "nv_tegra_release"
    release.write_text("# R36 (release), REVISION: 4.0")
    monkeypatch.setattr(install.over_ros, "JETSON", release)
    return install


def asked_of_pip(module, monkeypatch, folder) -> list[tuple[str, ...]]:
    calls = []
    folder.mkdir()
    monkeypatch.setattr(module.Venv, "pip", lambda self, *words: calls.append(words))
    module.Venv(folder).install_requirements()
    return calls


def test_a_jetson_keeps_its_torch_and_its_numpy(jetson, monkeypatch, tmp_path):
    jetson.check_python()
    (words,) = asked_of_pip(jetson, monkeypatch, tmp_path / "venv")
    lines = (tmp_path / "venv" / "constraints.txt").read_text().splitlines()
    assert lines == [f"torch=={JETPACK['torch']}", "numpy<2"]
    assert words[:2] == ("-c", str(tmp_path / "venv" / "constraints.txt"))
    names = {word.split(">")[0].split("[")[0] for word in words[2:]}
    assert {"transformers", "mujoco", "rosbags", "numpy"} <= names
    assert not any(word.startswith(("torch", "ros-")) for word in words), words


def test_a_jetson_without_torch_is_told_to_get_jetpacks(jetson, monkeypatch):
    monkeypatch.setattr(jetson.over_ros, "found_version", lambda name: "")
    with pytest.raises(jetson.SetupError, match=r"JetPack's torch.*docs/how-to/jetson\.md"):
        jetson.over_ros.constraints(jetson.sources.TORCH)


def test_a_sourced_ros_elsewhere_without_torch_gets_our_pin(jetson, monkeypatch, tmp_path):
    monkeypatch.setattr(jetson.over_ros, "found_version", lambda name: "")
    monkeypatch.setattr(jetson.over_ros, "JETSON", tmp_path / "none")
    monkeypatch.setenv("ROS_DISTRO", "jazzy")
    pins = jetson.over_ros.constraints(jetson.sources.TORCH)
    assert [pin for pin in pins if pin.startswith("torch==")] and "numpy<2" not in pins


def test_on_humble_the_messages_come_of_colcon(jetson, monkeypatch, tmp_path):
    venv = jetson.Venv(tmp_path)
    monkeypatch.setattr(jetson.Venv, "pip", lambda *_: pytest.fail("nothing to install"))
    with pytest.raises(jetson.SetupError, match="colcon build"):
        venv.install_package()
    share = tmp_path / "install" / "share" / "vla_ros"
    share.mkdir(parents=True)
    (share / "package.xml").touch()
    monkeypatch.setenv("AMENT_PREFIX_PATH", f"/opt/ros/humble:{tmp_path / 'install'}")
    venv.install_package()


def test_a_ros_of_another_python_names_it(install, monkeypatch, tmp_path):
    (tmp_path / "local/lib/python3.9/dist-packages/rclpy").mkdir(parents=True)
    monkeypatch.setenv("ROS_DISTRO", "humble")
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path))
    monkeypatch.setattr(install.over_ros, "sourced_ros", lambda: False)
    with pytest.raises(install.SetupError, match=r"make PYTHON=python3\.9"):
        install.check_python()


def test_aarch64_without_a_ros_says_what_to_source(install, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(install.over_ros, "sourced_ros", lambda: False)
    with pytest.raises(install.SetupError, match=r"aarch64.*source /opt/ros.*jetson\.md"):
        install.check_python()


def test_what_setup_py_asks_for_is_read_whole(install):
    found = install.over_ros.requirements(install.sources.ROOT / "setup.py", install.sources.EXTRAS)
    assert {"numpy>=1.24", "torch>=2.4,<3", "ruff>=0.6", "pytest>=7.4"} <= set(found)


@pytest.fixture
def pythons(install, monkeypatch, tmp_path):
    """find_python.py on a machine that has none, and a way to put one there."""
    for name, folder in (("PYENV_ROOT", "pyenv"), ("UV_PYTHON_INSTALL_DIR", "uv")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def put(name: str, says: str, status: int = 0) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\necho {says}\nexit {status}\n")
        path.chmod(0o755)
        return str(path)

    return importlib.import_module("find_python"), put


def test_a_python_is_found_where_pyenv_only_has_its_name_on_path(pythons):
    find, put = pythons
    assert find.find_python("3.10") == ""
    put("bin/python3.10", "pyenv: python3.10: command not found", status=127)
    assert find.find_python("3.10") == ""
    put("uv/pypy-3.10/bin/python3.10", "pypy 3 10 /uv/pypy/bin/python3.10")
    assert find.find_python("3.10") == ""
    put("pyenv/versions/3.10.13/bin/python3.10", "cpython 3 10 /py env/3.10.13/bin/python3.10")
    assert find.find_python("3.10") == "/py env/3.10.13/bin/python3.10"
    assert find.find_python("3.12") == ""


def test_humbles_numpy_replaces_that_of_the_lock_file(install):
    humble, lock = importlib.import_module("humble"), install.sources.lock_file
    text = lock(install.sources.DEFAULT_ROS, humble.VERSION).read_text()
    pins = humble.constraints(text)
    assert [pin for pin in pins if pin.startswith("numpy==")] == [humble.NUMPY]
    assert len(pins) > 50 and all(re.fullmatch(r"[\w.-]+==[\w.+]+", pin) for pin in pins)
    assert not any(pin.startswith(("ros-", "torch==")) for pin in pins)
