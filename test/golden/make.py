"""Writes data/*.tar.xz: small checkpoints of the authors' own classes, and what those say.

    python make.py CLONES        with openvla, openvla-oft, openvla-mini, transformers-openvla-oft,
                                 vq_bet_official in the folder CLONES

Run in an environment of its own, see README.md. Nothing of the originals is copied here: their
code runs where it was cloned, at sizes that fit into a repository, with weights from a seed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: What the figures were made with; a clone of something else is refused.
COMMITS = {
    "openvla": "c8f03f4",
    "openvla-oft": "213c5ff",
    "openvla-mini": "0822b36",
    "transformers-openvla-oft": "bc339d9",
    "vq_bet_official": "09d4851",
}
CASES = (
    "openvla", "openvla-lora", "openvla-v01", "squares", "oft-libero", "oft-aloha", "minivla",
    "minivla-vq",
)  # fmt: skip
LEFT_OUT = ("tokenizer.model", "vocab.json", "merges.txt")  # large, and read by nobody here


def check(clones: Path) -> None:
    """Refuse a clone that is missing or at another commit (an archive without .git passes)."""
    for name, commit in COMMITS.items():
        folder = clones / name
        if not folder.is_dir():
            sys.exit(f"no {folder}: clone it there")
        if not (folder / ".git").exists():
            continue
        command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
        found = subprocess.run(command, capture_output=True, text=True).stdout.strip()
        if not found.startswith(commit):
            sys.exit(f"{folder} is at {found[:7]}: check out {commit}")


def run(script: str, *words: object, path: str = "") -> None:
    """One family in a process of its own: each has its own package called prismatic."""
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(HERE / script), *map(str, words)]
    subprocess.run(command, check=True, env=environment)


def pack(directory: Path, target: Path) -> None:
    """The same bytes for the same content."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if Path(info.name).name in LEFT_OUT:
            return None
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        info.mode = 0o755 if info.isdir() else 0o644
        return info

    with tarfile.open(target, "w:xz", preset=9) as archive:
        archive.add(directory, directory.name, filter=plain)


def main(clones: Path) -> None:
    check(clones)
    fork = clones / "transformers-openvla-oft"
    fixtures = fork / "tests" / "fixtures"
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        (out / "squares").mkdir()
        run("make_openvla.py", out, clones / "openvla", fixtures)
        for robot in ("libero", "aloha"):
            oft = clones / "openvla-oft"
            run("make_oft.py", out, oft, fixtures, robot, path=str(fork / "src"))
        run("make_minivla.py", out, clones / "openvla-mini", clones / "vq_bet_official")
        (HERE / "data").mkdir(exist_ok=True)
        for case in CASES:
            target = HERE / "data" / f"{case}.tar.xz"
            pack(out / case, target)
            print(f"{target.name}: {target.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]).resolve())
