"""A worker ends with its parent, and what it started ends with it, whatever either is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import alive
from support.wait import wait_until
from unit.runtime.worker.bench import MakeBench
from unit.runtime.worker.orphan import load_spinning
from vla_ros.policies import PolicySpec
from vla_ros.runtime.worker.wire import WorkerLost


@pytest.fixture
def note(tmp_path: Path) -> Iterator[Path]:
    """Where the policy writes which process it started; that one is killed in any case."""
    path = tmp_path / "helper"
    yield path
    if path.exists() and alive(pid := int(path.read_text())):
        os.kill(pid, signal.SIGKILL)


def test_a_killed_parent_takes_a_worker_with_it_that_spins_in_c(note: Path) -> None:
    command = [sys.executable, "-m", "unit.runtime.worker.orphan", str(note)]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        helper = int(note.read_text())
        assert alive(worker) and alive(helper)
        parent.kill()
    try:
        wait_until(lambda: not alive(worker), 2.0, "the end of the worker")
        wait_until(lambda: not alive(helper), 2.0, "the end of what the worker started")
    finally:
        if alive(worker):
            os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize("how", ["killed", "closed", "halted", "hung"])
def test_what_a_worker_started_ends_with_it(make_bench: MakeBench, note: Path, how: str) -> None:
    bench = make_bench(load_spinning, PolicySpec("replay", replay_file=str(note)))
    pid = bench.executor.start(20).pid
    helper = int(note.read_text())
    match how:
        case "killed":
            os.kill(pid, signal.SIGKILL)
        case "closed":
            assert bench.executor.close()
        case "halted":
            bench.executor.halt()
        case "hung":
            bench.executor.set_hang_timeout(0.2)
            bench.ask()
            bench.event(WorkerLost)
    wait_until(lambda: not alive(helper), 2.0, "the end of what the worker started")
    wait_until(lambda: not alive(pid), 2.0, "the end of the worker")  # they end in any order
