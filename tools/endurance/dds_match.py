"""How long a graph takes to find itself: participants that start together, until all have matched.

    python -m endurance.dds_match --rounds 40                     the shipped profile
    python -m endurance.dds_match --rounds 40 --initial 5 --announcement 3

In each round every process makes a participant at a random moment within ``--spread`` seconds, with
a publisher and a subscription on one topic, and says one latched word. The time runs from the last
one that was made until each has matched and heard all, itself too: what less frequent announcements
cost, beside what :mod:`endurance.dds_hang` says of them. Exit status: 0 all matched in each round,
1 not, 2 bad arguments.
"""

from __future__ import annotations

import argparse
import json
import random
import select
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if (ROOT / "vla_ros" / "msg").is_dir():
    sys.path.insert(0, str(ROOT))

import numpy as np

from endurance.dds_member import GIVE_UP_S
from endurance.dds_settings import add_arguments, described, environment

MEMBER = Path(__file__).with_name("dds_member.py")
ANSWER_S = 120.0  # of a member, on a busy machine; it gives up matching after 20 s
LATE_S = 1.0  # what a user notices
LEAD_S = 0.3  # between the word and the moment, so that all have heard it


def rounds(
    processes: int, number: int, spread: float, env: dict[str, str], seed: int
) -> list[float]:
    """Seconds from the last start to the last match, of each round."""
    rng = random.Random(seed)
    took: list[float] = []
    while len(took) < number:
        took.append(_round([rng.uniform(0.0, spread) for _ in range(processes)], env))
        print(f"{len(took)} of {number}: {took[-1]:.2f} s", file=sys.stderr, flush=True)
    return took


def _round(starts: list[float], env: dict[str, str]) -> float:
    """Processes of its own; those of the last round were killed and announce themselves no more."""
    members = [
        subprocess.Popen(
            [sys.executable, str(MEMBER), str(index), str(len(starts))],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for index in range(len(starts))
    ]
    try:
        for member in members:
            _line(member)
        moment = time.monotonic() + LEAD_S
        for member, start in zip(members, starts, strict=True):
            _tell(member, str(moment + start))
        answers = [tuple(map(float, _line(member).split())) for member in members]
        return max(a[1] for a in answers) - max(a[0] for a in answers)
    finally:
        for member in members:
            member.kill()
            member.wait()


def _tell(member: subprocess.Popen[str], line: str) -> None:
    assert member.stdin is not None
    member.stdin.write(line + "\n")
    member.stdin.flush()


def _line(member: subprocess.Popen[str]) -> str:
    assert member.stdout is not None
    if not select.select([member.stdout], [], [], ANSWER_S)[0]:
        raise RuntimeError(f"a member of the graph hangs: nothing from it for {ANSWER_S:g} s")
    line = member.stdout.readline()
    if not line:
        raise RuntimeError("a member of the graph ended")
    return line


def main() -> int:
    """Run, say."""
    parser = argparse.ArgumentParser(prog="dds_match", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="(40)")
    parser.add_argument("--processes", type=int, default=6, help="(6)")
    parser.add_argument("--spread", type=float, default=0.3, help="of the starts, s (0.3)")
    parser.add_argument("--seed", type=int, default=0, help="(0)")
    parser.add_argument("--json", action="store_true", help="one last line for a program")
    add_arguments(parser)
    args = parser.parse_args()
    if args.processes < 2 or args.rounds < 1:
        print("--processes: two at least, and one round", file=sys.stderr)
        return 2
    with environment(args) as env:
        took = rounds(args.processes, args.rounds, args.spread, env, args.seed)
    p50, p90, longest = np.percentile(took, [50, 90, 100])
    late = sum(seconds > LATE_S for seconds in took)
    print(
        f"{args.processes} participants matched after {p50:.2f} s (90 %: {p90:.2f}, longest "
        f"{longest:.2f}); after {LATE_S:g} s or more in {late} of {len(took)} rounds"
    )
    if args.json:
        numbers = {"rounds": len(took), "p50_s": p50, "p90_s": p90, "longest_s": longest}
        print(json.dumps(numbers | {"late": late} | described(args)))
    return int(longest >= GIVE_UP_S)


if __name__ == "__main__":
    sys.exit(main())
