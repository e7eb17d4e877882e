"""`make release`: a wheel that is not as promised is found, and workflows run pinned actions."""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "requirements").is_dir():
    pytest.skip("no checkout here", allow_module_level=True)
sys.path.insert(0, str(ROOT / "requirements"))
import release
from over_ros import SetupError

sys.path.remove(str(ROOT / "requirements"))

STUDY = "vla_ros/shipped/tabletop-oft/model.safetensors"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def wheel(
    folder: Path,
    name: str,
    lacks: str = "",
    more: Sequence[str] = (),
    version: str = "",
    body: str = "# vla_ros",
    needs: str = "numpy",
) -> Path:
    """A wheel of ``name`` with the files that are promised, but for ``lacks``, and ``more``."""
    path, promised = folder / f"{name}-1.2.3-py3-none-any.whl", release.PROMISED[name]
    metadata = (
        f"Name: {name}\nVersion: {version or release.version()}\nLicense: Apache-2.0\n"
        f"Requires-Dist: {needs}\n\n{body}"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.dist-info/METADATA", metadata)
        archive.writestr(f"{name}.dist-info/entry_points.txt", f"[group]\n{promised.entry_point}\n")
        for file in (*(file for file in promised.files if file != lacks), *more):
            archive.writestr(file, "")
    return path


@pytest.fixture(autouse=True)
def told(monkeypatch, tmp_path):
    """A checkout with a changelog of this version."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "package.xml").write_text("<package><version>1.2.3</version></package>")
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 - 2026-11-24\n")
    monkeypatch.setattr(release, "ROOT", root)


@pytest.mark.parametrize("name", release.PROMISED)
def test_a_wheel_as_promised_is_passed(tmp_path, name) -> None:
    assert release.wrong_in(wheel(tmp_path, name)) == []


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("vla_ros", {"lacks": "vla_ros/py.typed"}, "py.typed is missing"),
        (
            "vla_ros",
            {"more": ["vla_ros/shipped/tabletop-oft/model.safetensors"]},
            "only studies need",
        ),
        ("vla_ros", {"version": "0.0.1"}, "version 0.0.1, package.xml says 1.2.3"),
        ("vla_ros", {"body": ""}, "no long description"),
        ("vla_ros_lab", {"needs": "vla-ros[model] == 1.2.2"}, "package.xml says 1.2.3"),
    ],
)
def test_what_is_not_as_promised_is_one_line(tmp_path, name, given, says) -> None:
    (line,) = release.wrong_in(wheel(tmp_path, name, **given))
    assert says in line


def test_what_is_not_built_or_too_large_is_said(tmp_path, monkeypatch) -> None:
    (tmp_path / "vla_ros-1.2.2.tar.gz").touch()
    with pytest.raises(SetupError, match=r"no vla_ros-1\.2\.3\.tar\.gz: make dist"):
        release.built(tmp_path)
    for name, kind in (("vla_ros", "cp311-cp311-linux_x86_64"), ("vla_ros_lab", "py3-none-any")):
        (tmp_path / f"{name}-1.2.3.tar.gz").write_bytes(b"12345678")
        (tmp_path / f"{name}-1.2.3-{kind}.whl").write_bytes(b"12345678")
    made = release.built(tmp_path)
    assert len(made) == 4 and release.too_large(made) == []
    monkeypatch.setattr(release, "MOST_MB", {".whl": 7e-6, ".gz": 40.0})
    assert all(".whl has" in line for line in release.too_large(made))
    assert len(release.too_large(made)) == 2


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_what_is_here_and_actions_by_their_hash(path) -> None:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert all(job["timeout-minutes"] for job in jobs.values())
    for step in steps:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step.get("uses", "a@" + 40 * "0"))
    targets = re.findall(r"^([a-z0-9-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    said = [word for s in steps for word in re.findall(r"\bmake ([a-z-]+)", s.get("run", ""))]
    assert set(said) <= set(targets)
    programs = [s["run"] for s in steps if s.get("run", "").startswith(".ci/")]
    assert all((ROOT / program).is_file() for program in programs)
    assert said or programs
