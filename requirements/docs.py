"""`make docs`: build the documentation site into site/, with Zensical in an environment of its own.

Strict: a link or an anchor that leads to nothing ends it. Standard library only.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import docs_site
from environment import Venv
from over_ros import SetupError, say
from sources import ROOT, digest

REQUIREMENTS = ROOT / "requirements" / "docs.txt"
OLDEST = (3, 11)  # that Zensical's packages have


def install(venv: Venv) -> None:
    """Zensical and what it needs, in the versions that were tried."""
    venv.create()
    key = digest([REQUIREMENTS])
    if venv.remembered("docs") == key:
        return
    say("installing Zensical (140 MB)")
    venv.pip("--quiet", "-r", str(REQUIREMENTS))
    venv.remember("docs", key)


def build(venv: Venv) -> Path:
    """The site's first page. SetupError: Zensical found something wrong and said what."""
    config = docs_site.stage(ROOT / "build" / "docs")
    zensical = venv.folder / "bin" / "zensical"
    command = [str(zensical), "build", "--clean", "--strict", "--config-file", str(config)]
    if subprocess.run(command, cwd=config.parent, stdin=subprocess.DEVNULL).returncode:
        raise SetupError("the site was not built; what is wrong stands above")
    site = ROOT / "site"
    shutil.rmtree(site, ignore_errors=True)
    (config.parent / "site").rename(site)  # Zensical writes only beside its configuration
    return site / "index.html"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, required=True)
    args = parser.parse_args()
    try:
        if sys.version_info[:2] < OLDEST:
            raise SetupError("the site needs Python 3.11 or later: make docs PYTHON=python3.12")
        venv = Venv(args.venv.absolute(), "docs")
        install(venv)
        say(f"the site: {build(venv)}")
    except (SetupError, docs_site.PageError) as error:
        print(f"docs: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
