"""Nonsense to everything that reads what strangers send: never a dead node, a traceback, a hang,
or a command that should not be.

    make fuzz                       10^5 executed messages, and thousands of files
    make fuzz NIGHT=1               10^7 and a hundred times the files
    cd test && python -m endurance.fuzz --only bags --files 500 --seed 7

What is counted is what was executed: a message that a callback got, a file that was read. Exit
status: 0 nothing was found, 1 something was, each finding with the seed that makes it again.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if (ROOT / "vla_ros" / "msg").is_dir():
    sys.path.insert(0, str(ROOT))  # a checkout with messages; else the installed package

from endurance.fuzz_files import STAGES, Finding, prepare, run_stage


def main() -> int:
    """Run, count, say."""
    parser = argparse.ArgumentParser(prog="fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000, help="executed (100000)")
    parser.add_argument("--files", type=int, default=1000, help="of each kind (1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", nargs="+", choices=("topics", "parameters", *STAGES), help="some of it"
    )
    parser.add_argument("--json", action="store_true", help="one last line for a program")
    args = parser.parse_args()
    executed: dict[str, int] = {}
    findings: list[Finding] = []
    for stage in args.only or ("topics", "parameters", *STAGES):
        begun = time.monotonic()
        if stage in STAGES:
            with tempfile.TemporaryDirectory() as folder:
                prepare(Path(folder), stage)
                done, found = run_stage(
                    stage, args.files, args.seed, Path(folder), _Progress(stage, args.files)
                )
            executed[stage] = done
        else:
            from endurance.fuzz_topics import fuzz_parameters, fuzz_topics

            run = fuzz_topics if stage == "topics" else fuzz_parameters
            count = args.messages if stage == "topics" else max(100, args.messages // 100)
            counts, found = run(count, args.seed, _Progress(stage, count))
            executed |= counts
        findings += found
        print(
            f"{stage}: {executed.get(stage, '')} executed in {time.monotonic() - begun:.0f} s, "
            f"{len(found)} findings",
            flush=True,
        )
    _say(executed, findings)
    if args.json:
        kinds = Counter(f"{one.stage}: {one.what}" for one in findings)
        print(json.dumps({"executed": executed, "findings": kinds, "seed": args.seed}))
    return int(bool(findings))


class _Progress:
    """A line every ten seconds."""

    def __init__(self, stage: str, total: int) -> None:
        self._stage, self._total, self._shown = stage, total, time.monotonic()

    def __call__(self, done: int) -> None:
        if time.monotonic() - self._shown > 10:
            self._shown = time.monotonic()
            print(f"  {self._stage}: {done} of {self._total}", flush=True)


def _say(executed: dict[str, int], findings: list[Finding]) -> None:
    print("executed: " + ", ".join(f"{count} {what}" for what, count in executed.items()))
    first: dict[tuple[str, str], Finding] = {}
    times: Counter[tuple[str, str]] = Counter()
    for one in findings:
        key = (one.stage, re.sub(r"0x[0-9a-f]+|[\d.]+", "#", one.what + one.trace[-200:]))
        first.setdefault(key, one)
        times[key] += 1
    for key, one in first.items():
        print(f"\n{one.stage}, seed {one.seed}, {times[key]} times: {one.what}\n{one.trace}")
    print("nothing was found" if not findings else f"FOUND {len(first)} kinds of failure")


if __name__ == "__main__":
    sys.exit(main())
