"""Bring back the weights of the studies' checkpoints from the history of this repository.

`shipped:tabletop` and `shipped:tabletop-flow` are tracked; the three others, which only studies
need, are 37 MB that every checkout would carry. Git keeps them by the name of their content, so
what is written is the same to the last byte, and SHA-256 says so. `make install` and `make weights`
run this; standard library only.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys

from over_ros import say
from sources import ROOT

SHIPPED = ROOT / "vla_ros" / "shipped"
#: file below vla_ros/shipped -> git's name of its content, SHA-256
KEPT = {
    "tabletop-chunk/model.safetensors": (
        "dc608dae61e9a58793baa3ef71dc7d2bbbf66823",
        "46b246a682dfbb78904936007d1c0c116daef713e62e6d3b67e55130b6627a9a",
    ),
    "tabletop-chunk/draft_head/model.safetensors": (
        "4930cfe292c972ba4113a6ff0d286452e9941e7b",
        "bc8f584ecc54769d12f760dcd5560990f1879b4cd1891cc232554982e34bb3cc",
    ),
    "tabletop-draft/model.safetensors": (
        "2476e0361a885ee3acffcff093e90ce63d9df67a",
        "aa700e89830d1384650d45d83a1a019a825c88e9c7338fe2e752759c97680545",
    ),
    "tabletop-oft/model.safetensors": (
        "27034cd99433e3746d1738b71745afd425ef4bf0",
        "a57bb481b8193c5c00722efd0a06fddc471dd63015fc361a1dab0e2e159ce530",
    ),
}


def content(blob: str) -> bytes | None:
    """What git has under this name. None: nothing, or this is no clone."""
    command = ["git", "-C", str(ROOT), "cat-file", "blob", blob]
    try:
        return subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def restore() -> list[str]:
    """Write what is not there; returns the names of those that could not be had."""
    missing = []
    for name, (blob, sha256) in KEPT.items():
        path = SHIPPED / name
        if path.is_file() or not path.parent.is_dir():  # there, or no sources here
            continue
        found = content(blob)
        if found is None or hashlib.sha256(found).hexdigest() != sha256:
            missing.append(name)
            continue
        part = path.with_suffix(".part")
        part.write_bytes(found)
        part.replace(path)
    return missing


def main() -> int:
    missing = restore()
    if missing:
        say(
            f"weights of studies that this copy has no history of: {', '.join(missing)};"
            " in a shallow clone: git fetch --unshallow, then make weights"
        )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
