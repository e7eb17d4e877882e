"""`make audit` and `make sbom`: known vulnerabilities of what is pinned, and what all of it is.

Both read the requirement files, not an environment: each pinned package once, for every Python, ROS
2 and extra. The tools live in an environment of their own. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from environment import Venv
from over_ros import SetupError, say
from sources import DEFAULT_ROS, LAUNCH, LAUNCH_PYTEST, LIBERO, ROOT, TORCH, digest, lock_file

FOLDER = ROOT / "requirements"
TOOLS = FOLDER / "audit.txt"
EXPLAINED = FOLDER / "explained.txt"
BOM = ROOT / "build" / "sbom.json"
#: built by ROS's own people from ROS's sources; advisories of the index do not know these
OF_ROS = "ros-"


@dataclass(frozen=True)
class Finding:
    """A known vulnerability of a version that is pinned."""

    package: str
    version: str
    number: str  # of the advisory
    fixed_in: tuple[str, ...]

    def __str__(self) -> str:
        mend = f"fixed in {', '.join(self.fixed_in)}" if self.fixed_in else "no fixed version"
        return f"{self.package} {self.version}: {self.number}, {mend}"


@dataclass
class Answer:
    """What the index knew of the packages of one file or of several."""

    asked: int = 0
    findings: tuple[Finding, ...] = ()
    unknown: tuple[str, ...] = ()  # packages that it has no answer for

    def __add__(self, other: Answer) -> Answer:
        return Answer(
            self.asked + other.asked,
            tuple(dict.fromkeys((*self.findings, *other.findings))),
            tuple(dict.fromkeys((*self.unknown, *other.unknown))),
        )


def pinned_files() -> list[Path]:
    """Every file that pins what some make target or verb installs."""
    return [
        *sorted(FOLDER.glob("lock-*.txt")),
        *(TORCH, LIBERO, LAUNCH, LAUNCH_PYTEST, FOLDER / "docs.txt", FOLDER / "release.txt", TOOLS),
        ROOT / "vla_ros" / "policies" / "lerobot" / "requirements.txt",
    ]


def answer_of(report: Mapping[str, Any]) -> Answer:
    """pip-audit's JSON."""
    findings, unknown = [], []
    for package in report["dependencies"]:
        if "skip_reason" in package:
            unknown.append(package["name"])
        for one in package.get("vulns", ()):
            fixed = tuple(one.get("fix_versions", ()))
            findings.append(Finding(package["name"], package["version"], one["id"], fixed))
    return Answer(len(report["dependencies"]), tuple(findings), tuple(unknown))


def explained(text: str) -> dict[tuple[str, str], str]:
    """(advisory, package) to the reason, of requirements/explained.txt."""
    found = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            words = line.split(maxsplit=2)
            if len(words) < 3:
                raise SetupError(f"{EXPLAINED.name}: {line!r}: wanted ID, package and a reason")
            found[words[0], words[1]] = words[2]
    return found


def judge(
    answer: Answer, reasons: Mapping[tuple[str, str], str], where_possible: bool = False
) -> tuple[list[str], bool]:
    """What to print, and whether all is well: nothing found that is not explained, and every
    package but those of ROS was known. Silence of the index is not health; ``where_possible``: it
    is passed over, in one line.
    """
    lines = []
    open_ones = [f for f in answer.findings if (f.number, f.package) not in reasons]
    for finding in answer.findings:
        reason = reasons.get((finding.number, finding.package))
        lines.append(f"{finding}" + (f" (passed over: {reason})" if reason else ""))
    silent = [name for name in answer.unknown if not name.startswith(OF_ROS)]
    passed = where_possible and bool(silent)
    stale = sorted(set(reasons) - {(f.number, f.package) for f in answer.findings})
    if passed:  # what is not found may not have been asked for
        stale = []
    lines += [f"{EXPLAINED.name}: {number} of {package} is not found any more: take it out"
              for number, package in stale]  # fmt: skip
    known = answer.asked - len(answer.unknown)
    lines.append(
        f"{known} of {answer.asked} packages are known to the index, {len(open_ones)} findings,"
        f" {len(answer.findings) - len(open_ones)} explained"
    )
    if silent:
        lines.append(
            f"nothing is known of {len(silent)} that are not ROS's, such as"
            f" {', '.join(silent[:5])}: this index may not answer (pypi.org does); they are not"
            " audited"
        )
    return lines, not (open_ones or stale or (silent and not passed))


