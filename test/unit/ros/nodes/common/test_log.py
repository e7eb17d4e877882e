"""A node's log: what a terminal would obey is shown, and calls are told apart as before."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

PROGRAM = """
import logging
from rclpy.logging import get_logger
from vla_ros.ros.common.text import plain_log

plain_log()
plain_log()  # twice changes nothing
log = get_logger("robot")
for number in range(3):
    log.warning(f"first {number} \\x1b[2J\\u202e 把红色", throttle_duration_sec=600.0)
    log.warning(f"second {number}\\n[FATAL] fake", throttle_duration_sec=600.0)
log.get_child("arm").error("child \\x1b[2J")
log.info(ValueError("no text \\x1b"))
logging.getLogger("python").warning("of Python \\x1b[2J\\n[FATAL] fake")
raise ValueError("the end \\x1b[2J")
"""


def test_a_node_s_log_is_shown_and_throttled_by_who_calls() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, timeout=60)
    text = (done.stdout + done.stderr).decode()
    assert done.returncode == 1, text
    assert "of Python \\x1b[2J\n  [FATAL] fake\n" in text
    assert "ValueError: the end \\x1b[2J\n" in text
    assert "first 0 \\x1b[2J\\u202e 把红色\n" in text
    assert "second 0\n  [FATAL] fake\n" in text
    assert "child \\x1b[2J\n" in text and "no text \\x1b\n" in text
    assert text.count("first") == text.count("second") == 1
    assert "\x1b" not in text
