"""`make release`: a wheel that is not as promised is found, and workflows run pinned actions."""

from __future__ import annotations

import re
import sys
import zipfile
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

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def wheel(folder: Path, *names: str, version: str = "", body: str = "# vla_ros") -> Path:
    """With these files beside those that are needed."""
    path = folder / "vla_ros.whl"
    metadata = (
        f"Name: vla_ros\nVersion: {version or release.version()}\nLicense: Apache-2.0\n\n{body}"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vla_ros.dist-info/METADATA", metadata)
        points = "[console_scripts]\nvla-ros = vla_ros.cli.main:main\n"
        archive.writestr("vla_ros.dist-info/entry_points.txt", points)
        for name in names:
            archive.writestr(name, "")
    return path


@pytest.fixture(autouse=True)
def told(monkeypatch, tmp_path):
    """A checkout with a changelog of this version."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "package.xml").write_text("<package><version>1.2.3</version></package>")
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 - 2026-11-24\n")
    monkeypatch.setattr(release, "ROOT", root)


def test_a_wheel_as_promised_is_passed(tmp_path) -> None:
    assert release.wrong_in(wheel(tmp_path, *release.NEEDED)) == []


@pytest.mark.parametrize(
    ("lacks", "more", "given", "says"),
    [
        ("vla_ros/py.typed", (), {}, "py.typed is missing"),
        ("", ("vla_ros/shipped/tabletop-oft/model.safetensors",), {}, "only studies need"),
        ("", (), {"version": "0.0.1"}, "version 0.0.1, package.xml says 1.2.3"),
        ("", (), {"body": ""}, "no long description"),
    ],
)
def test_what_is_not_as_promised_is_one_line(tmp_path, lacks, more, given, says) -> None:
    names = [*(n for n in release.NEEDED if n != lacks), *more]
    (line,) = release.wrong_in(wheel(tmp_path, *names, **given))
    assert says in line


def test_what_is_not_built_or_too_large_is_said(tmp_path, monkeypatch) -> None:
    (tmp_path / "vla_ros-1.2.2.tar.gz").touch()
    with pytest.raises(SetupError, match=r"no sdist and wheel of 1\.2\.3: make dist"):
        release.built(tmp_path)
    for name in ("vla_ros-1.2.3.tar.gz", "vla_ros-1.2.3-cp311-cp311-linux_x86_64.whl"):
        (tmp_path / name).write_bytes(b"12345678")
    made = release.built(tmp_path)
    assert release.too_large(made) == []
    monkeypatch.setattr(release, "MOST_MB", {".whl": 7e-6, ".gz": 40.0})
    (line,) = release.too_large(made)
    assert ".whl has" in line


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
