"""`vla-ros doctor --checkpoint FOLDER`: what a folder is, needs and lacks, in less than 2 s."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.hub_folders import FOLDERS, fasts, lerobots, token_policy
from vla_ros.cli.doctor import Level, check_conventions
from vla_ros.cli.main import main
from vla_ros.engine.families.folder import describe
from vla_ros.engine.families.registry import write_folder
from vla_ros.engine.families.turbovla import SMALL as TURBOVLA
from vla_ros.engine.io.files import header

#: Refused for what somebody chose, or for what the weights say: the folder itself lacks nothing.
BY_CHOICE = [name for name, it in FOLDERS.items() if it.says and it.options]
TO_CHOOSE = "smolvla, statistics by data set, none chosen"
CONVERTED = [name for name, it in FOLDERS.items() if it.converted]
READY = [n for n, it in FOLDERS.items() if (not it.says and not it.converted) or n in BY_CHOICE]
LACKING = [n for n in FOLDERS if n not in (*READY, *CONVERTED, TO_CHOOSE)]
#: What a loader alone finds: none so far.
PROGRAM = """
import sys
from vla_ros.cli.main import main
status = main(["doctor", "--checkpoint", sys.argv[1]])
assert "torch" not in sys.modules
sys.exit(status)
"""


def made(name: str, where: Path) -> Path:
    FOLDERS[name].make(where / "folder")
    return where / "folder"


@pytest.mark.parametrize("name", READY)
def test_what_loads_lacks_nothing(name: str, tmp_path: Path) -> None:
    found = describe(str(made(name, tmp_path)))
    assert found.lacks == []
    assert found.next.startswith("ros2 launch vla_ros policy.launch.py")
    assert "GB in" in found.weights
    assert found.needs


@pytest.mark.parametrize("name", LACKING)
def test_what_does_not_load_lacks_what_the_loader_says(name: str, tmp_path: Path) -> None:
    found = describe(str(made(name, tmp_path)))
    assert found.lacks, found
    said = " ".join((*found.lacks, *found.needs))
    wanted = FOLDERS[name].says
    if "statistics" not in wanted:  # which are told by their files here, and by their use there
        assert re.search(wanted, said), said


@pytest.mark.parametrize("name", CONVERTED)
def test_what_must_be_converted_is_said_with_the_command(name: str, tmp_path: Path) -> None:
    folder = made(name, tmp_path)
    found = describe(str(folder))
    assert len(found.lacks) == 1
    assert found.next.startswith(f"vla-ros convert {folder} TARGET")


def test_what_somebody_must_choose(tmp_path: Path) -> None:
    found = describe(str(made(TO_CHOOSE, tmp_path)))
    assert found.lacks == []
    assert "unnorm_key: one of so100, so100-blue, so100-red" in found.needs
    assert found.next.endswith(" parameters:='{unnorm_key: ...}'")
    other = tmp_path / "base"
    other.mkdir()
    name = "smolvla_base: statistics by data set, none of the state"
    found = describe(str(made(name, other)))
    assert any(need.startswith("state_normalization: identity") for need in found.needs)
    said = "{unnorm_key: ..., engine_options: [state_normalization=identity]}"
    assert found.next.endswith(f" parameters:='{said}'")
    lerobots("pi05")(tmp_path / "pi05")  # no folder says how its prompt had the state
    found = describe(str(tmp_path / "pi05"))
    assert any(need.startswith("state_in_prompt: one of robot") for need in found.needs)
    assert found.next.endswith(" parameters:='{engine_options: [state_in_prompt=...]}'")


def test_the_tokenizer_that_lerobots_folders_never_have(tmp_path: Path) -> None:
    lerobots("pi05")(tmp_path / "it")
    for path in (tmp_path / "it").glob("tokenizer*"):
        path.unlink()
    found = describe(str(tmp_path / "it"))
    assert len(found.lacks) == 1
    assert found.next.startswith("hf download ")
    assert found.next.endswith(f"--local-dir {tmp_path / 'it'}")


def test_pi0_fast_and_the_tokenizer_of_its_actions(tmp_path: Path) -> None:
    fasts(tmp_path / "it")
    found = describe(str(tmp_path / "it"))
    assert found.family == "pi0_fast of LeRobot"
    assert found.lacks == []
    assert any(need.startswith("state_in_prompt: one of robot") for need in found.needs)
    shutil.rmtree(tmp_path / "it" / "fast-action-tokenizer")
    found = describe(str(tmp_path / "it"))
    (lack,) = found.lacks
    assert "no FAST tokenizer" in lack
    assert found.next.startswith("hf download lerobot/fast-action-tokenizer --local-dir ")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"q01": "q99", "q99": "q01"}, "q01 is above q99 in values 0, 1"),
        ({"q99": [None] * 7}, "['action']['q99'] is no list of numbers"),
        ({"q99": ["0.02"] * 7}, "is no list of numbers"),
        ({"q01": [[0.0] * 7]}, "is no list of numbers"),
        ({"q99": [float("nan")] * 7}, "holds NaN or infinity"),
        ({"q01": [0.0] * 6}, "has lists of unequal length"),
    ],
)
def test_statistics_that_the_policy_refuses_are_lacking(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    token_policy(tmp_path / "it")
    good: dict[str, object] = {"q01": [-0.02] * 6 + [0.0], "q99": [0.02] * 6 + [1.0]}
    action = good | {k: good[v] if isinstance(v, str) else v for k, v in change.items()}
    text = json.dumps({"my_robot": {"action": action}})
    (tmp_path / "it" / "dataset_statistics.json").write_text(text)
    (lack,) = describe(str(tmp_path / "it")).lacks
    assert says in lack and "my_robot" in lack


def test_what_nothing_says_about_the_actions_is_a_warning(tmp_path: Path) -> None:
    """The node refuses it at configure: --full says so before."""
    lerobots("pi0")(tmp_path / "it")
    found = check_conventions(str(tmp_path / "it"))
    assert (found.level, found.name) == (Level.WARN, "conventions")
    assert "nothing says which end is closed: give gripper" in found.found
    assert check_conventions("shipped:tabletop").level is Level.OK


def test_turbovla_as_convert_writes_it(tmp_path: Path) -> None:
    write_folder(tmp_path / "it", TURBOVLA, 1)
    found = describe(str(tmp_path / "it"))
    assert found.family == "TurboVLA of its authors, converted"
    assert found.lacks == []
    assert "a state of 8 values; it gives actions of 7" in found.needs
    path = tmp_path / "it" / "config.json"
    raw = json.loads(path.read_text())
    raw["action"]["thinks_twice"] = True
    path.write_text(json.dumps(raw))
    (lack,) = describe(str(tmp_path / "it")).lacks
    assert "unknown fields action.thinks_twice (True)" in lack


def test_it_takes_no_torch_and_less_than_two_seconds(tmp_path: Path) -> None:
    lerobots("smolvla")(tmp_path / "it")
    start = time.monotonic()
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "it")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    took = time.monotonic() - start
    assert done.returncode == 0, done.stderr
    assert "smolvla of LeRobot" in done.stdout
    assert took < 6  # 0.6 s alone; other tests run beside this one


def test_a_file_cut_short_and_a_pointer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lerobots("pi0")(tmp_path / "it")
    weights = tmp_path / "it" / "model.safetensors"
    assert "model.action_in_proj.weight" in header(weights)
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    assert main(["doctor", "--checkpoint", str(tmp_path / "it")]) == 1
    assert "FAIL  lacks" in (said := capsys.readouterr().out)
    assert "cut short" in said
    weights.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert main(["doctor", "--checkpoint", str(tmp_path / "it")]) == 1
    assert "git lfs pull" in capsys.readouterr().out
    assert main(["doctor", "--checkpoint", str(tmp_path / "nowhere")]) == 1
    assert "is neither a directory nor a hub id" in capsys.readouterr().out
