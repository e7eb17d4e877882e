"""`make release`: look at what `make dist` built as an index and a stranger's pip would.

twine reads the metadata, check-wheel-contents the files; then sizes, entry points and the type
marker are held to what is promised here; zizmor and check-jsonschema read .github/. Uploads
nothing. Standard library only.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path
from xml.etree import ElementTree

from environment import Venv
from over_ros import SetupError, say
from sources import ROOT, digest
from weights import KEPT

TOOLS = ROOT / "requirements" / "release.txt"
MOST_MB = {".whl": 40.0, ".gz": 40.0}
#: what the wheel has on purpose: every shipped checkpoint has a tokenizer, and they have the same
PASSED_OVER = "W002"


@dataclass(frozen=True)
class Promised:
    """Files and entry point of a wheel."""

    files: tuple[str, ...]
    entry_point: str


PROMISED = {
    "vla_ros": Promised(
        (
            "vla_ros/py.typed",
            "vla_ros/msg/_action_command.py",
            "vla_ros/shipped/tabletop/config.json",
        ),
        "vla-ros = vla_ros.cli.main:main",
    ),
    "vla_ros_lab": Promised(
        ("vla_ros_lab/py.typed", "vla_ros_lab/report/report.html.j2"), "lab = vla_ros_lab.cli"
    ),
}


def version() -> str:
    """The version of package.xml, the one place where it is written down."""
    return ElementTree.parse(ROOT / "package.xml").getroot().findtext("version", "")


def built(folder: Path) -> list[Path]:
    """Sdist and wheel of vla_ros and of the lab, of this version. SetupError: one is missing."""
    made = []
    for name in PROMISED:
        for pattern in (f"{name}-{version()}.tar.gz", f"{name}-{version()}-*.whl"):
            found = list(folder.glob(pattern))
            if not found:
                raise SetupError(f"{folder} has no {pattern}: make dist")
            made += found
    return made


def wrong_in(wheel: Path) -> list[str]:
    """Broken promises of a wheel, a line each."""
    promised = PROMISED[wheel.name.partition("-")[0]]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(info).decode())
        points = archive.read(info.replace("METADATA", "entry_points.txt")).decode()
    found = [f"{name} is missing" for name in promised.files if name not in names]
    found += [
        f"{n}: weights that only studies need" for n in names if n.partition("shipped/")[2] in KEPT
    ]
    if metadata["Version"] != version():
        found.append(f"version {metadata['Version']}, package.xml says {version()}")
    if metadata["License"] != "Apache-2.0" and metadata["License-Expression"] != "Apache-2.0":
        found.append("no licence Apache-2.0 in the metadata")
    if not metadata.get_payload():
        found.append("no long description")
    if promised.entry_point not in points:
        found.append(f"no entry point {promised.entry_point}")
    for needed in metadata.get_all("Requires-Dist", []):
        of = re.match(r"vla[_-]ros\[.*\] *== *(\S+)", needed)
        if of and of[1] != version():
            found.append(f"it needs {needed}, package.xml says {version()}")
    if f"## {version()}" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        found.append(f"CHANGELOG.md has no heading '## {version()}'")
    return found


def too_large(made: Iterable[Path]) -> list[str]:
    sizes = {path: path.stat().st_size / 1e6 for path in made}
    for path, size in sizes.items():
        print(f"{path.name}  {size:.1f} MB, at most {MOST_MB[path.suffix]:.0f}")
    return [f"{p.name} has {s:.1f} MB" for p, s in sizes.items() if s > MOST_MB[p.suffix]]


def _failed(venv: Venv, tool: str, *words: str) -> list[str]:
    """Run one of the tools; its name where it is not content."""
    say(f"{tool} {' '.join(word for word in words if '/' not in word)}")
    done = subprocess.run([str(venv.folder / "bin" / tool), *words], cwd=ROOT)
    return [f"{tool}: see above"] if done.returncode else []


def look(venv: Venv, made: list[Path]) -> list[str]:
    """Everything that is wrong, a line each."""
    wheels = [path for path in made if path.suffix == ".whl"]
    workflows = [str(path) for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
    return [
        *too_large(made),
        *(f"{wheel.name}: {line}" for wheel in wheels for line in wrong_in(wheel)),
        *_failed(venv, "twine", "check", "--strict", *map(str, made)),
        *_failed(venv, "check-wheel-contents", "--ignore", PASSED_OVER, *map(str, wheels)),
        *_failed(
            venv, "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows
        ),
        *_failed(venv, "zizmor", "--offline", "--quiet", *workflows),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    args = parser.parse_args()
    try:
        venv = Venv(args.venv.absolute(), "release")
        venv.create()
        if venv.remembered("release") != (key := digest([TOOLS])):
            say("installing twine, check-wheel-contents, check-jsonschema and zizmor (60 MB)")
            venv.pip("--quiet", "-r", str(TOOLS))
            venv.remember("release", key)
        wrong = look(venv, built(args.dist))
    except SetupError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for line in wrong:
        print(f"release: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
