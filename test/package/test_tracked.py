"""What git tracks stays small; the weights of studies come back from its history as they were."""

from __future__ import annotations

import hashlib
import importlib
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "requirements"
if not (SCRIPTS / "tracked.py").is_file():
    pytest.skip("no checkout here", allow_module_level=True)


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("tracked"), importlib.import_module("weights")


def test_a_file_over_500_kb_and_48_mb_in_all_are_named(scripts):
    tracked, _ = scripts
    weights = "vla_ros/shipped/tabletop/model.safetensors"
    assert tracked.problems({weights: 13_400_000, "README.md": 8_000}) == []
    (large,) = tracked.problems({"benchmarks/a/report.html": 600_000})
    assert large == "benchmarks/a/report.html has 600 kB, more than 500"
    (all_of_them,) = tracked.problems({weights: 49_000_000})
    assert all_of_them == "all files have 49.0 MB, more than 48"


def test_this_checkout_is_small(scripts):
    tracked, _ = scripts
    sizes = tracked.sizes()
    if sizes is None:
        pytest.skip("this is no clone")
    assert tracked.problems(sizes) == []


def test_an_unsolved_merge_is_named(scripts, monkeypatch, tmp_path):
    tracked, _ = scripts
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "good.md").write_text("a\n=======\n")
    (tmp_path / "bad.json").write_text("<<<<<<< HEAD\n1\n=======\n2\n>>>>>>> other\n")
    subprocess.run(["git", "-C", str(tmp_path), "add", "."], check=True)
    monkeypatch.setattr(tracked, "ROOT", tmp_path)
    assert tracked.unmerged() == ["bad.json holds an unsolved merge"]


def test_weights_of_studies_come_back_as_they_were(scripts, monkeypatch, tmp_path):
    _, weights = scripts
    for name in weights.KEPT:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(weights, "SHIPPED", tmp_path)
    missing = weights.restore()
    if missing:
        pytest.skip(f"the history of this copy lacks {', '.join(missing)}")
    for name, (_, sha256) in weights.KEPT.items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == sha256
        assert not (ROOT / "vla_ros/shipped" / name).with_suffix(".part").exists()


def test_weights_that_git_does_not_have_are_named(scripts, monkeypatch, tmp_path, capsys):
    _, weights = scripts
    (tmp_path / "tabletop-oft").mkdir()
    monkeypatch.setattr(weights, "SHIPPED", tmp_path)
    monkeypatch.setattr(weights, "content", lambda blob: b"something else")
    assert weights.main() == 1
    said = capsys.readouterr().out
    assert "tabletop-oft/model.safetensors" in said and "git fetch --unshallow" in said


def test_restored_weights_are_not_tracked(scripts):
    _, weights = scripts
    names = [f"vla_ros/shipped/{name}" for name in weights.KEPT]
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    shown = subprocess.run(
        ["git", "check-ignore", *names], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    assert sorted(shown) == sorted(names)
