"""A checkpoint that cannot be used: every verb ends with one line and status 2, doctor with 1."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

from safetensors.torch import load_file, save_file

from support.engine import tiny_config
from support.strange import CASES
from support.train import data_set
from vla_ros.cli import doctor as checks
from vla_ros.cli import doctor as model
from vla_ros.cli.main import main
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.families.lerobot import PRESETS
from vla_ros.engine.families.openvla import write_random
from vla_ros.engine.families.registry import write_folder

VERBS = {
    "bench": ("--timed", "1", "--warm-up", "0", "--dtype", "float32"),
    "eval": ("--no-ros", "--episodes", "1"),
    "demo": (),
}
SOME = (
    "cut config", "a data set is a list", "no q01", "NaN", "one byte short", "a pickle with code",
    "cut tokenizer", "OpenVLA-OFT", "a run of prismatic", "an adapter", "lerobot smolvla",
)  # fmt: skip


@pytest.fixture
def strange(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    write_random(tmp_path / "it", tiny_config(towers="fused"), seed=1)
    CASES[request.param][0](tmp_path / "it")
    return tmp_path / "it"


@pytest.mark.parametrize("strange", SOME, indirect=True)
@pytest.mark.parametrize("verb", VERBS)
def test_one_line_and_status_2(
    verb: str,
    strange: Path,
    request: pytest.FixtureRequest,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(strange.parent)  # where eval would write
    assert main([verb, *VERBS[verb], "--checkpoint", str(strange)]) == 2
    said = capfd.readouterr().err.strip().splitlines()
    lines = [line for line in said if not line.startswith("loading ")]
    assert len(lines) == 1
    assert lines[0].startswith(f"vla-ros {verb}: ")
    assert str(strange) in lines[0]
    case = request.node.callspec.params["strange"]
    assert re.search(CASES[case][1], lines[0])


@pytest.mark.parametrize("strange", ["NaN", "cut config", "an adapter"], indirect=True)
@pytest.mark.parametrize("option", ["--init-from", "--vision-from"])
def test_training_from_it_too(
    strange: Path, option: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data_set(tmp_path / "data")
    words = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--steps", "1"]
    assert main(["train", *words, option, str(strange)]) == 2
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert line.startswith("vla-ros train: ")
    assert str(strange) in line


@pytest.mark.parametrize("strange", ["one byte short"], indirect=True)
def test_a_model_in_the_roofline_too(strange: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copyfile(strange / "config.json", strange / "whole.json")
    (strange / "config.json").write_text("{")
    assert main(["roofline", "--model", str(strange), "--device", "rtx-4090"]) == 2
    assert "config.json is no JSON" in capfd.readouterr().err


@pytest.mark.parametrize("strange", ["NaN", "OpenVLA-OFT", "one byte short"], indirect=True)
def test_doctor_finds_it_and_says_what_to_do(strange: Path, request: pytest.FixtureRequest) -> None:
    found = model.check_checkpoint(str(strange))
    assert found.level is checks.Level.FAIL
    case = request.node.callspec.params["strange"]
    assert re.search(CASES[case][1], found.found)


def test_doctor_describes_a_folder_of_lerobot(tmp_path: Path) -> None:
    write_folder(tmp_path / "it", PRESETS["pi0-small"], seed=1)
    found = model.check_checkpoint(str(tmp_path / "it"))
    assert found.level is checks.Level.OK, found
    assert re.search(r"it: 1 M parameters, 0.00 GB in bf16, pi0, sha256 (\w{12})$", found.found)
    policy = load_engine(EngineOptions(str(tmp_path / "it")))
    assert found.found.endswith(policy.info.checkpoint_sha256[:12])


def _no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _nan(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.action_out_proj.weight"][0, 0] = float("nan")
    save_file(tensors, folder / "model.safetensors")


def _pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")


BROKEN_FLOW = {
    "NaN": (_nan, "action_out_proj.weight holds NaN or infinity"),
    "no tokenizer": (_no_tokenizer, "no tokenizer.json in .*: copy that of"),
    "a pointer": (_pointer, "is a git-lfs pointer"),
}


@pytest.mark.parametrize("case", BROKEN_FLOW)
def test_a_folder_of_lerobot_that_cannot_be_loaded(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, (damage, words) = tmp_path / "it", BROKEN_FLOW[case]
    write_folder(folder, PRESETS["smolvla-small"], seed=1)
    damage(folder)
    found = model.check_checkpoint(str(folder))
    assert found.level is checks.Level.FAIL
    assert re.search(words, found.found)
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--checkpoint", str(folder)]) == 2
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert re.search(words, line)


def test_doctor_describes_a_good_one(tmp_path: Path) -> None:
    write_random(tmp_path / "it", tiny_config(), seed=1)
    found = model.check_checkpoint(str(tmp_path / "it"))
    assert found.level is checks.Level.OK
    assert re.search(
        r"it: 0 M parameters, 0.00 GB in bf16, unnorm_key random, sha256 \w{12}$", found.found
    )
