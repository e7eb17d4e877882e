"""Nothing that a LeRobot folder names is run: LeRobot's own names pass, all others are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.lerobot_hostile import AFTER, BEFORE, CONFIG, HOSTILE, module, step_of
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import PolicyRefused, PolicySpec
from vla_ros.policies.lerobot.allowed import CodeWatch, check_folder
from vla_ros.policies.lerobot.checkpoint import read_features
from vla_ros.runtime.worker.process import _environment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As LeRobot 0.6 saves ACT: names and fields, no weights."""
    path = tmp_path / "act"
    path.mkdir()
    shape = {"type": "VISUAL", "shape": [3, 48, 64]}
    config = {
        "type": "act", "device": "cpu", "pretrained_path": "/home/trainer/outputs/act",
        "input_features": {"observation.images.top": shape},
        "output_features": {"action": {"type": "ACTION", "shape": [6]}},
    }  # fmt: skip
    before = [
        step_of("rename_observations_processor", rename_map={}), step_of("to_batch_processor"),
        step_of("tokenizer_processor", tokenizer_name="HuggingFaceTB/SmolVLM2-500M"),
        step_of("device_processor", device="cuda", float_dtype=None),
        step_of("normalizer_processor", eps=1e-8) | {"state_file": "step_3.safetensors"},
    ]  # fmt: skip
    after = [step_of("unnormalizer_processor"), step_of("device_processor", device="cpu")]
    (path / CONFIG).write_text(json.dumps(config))
    (path / "model.safetensors").touch()
    for name, steps in ((BEFORE, before), (AFTER, after)):
        (path / name).write_text(json.dumps({"name": name, "steps": steps}))
    return path


def test_lerobots_own_folder_passes(folder: Path) -> None:
    check_folder(folder)


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_folder_that_names_code_is_refused_by_name(
    folder: Path, tmp_path: Path, name: str
) -> None:
    spoil, says = HOSTILE[name]
    spoil(folder, tmp_path / "canary")
    with pytest.raises(PolicyRefused) as error:
        check_folder(folder)
        read_features(folder)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "canary").exists()


_TRIES = {
    "a module": "import evil",
    "a file that is run": "import runpy; runpy.run_path('evil.py')",
    "text of a file": "exec(compile(open('evil.py').read(), os.path.abspath('evil.py'), 'exec'))",
    "a library": "import ctypes; ctypes.CDLL(os.path.abspath('evil.so'))",
    "an extension": "import importlib.util as u; "
    "m = u.spec_from_file_location('evil', os.path.abspath('evil.so')); u.module_from_spec(m)",
    "a program": "os.system('touch canary')",
    "a pickle": "import pickle; pickle.loads(b'cos\\nsystem\\n(S\"touch canary\"\\ntR.')",
    "a spawned program": "os.posix_spawn('/bin/sh', ['sh', '-c', 'touch canary'], {})",
}


@pytest.mark.parametrize("way", list(_TRIES))
def test_code_of_the_folder_is_not_run_while_it_is_loaded(tmp_path: Path, way: str) -> None:
    module(tmp_path, tmp_path / "canary")
    (tmp_path / "evil.so").write_bytes(b"\x7fELF")
    text = (
        "import os, sys; from pathlib import Path\n"
        "from vla_ros.policies.base import PolicyRefused\n"
        "from vla_ros.policies.lerobot.allowed import CodeWatch\n"
        "sys.path.append(os.getcwd())\n"
        "try:\n"
        f"    with CodeWatch(Path.cwd()):\n        {_TRIES[way]}\n"
        "except PolicyRefused as error:\n    print('refused:', error)\n"
    )
    paths = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.stdout.startswith("refused: the checkpoint would run"), done.stdout + done.stderr
    assert not (tmp_path / "canary").exists()


def test_ones_own_code_is_run(tmp_path: Path) -> None:
    """The watch stays in the process: nothing else may notice it."""
    with CodeWatch(tmp_path / "nothing"):
        exec(compile("x = 1", str(tmp_path / "mine.py"), "exec"), {})
    os.system("true")


def test_its_worker_sees_only_what_it_needs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "VLA_ROS_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "PYTHONSTARTUP",
        "LD_PRELOAD",
    ):
        monkeypatch.setenv(name, "secret")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    local = _environment(PolicySpec("lerobot", EngineOptions(str(folder))), "/path")
    assert "secret" not in local.values()
    assert (local["CUDA_VISIBLE_DEVICES"], local["HF_HUB_OFFLINE"]) == ("1", "1")
    hub = _environment(PolicySpec("lerobot", EngineOptions("lerobot/act@" + "0" * 40)), "/path")
    assert "HF_HUB_OFFLINE" not in hub and hub["HF_TOKEN"] == "secret"
    assert "VLA_ROS_TOKEN" not in hub
    for name, there in (("zero", False), ("remote", True)):
        engine = EngineOptions("ws://host:8000")
        assert ("VLA_ROS_TOKEN" in _environment(PolicySpec(name, engine), "/path")) is there
