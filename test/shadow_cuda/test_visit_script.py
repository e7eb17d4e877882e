"""benchmarks/run.sh as a person runs it: the script, each stage in a process, and the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: a way of decoding, and passes of a chunk; test_visit_gpu has all, within one process
STAGES = ("engine-autoregressive", "passes-pi0-auto")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_visit_ends_with_a_report(tmp_path: Path) -> None:
    own = Path(__file__).parent
    paths = (own / "every_process", own.parent, ROOT, ROOT / "lab")
    env = {
        **os.environ, "SHADOW_GPU": "1", "PYTHON": sys.executable, "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }  # fmt: skip
    words = ["--small", "--only", ",".join(STAGES), "--output", str(tmp_path)]
    command = ["sh", str(ROOT / "benchmarks/run.sh"), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    logs = {path.parent.name: path.read_text()[-2000:] for path in tmp_path.glob("*/log.txt")}
    assert done.returncode == 0, (done.stdout, done.stderr[-2000:], logs)
    assert set(logs) == set(STAGES)
    report = json.loads((tmp_path / "report.json").read_text())
    assert "shadow" in (tmp_path / "table.md").read_text(), report.keys()
    for name in STAGES:
        ended = json.loads((tmp_path / name / "done.json").read_text())
        assert ended["status"] == 0, (name, logs[name])
