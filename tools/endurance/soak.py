"""Trouble a running graph for MINUTES, and judge it by what its topics say.

    make soak MINUTES=60
    cd test && python -m endurance.soak --minutes 15 --seed 1 --out ../soak/one

The simulation, the policy and the monitor run in real time; troubles come from a seed. The same
command again goes on where the last one ended; Ctrl-C saves and ends. Writes soak.json and
soak.html.
Exit status: 0 nothing was broken, 1 something was, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if (ROOT / "vla_ros" / "msg").is_dir():
    sys.path.insert(0, str(ROOT))  # a checkout with messages; else the installed package

from endurance.growth import MemorySample, look
from endurance.judge import Judge
from endurance.page import write_page
from endurance.record import Done, Record
from endurance.stage import Stage
from endurance.troubles import END_A_WORKER, Trouble, draw
from endurance.verdict import SoakVerdict, verdict
from support.domain import leased_domain
from support.nodes import ros_environment
from vla_ros.core.types import PolicyState

#: what a policy needs to know beside its name
CHECKPOINT = {"vla": {"checkpoint": "shipped:tabletop"}}
PATIENCE_S = 60.0  # for RUNNING after a trouble
HELD_S = 3.0  # in HOLD after the end of its cause
#: with --limits: an output, and what an owner sets for this arm. The policy moves at up to 1 m/s:
#: nothing less can be asked of it; of its changes from period to period one in ten is over these
#: and is clamped.
LIMITS = {
    "outputs": ["twist"],
    "jump_limit": 0.25,
    "jerk_limit": 0.5,
    "velocity_limits": [1.0, 1.0, 1.0, 10.0, 10.0, 10.0],
    "acceleration_limits": [10.0, 10.0, 10.0, 100.0, 100.0, 100.0],
}
STEADY_S = 1.0  # of RUNNING, before a trouble counts as over
SAVE_S = 30.0
SAMPLE_S = 5.0
FAULT_S = 1.0  # before somebody recovers it


class Enough(Exception):
    """The time is over, somebody pressed Ctrl-C, or a process is gone."""


def main() -> int:
    """Run, judge, write, say."""
    parser = argparse.ArgumentParser(prog="soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15.0, help="in all (15)")
    parser.add_argument("--seed", type=int, default=0, help="of the troubles (0)")
    parser.add_argument("--policy", default="vla", help="vla, scripted, ... (vla)")
    parser.add_argument("--limits", action="store_true", help="with limits as a robot's owner sets")
    parser.add_argument("--out", type=Path, default=ROOT / "soak", help="folder (soak)")
    parser.add_argument("--json", action="store_true", help="one last line for a program")
    args = parser.parse_args()
    if not args.minutes > 0:
        parser.error(f"--minutes {args.minutes:g}: must be above 0")
    record = Record.load(args.out) or Record(args.seed, args.policy, machine=_machine())
    if (record.seed, record.policy) != (args.seed, args.policy):
        parser.error(
            f"{args.out} holds a soak of --seed {record.seed} --policy {record.policy}: "
            "give those, or another --out"
        )
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if record.ran_s < args.minutes * 60:
        with leased_domain() as domain:
            env = ros_environment(domain)
            os.environ.update(env)
            sitting = Sitting(record, args.out, stop, args.minutes * 60)
            sitting.run(domain, env, LIMITS if args.limits else {})
    found = verdict(record)
    page = write_page(record, found, args.out)
    _say(found, page)
    if args.json:
        print(json.dumps(found.summary))
    return int(bool(found.broken))


class Sitting:
    """One start of the graph until the time is over or it is cut off."""

    def __init__(self, record: Record, out: Path, stop: threading.Event, until_s: float) -> None:
        self._record, self._out, self._stop, self._until_s = record, out, stop, until_s
        self._judge = Judge(violations=record.violations, holds=record.holds)
        self._judge.kinds, self._judge.states = record.kinds, record.states
        self._judge.ages = record.ages
        self._gaps = record.gaps
        out.mkdir(parents=True, exist_ok=True)

    def run(self, domain: int, env: dict[str, str], limits: dict[str, Any]) -> None:
        """Start, trouble, end."""
        record = self._record
        record.sittings += 1
        self._judge.brakes = "acceleration_limits" in limits
        chosen = {"policy": record.policy} | CHECKPOINT.get(record.policy, {}) | limits
        overrides = {"policy": chosen}
        with (self._out / "soak.log").open("a") as file:

            def log(line: str) -> None:
                file.write(f"{time.strftime('%H:%M:%S')} {line}\n")

            self._stage = stage = Stage(domain, env, self._judge, overrides, log)
            self._write = log
            self._begun = self._sampled = self._saved = self._shown = time.monotonic()
            self._before = record.ran_s
            try:
                self._trouble_it()
            except Enough as reason:
                log(f"[soak] {reason}")
            finally:
                self._account()
                stage.close()
                judged = stage.motion.judge.judged
                record.motion.update({" ".join(name): count for name, count in judged.items()})
                record.save(self._out)

    def _trouble_it(self) -> None:
        self._judge.trouble()  # the bring-up is nobody's fault
        self._back(Trouble("start", 0.0, 0.0), time.monotonic())
        troubles = draw(self._record.seed)
        for _ in range(self._record.drawn):
            next(troubles)
        for trouble in troubles:
            self._record.drawn += 1
            if trouble.kind in END_A_WORKER and self._at(time.monotonic()) > self._until_s / 2:
                continue  # the second half shows whether a worker grows, which takes a long life
            self._wait(trouble.wait_s, calm=True)
            self._write(f"[soak] {trouble}")
            self._stage.tell(Judge.trouble)
            began = time.monotonic()
            self._stage.do(trouble, self._wait)
            self._back(trouble, began)

    def _back(self, trouble: Trouble, began: float) -> None:
        """Wait until it runs again, steadily; recover what is latched."""
        over = time.monotonic()
        running: float | None = None
        fault: float | None = None
        held = False
        while True:
            now, state = time.monotonic(), self._stage.state()
            running = (running or now) if state == PolicyState.RUNNING else None
            fault = (fault or now) if state == PolicyState.FAULT else None
            if running is not None and now - running >= STEADY_S:
                break
            if fault is not None and now - fault >= FAULT_S:
                self._stage.recover()
                fault = None
            if state != PolicyState.HOLD:
                held = True  # it was left: another one has another cause
            elif not held and now - over > HELD_S:
                held, at = True, self._stage.now()
                words = f"HOLD {HELD_S:g} s after {trouble}: {self._stage.reason()}"
                self._stage.tell(lambda judge, at=at, words=words: judge.held(at, words))
            if now - over > PATIENCE_S:
                break
            self._wait(0.1)
        if running is None:
            at, state_name = self._stage.now(), state.name if state is not None else "silent"
            words = f"{state_name} {PATIENCE_S:g} s after {trouble}"
            self._stage.tell(lambda judge: judge.stuck(at, words))
            self._stage.resume()
        back = None if running is None else running - over
        self._record.troubles.append(
            Done(trouble.kind, str(trouble), self._at(began), over - began, back)
        )
        self._stage.tell(Judge.calm)

    def _wait(self, seconds: float, calm: bool = False) -> None:
        """Time passes; everything is looked at meanwhile.

        Raises:
            Enough: it is over.
        """
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if self._stop.is_set():
                raise Enough("asked to end")
            if self._at(now) >= self._until_s:
                raise Enough("the time is over")
            name = self._stage.lost()
            if name is not None:
                self._lost(f"{name} ended")
            if now - self._sampled >= SAMPLE_S:
                self._sampled = now
                self._sample(now)
            if now - self._saved >= SAVE_S:
                self._saved = now
                self._account()
                self._record.save(self._out)
            if now - self._shown >= 60:
                self._shown = now
                self._progress()
            if now >= until:
                return
            step = min(0.05, until - now)
            if calm and self._stage.state() == PolicyState.RUNNING:
                self._record.calm_s += step
            self._stop.wait(step)

    def _lost(self, words: str) -> None:
        at = self._stage.now()
        self._stage.tell(lambda judge: judge.lost(at, words))
        raise Enough(words)

    def _sample(self, now: float) -> None:
        for name, pid in self._stage.pids().items():
            found = look(pid)
            if found is not None:
                sample = MemorySample(round(self._at(now), 1), pid, round(found[0], 2), found[1])
                self._record.samples.setdefault(name, []).append(sample)

    def _account(self) -> None:
        self._record.ran_s = self._at(time.monotonic())
        self._record.gaps = self._gaps + self._judge.gaps

    def _at(self, now: float) -> float:
        return self._before + now - self._begun

    def _progress(self) -> None:
        record = self._record
        print(
            f"{record.ran_s / 60:.0f} of {self._until_s / 60:g} min: "
            f"{len(record.troubles)} troubles, "
            f"{sum(record.kinds.values())} commands, {len(record.violations)} broken rules, "
            f"{len(self._judge.false_holds())} false HOLDs",
            flush=True,
        )


def _machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} CPUs"


def _say(found: SoakVerdict, page: Path) -> None:
    for line in found.lines:
        print(line)
    print(f"the page: {page}")


if __name__ == "__main__":
    sys.exit(main())
