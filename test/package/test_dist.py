"""`make dist`: an sdist that is whole and clean, and a wheel that runs outside the checkout."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "requirements" / "dist.py"
INTERFACES = [p for kind in ("msg", "srv", "action") for p in (ROOT / kind).glob(f"*.{kind}")]
if not DIST.is_file():
    pytest.skip("no checkout here", allow_module_level=True)
pytest.importorskip("rosidl_generator_py", reason="rosidl is not installed: no ROS 2 here")

BUILD = "import sys; sys.path.insert(0, {folder!r}); import dist; from pathlib import Path; "


def build(expression: str) -> Path:
    """One of dist.py's functions, in a process of its own as `make dist` has it."""
    code = BUILD.format(folder=str(DIST.parent)) + f"print('made', {expression})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return Path(done.stdout.splitlines()[-1].removeprefix("made "))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    return build(f"dist.build_sdist(Path({str(tmp_path_factory.mktemp('dist'))!r}))")


def test_the_sdist_is_whole_and_clean(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {str(path.relative_to(ROOT)) for path in INTERFACES} <= names
    assert {"setup.py", "rosidl_build.py", "package.xml", "CMakeLists.txt"} <= names
    assert {"LICENSE", "README.md"} <= names
    assert {"config/policy.yaml", "launch/policy.launch.py", "vla_ros/py.typed"} <= names
    weights = {n for n in names if n.endswith("/model.safetensors")}
    shipped = {"tabletop", "tabletop/draft_head", "tabletop-flow"}
    assert weights == {f"vla_ros/shipped/{name}/model.safetensors" for name in shipped}
    assert "vla_ros/shipped/tabletop-oft/config.json" in names, "which says where its weights are"
    built = ("build/", "made/", "vla_ros/msg/", "vla_ros/srv/", "vla_ros/action/")
    assert [n for n in names if n.startswith(built) or n.endswith((".so", ".pyc"))] == []


def test_the_lab_has_an_sdist_and_a_wheel_of_the_same_version(tmp_path, monkeypatch):
    """Whole, without its tests, and as `make release` wants them."""
    sdist = build(f"dist.build_sdist(Path({str(tmp_path)!r}), dist.copy_lab)")
    wheel = build(f"dist.build_wheel(Path({str(sdist)!r}), Path({str(tmp_path)!r}))")
    monkeypatch.syspath_prepend(DIST.parent)
    import release

    assert sdist.name == f"vla_ros_lab-{release.version()}.tar.gz"
    assert wheel.name == f"vla_ros_lab-{release.version()}-py3-none-any.whl"
    assert release.wrong_in(wheel) == []
    with tarfile.open(sdist) as source, zipfile.ZipFile(wheel) as built:
        names = {name.partition("/")[2] for name in source.getnames()}
        files = {name for name in built.namelist() if ".dist-info/" not in name}
    tracked = {
        str(path.relative_to(ROOT / "lab"))
        for path in (ROOT / "lab" / "vla_ros_lab").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert files == tracked
    assert tracked | {"pyproject.toml", "LICENSE"} <= names
    assert not [name for name in names if name.startswith("test")]


def test_a_wheel_for_another_version_of_vla_ros_is_not_released(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(DIST.parent)
    import release

    wheel = tmp_path / f"vla_ros_lab-{release.version()}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "vla_ros_lab-9.dist-info/METADATA",
            "Version: 9\nLicense: Apache-2.0\nRequires-Dist: vla_ros[model]==9\n\nwords",
        )
        archive.writestr("vla_ros_lab-9.dist-info/entry_points.txt", "lab = vla_ros_lab.cli")
    wrong = "\n".join(release.wrong_in(wheel))
    assert re.search("version 9, package.xml says", wrong)
    assert re.search(r"it needs vla_ros\[model\]==9", wrong)
    assert re.search("vla_ros_lab/py.typed is missing", wrong)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_runs_outside_the_checkout(sdist, tmp_path):
    """An environment with nothing but the wheel; what it needs is borrowed from this one."""
    wheel = build(f"dist.build_wheel(Path({str(sdist)!r}), Path({str(tmp_path)!r}))")
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    ours = subprocess.check_output(
        [home / "bin/python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        text=True,
    ).strip()
    install = [home / "bin/python", "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)]
    env = {
        k: v for k, v in os.environ.items() if k != "PYTHONPATH"
    }  # pip would find the checkout's
    subprocess.run(install, check=True, cwd=tmp_path, env=env)
    Path(ours, "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def run(*words: str, statuses: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode in statuses, (done.stdout + done.stderr)[-2000:]
        return done.stdout

    assert "demo" in run(str(home / "bin/vla-ros"), "--help")
    where = run(
        str(home / "bin/python"),
        "-c",
        "import vla_ros.msg as m, vla_ros.core.resources as r; m.ActionCommand(decoding='K=1');"
        "print(m.__file__); print(r.config_path('policy.yaml'))",
    ).splitlines()
    assert all(Path(line).is_relative_to(home) for line in where), where
    if importlib.util.find_spec("mujoco"):  # a task through the graph, from the wheel's files
        demo = run(str(home / "bin/vla-ros"), "demo", "--json", statuses=(0, 1))  # 1: not solved
        card = json.loads(demo.splitlines()[-1])
        assert card["graph_ok"] and card["actions"] > 0, card
