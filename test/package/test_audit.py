"""make audit and make sbom: how pip-audit's answer is judged, and what a bill holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "requirements").is_dir():
    pytest.skip("no checkout here", allow_module_level=True)
sys.path.insert(0, str(ROOT / "requirements"))
import audit
from over_ros import SetupError

sys.path.remove(str(ROOT / "requirements"))

WELL = {"name": "numpy", "version": "2.3.0", "vulns": []}
ILL = {
    "name": "pillow",
    "version": "11.0.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["11.3.0"], "aliases": [], "description": ""}],
}
SILENT = {"name": "absl-py", "skip_reason": "Dependency not found on PyPI"}
OF_ROS = {"name": "ros-rclpy", "skip_reason": "Dependency not found on PyPI"}


def judged(*packages: dict[str, Any], why: str = "") -> tuple[str, bool]:
    answer = audit.answer_of({"dependencies": list(packages)})
    lines, well = audit.judge(answer, audit.explained(why))
    return "\n".join(lines), well


def test_nothing_found_is_well() -> None:
    assert judged(WELL, OF_ROS) == (
        "1 of 2 packages are known to the index, 0 findings, 0 explained",
        True,
    )


def test_silence_is_passed_over_where_that_is_asked_for_and_a_finding_never() -> None:
    def judged_anyway(*packages: dict[str, Any], why: str = "") -> tuple[str, bool]:
        answer = audit.answer_of({"dependencies": list(packages)})
        lines, well = audit.judge(answer, audit.explained(why), where_possible=True)
        return "\n".join(lines), well

    text, well = judged_anyway(WELL, SILENT, why="PYSEC-1 pillow no robot reads PSD files")
    assert well and "they are not audited" in text and "take it out" not in text
    assert not judged_anyway(SILENT, ILL)[1]
    assert not judged_anyway(WELL, why="PYSEC-1 pillow no robot reads PSD files")[1]


def test_a_finding_fails_with_what_mends_it() -> None:
    text, well = judged(WELL, ILL)
    assert not well
    assert "pillow 11.0.0: PYSEC-1, fixed in 11.3.0" in text


def test_an_explained_finding_is_passed_over_and_still_said() -> None:
    text, well = judged(WELL, ILL, why="# why\nPYSEC-1 pillow no robot reads PSD files\n")
    assert well
    assert "(passed over: no robot reads PSD files)" in text


def test_an_explanation_without_a_finding_is_taken_out() -> None:
    text, well = judged(WELL, why="PYSEC-1 pillow no robot reads PSD files")
    assert not well
    assert "take it out" in text


def test_an_index_that_does_not_answer_is_no_good_news() -> None:
    """pip-audit itself says 'No known vulnerabilities found' then, and exits with 0."""
    text, well = judged(SILENT, OF_ROS)
    assert not well
    assert "nothing is known of 1 that are not ROS's, such as absl-py" in text


def test_a_line_without_a_reason_explains_nothing() -> None:
    with pytest.raises(SetupError, match="wanted ID, package and a reason"):
        audit.explained("PYSEC-1 pillow")


def test_every_file_that_pins_is_asked_about() -> None:
    found = {path.resolve() for path in audit.pinned_files()}
    assert all(path.is_file() for path in found)
    pinned = {
        path.resolve()
        for folder in ("requirements", "vla_ros", "docker")
        for path in (ROOT / folder).rglob("*.txt")
        if any(line[:1].isalpha() and "==" in line for line in path.read_text().splitlines())
    }
    # Versions for `make lock` to choose from: what it chose stands in the lock files.
    assert pinned - found == {(ROOT / "requirements" / "pins.txt").resolve()}


def test_the_tools_are_in_no_environment_that_runs_the_package() -> None:
    ours = [path for path in audit.pinned_files() if path != audit.TOOLS]
    for path in ours:
        names = {line.split("==")[0].strip().lower() for line in path.read_text().splitlines()}
        assert not names & {"pip-audit", "pip_audit", "cyclonedx-bom"}, path
    assert "pip-audit" not in (ROOT / "setup.py").read_text()


def test_a_bill_is_of_this_package_and_all_its_parts() -> None:
    parts = [{"bom-ref": "b"}, {"bom-ref": "a"}]
    bom = audit.with_root({"components": parts, "dependencies": [{"ref": "a"}]})
    root = bom["metadata"]["component"]
    assert root["name"] == "vla_ros" and root["version"][0].isdigit()
    assert bom["dependencies"][0] == {"ref": root["bom-ref"], "dependsOn": ["a", "b"]}
    json.dumps(bom)
