"""The figures of a tick: what came late, what did not come, and what it cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from endurance.ticks import busy, cpu_s, due_between, off_by, threads_of, ways
from vla_ros.core.clock import MS

TOOLS = Path(__file__).resolve().parents[3] / "tools"
HOME = str(TOOLS.parent)


def test_intervals_are_held_against_the_period() -> None:
    steady = np.arange(1000) * 5 * MS
    assert off_by(steady, 200.0).max == 0.0
    steady[500:] += 3 * MS  # one interval of 8 ms
    spread = off_by(steady, 200.0)
    assert (spread.p50, spread.max) == (0.0, pytest.approx(3.0))
    assert spread.p99 < 3.0


def test_what_was_due_is_counted_with_both_ends() -> None:
    assert due_between(0, 10 * 5 * MS, 200.0) == 11
    assert due_between(0, 10 * 5 * MS + MS, 200.0) == 11, "late is not missed"
    assert due_between(0, 0, 500.0) == 1


def test_the_chunks_follow_one_another_and_the_file_s_end_meets_its_begin(tmp_path: Path) -> None:
    rows = np.load(ways(tmp_path, 20.0))
    assert rows[:-1, 1] == pytest.approx(rows[1:, 0]) and rows[-1, 1] == pytest.approx(rows[0, 0])
    assert np.abs(np.diff(rows[:, :, 0], axis=1)).max() < 0.02, "no limit is in the way"


def test_a_thread_that_computes_is_seen_by_its_processor_time() -> None:
    with busy(1):
        before = threads_of(os.getpid())
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            pass
        after = threads_of(os.getpid())
    assert sum(after.values()) - sum(before.values()) >= 0.15
    assert cpu_s(Path("/proc/self/task/0/stat")) == 0.0


@pytest.mark.ros
def test_a_node_is_measured(ros_env: dict[str, str]) -> None:
    """The program itself, shortly: a row of figures and the same for a program."""
    words = ["--rates", "100", "--beside", "0", "--priorities", "0", "--seconds", "2", "--json"]
    paths = [str(TOOLS), f"{HOME}/test", ros_env["PYTHONPATH"]]  # -m may not add its own
    env = ros_env | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-m", "endurance.ticks", *words],
        cwd=TOOLS, env=env, capture_output=True, text=True, timeout=150.0,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert row["state"] == "RUNNING"
    assert 50 < row["arrived"] <= row["expected"] <= 110 * row["seconds"]
    assert 0.0 < row["tick_cpu"] <= row["node_cpu"] and row["late"]["p50"] > 0.0
    assert "| 100 Hz | nothing | none |" in done.stdout
