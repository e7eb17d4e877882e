"""vla-ros lerobot: finds a Python that LeRobot runs on, sets its environment up, checks folders."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from support.lerobot import interpreter, make_checkpoints
from vla_ros.cli import main
from vla_ros.engine.options import EngineOptions
from vla_ros.policies.base import PolicySpec
from vla_ros.policies.lerobot import environment
from vla_ros.policies.load import VARIABLE, worker_python

#: A python3.12 of a few lines: makes "environments" of itself, and writes down what pip was asked.
FAKE = """#!/bin/sh
case "$*" in
  *ensurepip*) echo "3 12";;
  *"-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python";;
  *"pip install"*) echo "$*" >> "$(dirname "$0")/pip.log"; [ ! -e "$(dirname "$0")/offline" ];;
  *get_policy_class*) [ ! -e "$(dirname "$0")/broken" ] && echo "lerobot 0.6.1" && exit
     echo "ImportError: libcudart.so.13" >&2; exit 1;;
esac
"""


@pytest.fixture
def user(tmp_path, monkeypatch) -> Path:
    """A home without LeRobot, and a path with no Python at all."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for name in (VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    return tmp_path


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


def run(capfd, *words) -> tuple[int, str, str]:
    status = main.main(["lerobot", *words])
    said = capfd.readouterr()
    return status, said.out, said.err


def test_without_a_python_that_fits_it_says_how_to_get_one(user, capfd, monkeypatch):
    monkeypatch.setattr(environment, "OLDEST", (3, 98))
    monkeypatch.setattr(environment, "NEWEST", (3, 99))
    status, _, err = run(capfd, "setup")
    assert status == 2
    (line,) = err.splitlines()
    assert "LeRobot needs Python 3.98 to 3.99" in line
    assert "or give --python" in line
    status, _, err = run(capfd, "setup", "--python", sys.executable)
    assert status == 2
    assert f"{sys.executable} is no Python 3.98 to 3.99" in err
    assert not (user / "home" / ".cache").exists()


def test_a_shim_that_cannot_run_is_passed_over(user, capfd):
    program(user / "bin" / "python3.12", "#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    good = program(user / "bin" / "python3.13", FAKE)
    assert environment.find_python() == str(good)


def test_setup_makes_the_environment_once_and_policies_find_it(user, capfd):
    program(user / "bin" / "python3.12", FAKE)
    status, out, err = run(capfd, "setup", "--index", "https://example.org/cpu")
    assert status == 0, err
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["ok", "Python"], ["ok", "folder"], ["ok", "packages"], ["ok", "trial"],
    ]  # fmt: skip
    folder = user / "home" / ".cache" / "vla_ros" / "lerobot"
    asked = (folder / "bin" / "pip.log").read_text().splitlines()
    assert asked == [
        "-m pip install --disable-pip-version-check --extra-index-url https://example.org/cpu"
        f" -r {environment.REQUIREMENTS}"
    ]
    assert run(capfd, "setup")[0] == 0
    assert (folder / "bin" / "pip.log").read_text().splitlines() == asked  # nothing was left to do
    spec = PolicySpec("lerobot", engine=EngineOptions("folder"))
    assert worker_python(spec) == str(folder / "bin" / "python")


def test_setup_elsewhere_says_how_to_use_it(user, capfd):
    program(user / "bin" / "python3.12", FAKE)
    _, out, _ = run(capfd, "setup", "--dir", str(user / "own"))
    assert out.splitlines()[-1].split() == [
        "ok", "use", "it", "worker_python:", str(user / "own" / "bin" / "python"),
    ]  # fmt: skip


def test_what_fails_is_said_in_one_line_and_tried_again(user, capfd):
    program(user / "bin" / "python3.12", FAKE)
    folder = user / "own"
    run(capfd, "setup", "--dir", str(folder))
    (folder / "bin" / "broken").touch()
    status, _, err = run(capfd, "setup", "--dir", str(folder))
    assert status == 2
    assert err.rstrip().endswith(f"cannot be imported in {folder}: ImportError: libcudart.so.13")
    (folder / "bin" / "offline").touch()
    (folder / environment._NOTE).unlink()
    status, _, err = run(capfd, "setup", "--dir", str(folder))
    assert status == 2
    assert "pip failed; to see it alone: " in err
    assert not (folder / environment._NOTE).exists()


def test_a_folder_of_something_else_is_left_alone(user, capfd):
    program(user / "bin" / "python3.12", FAKE)
    (user / "photos").mkdir()
    (user / "photos" / "cat.png").touch()
    status, _, err = run(capfd, "setup", "--dir", str(user / "photos"))
    assert status == 2
    assert "photos is there and is no Python environment: give another --dir" in err
    assert os.listdir(user / "photos") == ["cat.png"]


def test_every_package_is_pinned():
    lines = environment.REQUIREMENTS.read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    wanted = {"lerobot": "0.6.", "torch": "2.11.", "transformers": "5.5.", "numpy": "2.2."}
    assert all(pins[name].startswith(version) for name, version in wanted.items())


def test_check_prints_the_table_and_what_is_missing(user, capfd):
    folder = user / "act"
    folder.mkdir()
    status, out, _ = run(capfd, "check", str(folder))
    assert (status, out.splitlines()[0][:10]) == (1, "FAIL  load")
    assert "no config.json and no model.safetensors in" in out
    image = {"type": "VISUAL", "shape": [3, 480, 640]}
    (folder / "config.json").write_text(
        json.dumps(
            {
                "type": "act",
                "input_features": {
                    "observation.images.top": image,
                    "observation.images.hand": image,
                    "observation.state": {"type": "STATE", "shape": [6]},
                },
                "output_features": {"action": {"type": "ACTION", "shape": [6]}},
            }
        )
    )
    for name in ("model.safetensors", "policy_preprocessor.json", "policy_postprocessor.json"):
        (folder / name).touch()
    status, out, _ = run(capfd, "check", str(folder))
    assert status == 1
    rows = [line.split() for line in out.splitlines()]
    assert rows[1][:4] == ["observation.images.top", "[480,", "640]", "main"]
    assert rows[2][:4] == ["observation.images.hand", "[480,", "640]", "wrist"]
    assert rows[3][:4] == ["observation.state", "[6]", "robot", "state"]
    assert rows[4][:4] == ["action", "[6]", "no", "names"]
    assert "vla-ros lerobot setup" in out  # its environment is not there


@pytest.mark.slow
def test_check_loads_a_checkpoint_in_lerobot_s_environment(tmp_path, capfd):
    python = interpreter()
    folder = make_checkpoints(tmp_path, "act") / "act"
    status, out, _ = run(capfd, "check", str(folder), "--python", python)
    assert status == 0, out
    assert "act, float32, every weight is the file's" in out
    assert "5 actions in" in out
