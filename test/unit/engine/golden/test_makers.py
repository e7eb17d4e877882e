"""The table of makers of golden files: every file is there once, and clones are checked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vla_ros.ros.bringup.environment import python_path

ROOT = Path(__file__).resolve().parents[4]
MAKERS, GOLDEN = ROOT / "tools" / "golden", ROOT / "test" / "golden"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(MAKERS)
    sys.modules.pop("make", None)
    import make

    yield make
    sys.modules.pop("make", None)


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(MAKERS / "make.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_every_adapter_and_every_file_is_in_the_table_once(table):
    writes = [name for maker in table.MAKERS.values() for name in maker.writes]
    assert len(writes) == len(set(writes))
    assert not [name for name in writes if not (GOLDEN / name).exists()]
    scripts = {maker.script for maker in table.MAKERS.values()}
    found = {str(p.relative_to(MAKERS)) for p in MAKERS.rglob("make_*.py")}
    others = {f"{of}/make.py" for of in ("act", "flow", "evo1", "turbovla")} | {"flow/positions.py"}
    assert found | others == scripts
    assert {f"data/{p.name}" for p in (GOLDEN / "data").glob("*.tar.xz")} <= set(writes)


def test_without_words_it_prints_the_table(table):
    done = run()
    assert done.returncode == 0
    assert all(name in done.stdout for name in table.MAKERS)


def test_a_clone_that_is_not_there_or_of_another_commit_is_refused(table, tmp_path):
    maker = table.Maker("make_gate.py", (), {"somebody/code": "0123abc"})
    with pytest.raises(SystemExit, match=r"git clone https://github\.com/somebody/code"):
        table.check_clones(maker, tmp_path)
    clone = tmp_path / "code"
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", str(clone)], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    with pytest.raises(SystemExit, match="check out 0123abc"):
        table.check_clones(maker, tmp_path)


def test_another_version_of_a_package_is_refused(table):
    with pytest.raises(SystemExit, match=r"numpy is .* here: pip install numpy==0\.1"):
        table.check_packages(table.Maker("make_gate.py", (), packages={"numpy": "0.1"}))


def test_the_safety_gates_file_comes_out_the_same(table, tmp_path):
    """Its adapter needs nobody's code but ours, so it runs here."""
    command = [sys.executable, str(MAKERS / "make_gate.py"), str(tmp_path / "gate7.npz")]
    env = {**os.environ, "PYTHONPATH": python_path(os.environ)}
    subprocess.run(command, check=True, env=env)
    before, again = (dict(np.load(folder / "gate7.npz")) for folder in (GOLDEN, tmp_path))
    assert before.keys() == again.keys()
    for name, values in before.items():
        if values.dtype.kind == "f":  # NumPy's sine rounds otherwise on another CPU
            np.testing.assert_allclose(again[name], values, rtol=1e-12, atol=1e-14)
        else:
            np.testing.assert_array_equal(again[name], values)
