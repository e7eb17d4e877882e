"""A deadlock that holds Python's lock does not keep a process alive."""

import os
import subprocess
import sys
import time

import pytest

STUCK = """
import ctypes, sys
from vla_ros.ros.common.ending import bounded
with bounded({seconds}, {status}):
    {body}
sys.exit(5)
"""


def run(body: str, seconds: float = 0.3, status: int = 2) -> subprocess.CompletedProcess:
    code = STUCK.format(seconds=seconds, status=status, body=body)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30)


@pytest.mark.parametrize("status", [3, 2])
def test_what_blocks_with_the_lock_held_ends_with_the_status(status):
    start = time.monotonic()
    # PyDLL keeps Python's lock during the call, as the deadlocked destructor does.
    ended = run("ctypes.PyDLL(None).sleep(20)", status=status)
    assert ended.returncode == status
    said = ended.stderr.decode().splitlines()
    assert len(said) == 1 and said[0].endswith(
        f"did not end within 0.3 s: ended by force, exit status {status}"
    )
    assert time.monotonic() - start < 10


def test_what_ends_in_time_goes_on():
    ended = run("pass")
    assert (ended.returncode, ended.stderr) == (5, b"")


def test_the_timer_is_gone_afterwards():
    code = STUCK.format(seconds=0.2, status=2, body="pass").replace(
        "sys.exit(5)", "import time; time.sleep(0.6); sys.exit(5)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 5


def test_a_node_whose_starter_has_ended_by_the_time_it_asks_ends_at_once():
    """And what it starts in turn is not told to."""
    code = (
        "import os; from vla_ros.ros.common.ending import end_with_parent;"
        " end_with_parent(); assert 'VLA_ROS_PARENT' not in os.environ; print('runs')"
    )
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    cases = (
        (os.getpid(), 0, b"runs\n"),
        (1, 0, b"runs\n"),  # somebody is between the two: a debugger
        (gone.pid, 3, b""),
    )
    for parent, status, said in cases:
        env = {**os.environ, "VLA_ROS_PARENT": str(parent)}
        ended = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, timeout=30
        )
        assert (ended.returncode, ended.stdout) == (status, said)
