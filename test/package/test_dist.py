"""`make dist`: an sdist that is whole and clean, and a wheel that runs outside the checkout."""

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
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
