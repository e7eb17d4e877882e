"""severed_link.py, in a process of its own.

Fast DDS reads a process's network interfaces when its first participant is made and never again
(eprosima::SystemInfo). In a process that ran another ROS test, the test's own node would tell the
addresses of the machine that it left, and nobody would find it.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

SCENARIO = Path(__file__).with_name("severed_link.py")
LIMIT_S = 150


@pytest.mark.timing
def test_a_pulled_cable_stops_the_arm_and_holds_the_policy_until_it_is_back():
    command = [sys.executable, "-m", "pytest", "-rsP", str(SCENARIO)]
    options = ["-p", "no:cacheprovider", f"--timeout={LIMIT_S - 10}"]
    done = subprocess.run(
        [*command, *options],
        cwd=SCENARIO.parents[1],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    print(done.stdout[-8000:], done.stderr[-2000:])
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    if skipped:
        pytest.skip(skipped[0].partition(": ")[2])
    assert done.returncode == 0 and "1 passed" in done.stdout
