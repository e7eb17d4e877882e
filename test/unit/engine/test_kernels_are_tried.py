"""`make kernels` tries every kernel of Triton that there is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_make_kernels_runs_tests_of_every_kernel() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.search(r"^KERNEL_TESTS := (.+)$", makefile, re.MULTILINE)
    assert found
    tests = [(ROOT / "test" / name).read_text(encoding="utf-8") for name in found[1].split()]
    kernels = [
        path.relative_to(ROOT)
        for path in sorted((ROOT / "vla_ros").rglob("*.py"))
        if re.search(r"^import triton\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert kernels
    modules = [".".join(path.with_suffix("").parts) for path in kernels]
    missed = [name for name in modules if not any(name in text for text in tests)]
    assert not missed, f"in no test that `make kernels` runs: {', '.join(missed)}"
