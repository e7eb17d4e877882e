"""The rare hang of Fast DDS, provoked and counted: how often, and under which settings?

    make dds-hang CYCLES=3000                                        the shipped profile
    make dds-hang CYCLES=3000 ARGS="--initial 1000000 --period 0.005"     thick ones
    make dds-hang ARGS="--initial 5 --announcement 3 --life 4"   other settings, participants of 4 s

Some processes on a domain of their own (:mod:`endurance.dds_churn`) make and destroy publishers
that all have reliable readers elsewhere. A process without a cycle for ``--hang-after`` seconds
whose threads all sleep hangs: gdb's stacks say in which cycle of locks. It is killed, another
takes its place, until ``CYCLES`` are done. Exit status: 0 no hang, 1 some, 2 bad arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if (ROOT / "vla_ros" / "msg").is_dir():
    sys.path.insert(0, str(ROOT))  # a checkout with messages; else the installed package

from endurance.dds_settings import add_arguments, described, environment
from endurance.growth import poisson
from endurance.stacks import all_asleep, cycle, have_gdb, native

CHURN = Path(__file__).with_name("dds_churn.py")
START_S = 60.0  # until a process has done its first cycle, on a busy machine
LOOK_S = 1.0
SAY_S = 10.0


@dataclass
class Count:
    """What was seen. ``hangs`` by the timer in the cycle of locks; "not read" without gdb."""

    cycles: int = 0
    hangs: Counter[str] = field(default_factory=Counter)
    stacks: list[str] = field(default_factory=list)
    process_s: float = 0.0  # of processes that did not hang

    @property
    def hung(self) -> int:
        return self.hangs.total()

    def per_thousand(self) -> tuple[float, float, float]:
        """Hangs in 1,000 cycles with the 95 % interval."""
        low, high = poisson(self.hung)
        return tuple(1000 * n / max(1, self.cycles) for n in (self.hung, low, high))  # type: ignore


class Churner:
    """One process, and when it was last seen to get on."""

    def __init__(self, slot: int, life: float, counts: Path, env: dict[str, str]) -> None:
        self.slot = slot
        self._command = [sys.executable, str(CHURN), str(counts), str(slot), str(life)]
        self._env = env
        self.begin()

    def begin(self) -> None:
        """Also after a hang: the process anew."""
        self._process = subprocess.Popen(
            self._command, env=self._env, stdin=subprocess.DEVNULL, start_new_session=True
        )
        self._moved = time.monotonic() + START_S

    @property
    def pid(self) -> int:
        return self._process.pid

    def moved(self) -> None:
        """It has done a cycle."""
        self._moved = time.monotonic()

    def still_s(self) -> float:
        """Without a cycle for so long."""
        if self._process.poll() is not None:
            raise RuntimeError(f"a process of the churn ended with {self._process.returncode}")
        return time.monotonic() - self._moved

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def churn(
    processes: int, cycles: int, life: float, hang_s: float, env: dict[str, str], most_s: float
) -> Iterator[Count]:
    """Yields the count about once a second; ends when ``cycles`` are done or after ``most_s``."""
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "counts"
        file.write_bytes(bytes(8 * processes))
        churners = [Churner(slot, life, file, env) for slot in range(processes)]
        seen = [0] * processes
        begun = last = time.monotonic()
        try:
            with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as shared:
                while count.cycles < cycles and time.monotonic() - begun < most_s:
                    time.sleep(LOOK_S)
                    now = struct.unpack(f"{processes}Q", shared[:])
                    passed, last = time.monotonic() - last, time.monotonic()
                    for churner in churners:
                        if now[churner.slot] > seen[churner.slot]:
                            churner.moved()
                            count.process_s += passed
                        elif churner.still_s() > hang_s and all_asleep(churner.pid):
                            _examine(churner, count)
                    count.cycles += sum(now) - sum(seen)
                    seen = list(now)
                    yield count
        finally:
            for churner in churners:
                churner.kill()


def _examine(churner: Churner, count: Count) -> None:
    stacks = native(churner.pid)
    kind = cycle(stacks) or ("another" if stacks else "not read")
    count.hangs[kind] += 1
    count.stacks.append(stacks)
    churner.kill()
    churner.begin()


def main() -> int:
    """Run, count, say."""
    args = _arguments()
    if args.processes < 2:
        print("--processes: two at least, a reader and a writer that goes", file=sys.stderr)
        return 2
    if not have_gdb():
        print("no gdb here: hangs are counted, not looked into (apt-get install gdb)")
    begun = shown = time.monotonic()
    count = Count()
    with environment(args) as env, contextlib.suppress(KeyboardInterrupt):
        for count in churn(
            args.processes, args.cycles, args.life, args.hang_after, env, 60 * args.minutes
        ):
            if time.monotonic() - shown > SAY_S:
                shown = time.monotonic()
                print(f"{count.cycles} of {args.cycles} cycles, {count.hung} hangs", flush=True)
    return _say(count, args, time.monotonic() - begun)


def _say(count: Count, args: argparse.Namespace, seconds: float) -> int:
    share, low, high = count.per_thousand()
    print(
        f"{count.hung} hangs in {count.cycles} cycles of {args.processes} processes in "
        f"{seconds / 60:.1f} min: {share:.2f} in 1,000 (95 %: {low:.2f} to {high:.2f})"
    )
    for kind, number in count.hangs.items():
        print(f"  event thread in: {kind}: {number}")
    if args.stacks and count.stacks:
        args.stacks.write_text("\n\n".join(count.stacks))
    if args.json:
        record: dict[str, object] = {
            "cycles": count.cycles,
            "hangs": dict(count.hangs),
            "per_thousand": (share, low, high),
            "process_s": round(count.process_s),
            "processes": args.processes,
            "life_s": args.life,
        }
        print(json.dumps(record | described(args)))
    return int(bool(count.hung))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dds_hang", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cycles", type=int, default=3000, help="of all processes (3000)")
    parser.add_argument("--minutes", type=float, default=60.0, help="at most (60)")
    parser.add_argument("--processes", type=int, default=4, help="(4)")
    parser.add_argument("--life", type=float, default=1e9, help="of a participant, s (endless)")
    parser.add_argument("--hang-after", type=float, default=60.0, help="s without a cycle (60)")
    add_arguments(parser)
    parser.add_argument("--stacks", type=Path, help="write the stacks of hung processes here")
    parser.add_argument("--json", action="store_true", help="one last line for a program")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
