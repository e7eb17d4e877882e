"""Tests in a process whose oneDNN takes fewer of the processor's instructions."""

from __future__ import annotations

import os
import subprocess
import sys

LIMIT = "ONEDNN_MAX_CPU_ISA"  # read once a process


def run_limited(isa: str, *tests: str) -> None:
    """Pass where these pass with ``isa`` at most, none of them skipped."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, LIMIT: isa}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout
