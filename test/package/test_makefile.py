"""What the Makefile says of the tests is so: which files it runs, how long it waits for them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_make_kernels_runs_tests_of_every_kernel() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.search(r"^KERNEL_TESTS := (.+)$", makefile, re.MULTILINE)
    assert found
    tests = [(ROOT / "test" / name).read_text(encoding="utf-8") for name in found[1].split()]
    kernels = [
        path.relative_to(ROOT)
        for path in sorted((ROOT / "vla_ros").rglob("*.py"))
        if re.search(r"^@triton\.jit", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert kernels
    modules = [".".join(path.with_suffix("").parts) for path in kernels]
    missed = [name for name in modules if not any(name in text for text in tests)]
    assert not missed, f"in no test that `make kernels` runs: {', '.join(missed)}"


def test_make_test_looks_for_tests_of_nodes_where_they_are() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.search(r"^NODE_TESTS := (.+)$", makefile, re.MULTILINE)
    assert found
    folders = [ROOT / "test" / name for name in found[1].split()]
    of_nodes = re.compile(
        r"mark\.ros\b|\b(ros_env|ros_domain|spawn_node)\b|^def test\w*\([^)]*\bros\b", re.MULTILINE
    )
    missed = [
        str(path.relative_to(ROOT))
        for path in sorted([*ROOT.glob("test/**/test_*.py"), *ROOT.glob("lab/test/**/test_*.py")])
        if of_nodes.search(path.read_text(encoding="utf-8"))
        and not any(folder in path.parents for folder in folders)
    ]
    assert not missed


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_slow_tests_have_the_time_that_they_ask_for() -> None:
    """`timeout` ends all of them together, some of which may take half an hour alone."""
    shown = subprocess.run(
        ["make", "--no-print-directory", "-n", "-o", "install", "test-slow"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    given = re.search(r"timeout --foreground -k 20 (\d+) ", shown)
    assert given
    asked = [
        int(seconds)
        for path in sorted((ROOT / "test").rglob("test_*.py"))
        for text in [path.read_text(encoding="utf-8")]
        if "mark.slow" in text
        for seconds in re.findall(r"mark\.timeout\((\d+)\)", text)
    ]
    assert int(given[1]) > sum(asked)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_test_lyrical_says_in_a_line_that_no_lyrical_is_sourced() -> None:
    said = subprocess.run(
        ["make", "--no-print-directory", "test-lyrical"],
        cwd=ROOT, env={**os.environ, "ROS_DISTRO": "kilted"}, capture_output=True, text=True,
        check=True,
    ).stdout.splitlines()  # fmt: skip
    assert len(said) == 1 and "no ROS 2 Lyrical is sourced here" in said[0]
