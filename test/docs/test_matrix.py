"""The fault matrix: every row names its tests, and every test that it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TEST = Path(__file__).resolve().parents[1]
PAGE = TEST.parent / "docs" / "explanation" / "safety.md"
MATRIX = PAGE.read_text().partition("## Fault matrix")[2].partition("\n## ")[0]


def test_every_row_of_the_fault_matrix_has_tests_that_exist():
    named = re.findall(r"^\d+\. `(\S+)::(test_\w+)`$", MATRIX, re.MULTILINE)
    assert len(named) > 20
    for file, name in named:
        tree = ast.parse((TEST / file).read_text())
        assert any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body), (
            f"{PAGE.name} names {file}::{name}, which is not there"
        )
    rows = re.findall(r"^\| (?!fault |-)(.+) \|$", MATRIX, re.MULTILINE)
    assert len(rows) > 20
    for row in rows:
        numbers = [int(n) for n in row.rpartition("|")[2].split(",")]
        assert all(1 <= n <= len(named) for n in numbers), row
