"""Certificates of the shipped checkpoints and of a small random one of every family: a table.

    python benchmarks/exact.py                 # a quarter of an hour of a CPU
    python benchmarks/exact.py shipped:tabletop

Each is made by `vla-ros verify --exact`, in a process of its own, and kept in
benchmarks/exact/NAME-DTYPE/; exact.md has a line of every one that is there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

OUT = Path(__file__).parent / "exact"
DRAFT = ("--draft-checkpoint", "shipped:tabletop-draft")
PLAIN = ("--dtype", "float32", "--synthetic", "--frames", "6")
#: checkpoint -> the flags of each of its certificates
ASKED = {
    "shipped:tabletop": [
        ("--dtype", "float32", "--frames", "12", *DRAFT),
        ("--dtype", "bfloat16", "--frames", "6", *DRAFT),
    ],
    "shipped:tabletop-flow": [
        ("--dtype", "float32", "--frames", "12"),
        ("--dtype", "bfloat16", "--frames", "6"),
    ],
    **{
        f"random:{name}": [PLAIN]
        for name in (
            *("small", "small-chunk", "small-oft", "bitvla-small", "pi0_fast-small"),
            *("smolvla-small", "pi0-small", "pi05-small", "evo1-small", "turbovla-small"),
            *("groot-n1.5-small", "groot-n1.6-small", "groot-n1.7-small"),
        )
    },
}


def main() -> int:
    """Make those that are named, all by default, and the table. 1 where one did not pass."""
    failed = False
    for checkpoint in sys.argv[1:] or ASKED:
        for flags in ASKED[checkpoint]:
            folder = OUT / f"{checkpoint.replace(':', '-')}-{flags[1]}"
            command = [sys.executable, "-m", "vla_ros", "verify", "--exact", "--checkpoint"]
            ended = subprocess.run([*command, checkpoint, *flags, "--output", folder], check=False)
            failed |= ended.returncode != 0
    lines = [
        "| checkpoint, precision | frames | ways and verdicts | actions apart | guaranteed |",
        "|---|---|---|---|---|",
        *(line(json.loads(path.read_text())) for path in sorted(OUT.glob("*/certificate.json"))),
    ]
    (OUT / "exact.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return int(failed)


def line(found: dict) -> str:
    """A certificate in one line."""
    verdicts = Counter(way["verdict"] for way in found["ways"])
    ways = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    apart = max(way["apart"] for way in found["ways"])
    return (
        f"| {found['checkpoint']}, {found['precision']} | {found['frames']['count']} | {ways} |"
        f" {apart:.1g} | {found['guaranteed'].partition(':')[0].partition(';')[0]} |"
    )


if __name__ == "__main__":
    sys.exit(main())