def audit(venv: Venv, where_possible: bool = False) -> bool:
    """Ask about every pinned package. SetupError: pip-audit failed, and why."""
    reports: dict[str, Any] = {}
    for path in pinned_files():
        say(f"asking about {path.relative_to(ROOT)}")
        words = ("--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off")
        done = _run(venv, "pip-audit", "-r", str(path), *words)
        if not done.stdout.lstrip().startswith("{"):
            last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            raise SetupError(f"pip-audit could not ask: {last}")
        for package in json.loads(done.stdout)["dependencies"]:
            key = f"{package['name']} {package.get('version', '')}"
            reports[key] = package
    answer = answer_of({"dependencies": list(reports.values())})
    reasons = explained(EXPLAINED.read_text(encoding="utf-8"))
    lines, well = judge(answer, reasons, where_possible)
    for line in lines:
        print(line)
    return well


def sbom(venv: Venv) -> Path:
    """A bill of materials in CycloneDX of the default environment: lock file and torch."""
    lock = lock_file(DEFAULT_ROS, sys.version_info[:2])
    if not lock.is_file():
        raise SetupError(f"{lock.name} is not there: make sbom PYTHON=python3.11")
    both = lock.read_text(encoding="utf-8") + TORCH.read_text(encoding="utf-8")
    words = ("requirements", "--of", "JSON", "--output-reproducible", "-")
    done = _run(venv, "cyclonedx-py", *words, text=both)
    if done.returncode:
        raise SetupError(f"cyclonedx-py failed: {done.stderr.strip().splitlines()[-1]}")
    bom = with_root(json.loads(done.stdout))
    BOM.parent.mkdir(exist_ok=True)
    BOM.write_text(json.dumps(bom, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    say(f"{BOM.relative_to(ROOT)}: {len(bom['components'])} components, CycloneDX"
        f" {bom['specVersion']}")  # fmt: skip
    return BOM


def with_root(bom: dict[str, Any]) -> dict[str, Any]:
    """What the bill is of: package.xml's name and version, which depend on all the rest."""
    package = ElementTree.parse(ROOT / "package.xml").getroot()
    name, version = (str(package.findtext(tag)) for tag in ("name", "version"))
    purl = f"pkg:pypi/{name.replace('_', '-')}@{version}"
    root = {"type": "application", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    bom.setdefault("metadata", {})["component"] = root
    parts = sorted(part["bom-ref"] for part in bom["components"])
    others = [d for d in bom.get("dependencies", []) if d["ref"] != purl]
    return {**bom, "dependencies": [{"ref": purl, "dependsOn": parts}, *others]}


def _run(
    venv: Venv, tool: str, *words: str, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    command: Iterable[str] = [str(venv.folder / "bin" / tool), *words]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        list(command), input=text if text is not None else "", capture_output=True, text=True,
        env=env, cwd=ROOT,
    )  # fmt: skip


def install(venv: Venv) -> None:
    """The two tools and what they need, in the versions that were tried."""
    venv.create()
    key = digest([TOOLS])
    if venv.remembered("audit") == key:
        return
    say("installing pip-audit and cyclonedx-bom (90 MB)")
    venv.pip("--quiet", "-r", str(TOOLS))
    venv.remember("audit", key)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["audit", "sbom"])
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument(
        "--where-possible",
        action="store_true",
        help="pass over, with one line, what needs an index that does not answer; findings fail",
    )
    args = parser.parse_args()
    try:
        venv = Venv(args.venv.absolute(), "audit")
        install(venv)
        if args.what == "audit":
            return 0 if audit(venv, args.where_possible) else 1
        sbom(venv)
    except SetupError as error:
        print(f"{args.what}{' skipped' if args.where_possible else ''}: {error}", file=sys.stderr)
        return 0 if args.where_possible else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
