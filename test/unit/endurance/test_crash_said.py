"""A crash in native code says where every thread was, whichever process it hits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TEST = Path(__file__).resolve().parents[2]
CRASH = """
import ctypes, threading

def waits_for_ever():
    threading.Event().wait()

def crash():
    threading.Thread(target=waits_for_ever, daemon=True).start()
    ctypes.string_at(0)
"""


@pytest.mark.parametrize("where", ["in a test", "after the last"])
def test_pytest_says_where_every_thread_was(tmp_path: Path, where: str) -> None:
    """Also at the end of the process, when pytest's own handler is off again."""
    call = "crash()" if where == "in a test" else "atexit.register(crash)"
    body = f"import atexit\n{CRASH}\ndef test_it():\n    print('captured')\n    {call}\n"
    (tmp_path / "test_crash.py").write_text(body)
    words = ["-p", "no:cacheprovider", "--rootdir", str(TEST.parent), "-c", "pyproject.toml"]
    words += ["--confcutdir", str(TEST), "-p", "conftest", str(tmp_path / "test_crash.py")]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONFAULTHANDLER"}
    paths = [str(TEST), *(entry for entry in sys.path if entry)]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=TEST.parent, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == -11, said
    assert "Segmentation fault" in said and "string_at" in said and "waits_for_ever" in said, said


def test_what_tests_start_says_it_too() -> None:
    """Nodes and workers inherit it."""
    words = [sys.executable, "-c", CRASH + "crash()"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.returncode == -11
    assert "string_at" in done.stderr and "waits_for_ever" in done.stderr
