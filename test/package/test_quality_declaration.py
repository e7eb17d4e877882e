"""What a repository promises on its pages for people is what is there."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "QUALITY_DECLARATION.md").is_file():
    pytest.skip("no checkout here", allow_module_level=True)
DECLARED = (ROOT / "QUALITY_DECLARATION.md").read_text(encoding="utf-8")
PACKAGE = ElementTree.parse(ROOT / "package.xml").getroot()


def test_the_declaration_names_the_version_the_license_and_files_that_are_there():
    assert PACKAGE.findtext("version") in DECLARED
    assert PACKAGE.findtext("license") in DECLARED
    for target in re.findall(r"\]\((?!http)([^)#]+)", DECLARED):
        assert (ROOT / target).exists(), target
    for target in re.findall(r"`make ([\w-]+)`", DECLARED):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
    for path in re.findall(r"`(test/[\w/.]+)`", DECLARED):
        assert (ROOT / path).is_file(), path


def test_the_tools_that_it_names_run_in_make_check():
    check = (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    for tool in ("ruff", "mypy", "lint-imports"):
        assert tool in check and tool.split("-")[0] in DECLARED.replace("import-linter", "lint")
    assert "disallow_untyped_defs = true" in (ROOT / "pyproject.toml").read_text()
    assert "pull_request" in (ROOT / ".github/workflows/test.yml").read_text()


def test_the_platforms_that_it_claims_are_those_that_ran():
    (line,) = (line for line in DECLARED.splitlines() if line.startswith("| 6 "))
    distros = (ROOT / "docs/reference/distros.md").read_text(encoding="utf-8")
    for distro in re.findall(r"Kilted|Jazzy|Humble|Lyrical", line):
        rows = [row for row in distros.splitlines() if row.startswith(f"| {distro}")]
        assert any("all tests" in row for row in rows), distro


@pytest.fixture
def changelog(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "requirements")
    return importlib.import_module("changelog_rst")


def test_the_changelog_of_catkin_tools_is_fresh_and_whole(changelog):
    written = changelog.SOURCE.read_text(encoding="utf-8")
    made = changelog.rst(written)
    assert changelog.TARGET.read_text(encoding="utf-8") == made, "make changelog"
    points = sum(line.startswith("- ") for line in written.splitlines())
    assert sum(line.startswith("* ") for line in made.splitlines()) == points


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ("a `b` and **c**", "a ``b`` and c"),
        ("`POST /act`s", r"``POST /act``\ s"),
        ("see [this page](docs/a.md), a_b * c", r"see this page, a\_b \* c"),
    ],
)
def test_markdown_becomes_restructuredtext(changelog, written, becomes):
    assert changelog.inline(written) == becomes
    text = changelog.rst(f"# C\n\n## 1.2.3 (2026-01-02)\n- {written}\n  and more\n")
    assert f"1.2.3 (2026-01-02)\n------------------\n* {becomes} and more\n" in text
    with pytest.raises(ValueError, match="names no version"):
        changelog.rst("## soon\n")


def test_the_files_that_tools_read_can_be_read():
    for path in (".pre-commit-config.yaml", "CITATION.cff", *ROOT.glob(".github/*/*.yml")):
        assert yaml.safe_load((ROOT / path).read_text(encoding="utf-8")), path
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == PACKAGE.findtext("version")
    assert cited["license"] == PACKAGE.findtext("license")
    lines = (ROOT / ".devcontainer/devcontainer.json").read_text().splitlines()
    container = json.loads("\n".join(line for line in lines if not line.startswith("//")))
    dockerfile = (ROOT / ".devcontainer" / container["build"]["dockerfile"]).read_text()
    assert f" AS {container['build']['target']}\n" in dockerfile


def test_pre_commit_runs_what_is_there():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    for hook in hooks:
        for word in hook["entry"].split():
            assert not word.startswith("requirements/") or (ROOT / word).is_file(), hook
