"""Programs that are run to their end, and their output."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


def run(
    command: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None
) -> tuple[bool, str]:
    """Result of a program: whether it ended with status 0, and its output; of a failure the reason:
    the last of stderr, or that it crashed, never ended or is not there."""
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return False, f"no end within {timeout_s:g} s"
    except OSError as error:
        return False, str(error)
    if done.returncode < 0:
        return False, f"crashed with signal {-done.returncode}"
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return False, lines[-1].strip() if lines else f"exit status {done.returncode}"
    return True, done.stdout
