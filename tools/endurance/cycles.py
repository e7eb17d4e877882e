"""The same thing again and again: does one time in a thousand hang, or leave anything behind?

    make cycles WHAT=lifecycle TIMES=1000     configure, activate, deactivate, cleanup of one node
    make cycles WHAT=kill TIMES=200           SIGKILL of the node or its worker at a random moment
    make cycles WHAT=start TIMES=500          start to WAITING and end, four nodes at a time
    make cycles WHAT=answers TIMES=500        a service asked once, when it is there: answered?
    make cycles WHAT=graph TIMES=500          whole demos, four at a time; ARGS="--profile FILE" and
                                              more of them are Fast DDS profiles, taken by turns

Exit status: 0 nothing hung, was left over or grew; 1 something did, with its log.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if (ROOT / "vla_ros" / "msg").is_dir():
    sys.path.insert(0, str(ROOT))  # a checkout with messages; else the installed package

import numpy as np

from endurance.growth import look
from endurance.stacks import native
from support.domain import leased_domain
from support.nodes import Program, ros_environment, start_node
from support.processes import alive, session
from support.ros import RosPeer
from support.wait import wait_until
from vla_ros.core.types import PolicyState
from vla_ros.msg import PolicyStatus
from vla_ros.ros.bringup.environment import find_leftovers, remove
from vla_ros.ros.common import qos

HANG_S = 60.0  # an answer that takes longer is none
ANSWER_S = 20.0  # of a service that a node has, from its process's start
END_S = 10.0  # of a process that was asked to end, and of children whose parent is gone
AT_A_TIME = 4
MOST_FILES = 8  # more open files at the end than after a tenth of the cycles
PARAMETERS = {"policy": "zero"}


@dataclass
class CycleTally:
    """What went wrong, by kind, with the first log of each; and how long things took, s."""

    done: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    logs: dict[str, str] = field(default_factory=dict)
    took: list[float] = field(default_factory=list)
    notes: dict[str, object] = field(default_factory=dict)

    def fault(self, kind: str, log: str = "") -> None:
        """One more of them."""
        self.wrong[kind] += 1
        self.logs.setdefault(kind, log)


class Lap:
    """Times one cycle; counts what it raises as a hang."""

    def __init__(self, tally: CycleTally, log: Callable[[], str], hung: str = "hung") -> None:
        self._tally, self._log, self._hung = tally, log, hung

    def __enter__(self) -> None:
        self._begun = time.monotonic()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self._tally.done += 1
        self._tally.took.append(time.monotonic() - self._begun)
        if isinstance(error, AssertionError):
            self._tally.fault(self._hung, f"{error}\n{self._log()}")
            return True
        return False


def lifecycle(times: int, domain: int, env: dict[str, str], tally: CycleTally) -> Iterator[int]:
    """All transitions of one node."""
    node = start_node("policy", env, PARAMETERS)
    peer = RosPeer(domain)
    looks: list[tuple[float, int]] = []
    try:
        for number in range(times):
            with Lap(tally, node.said):
                for transition in ("configure", "activate", "deactivate", "cleanup"):
                    done = peer.change_state("/policy", transition, HANG_S)
                    assert done, f"refused to {transition}"
            if node.returncode is not None:
                tally.fault("ended unasked", node.log)
                return
            found = look(node.pid)
            if found is not None:
                looks.append(found)
            yield number + 1
        early = looks[len(looks) // 10 :][:1] or looks[:1]
        (memory, files), (last_memory, last_files) = early[0], looks[-1]
        grown = (last_memory - memory) / max(1, len(looks) - len(looks) // 10)
        tally.notes |= {
            "memory_mb": (round(memory, 1), round(last_memory, 1)),
            "kb_a_cycle": round(1000 * grown, 1),
            "files": (files, last_files),
        }
        if last_files > files + MOST_FILES:
            tally.fault("files left open", f"{files} to {last_files}")
    finally:
        peer.close()
        node.kill()


def kill(
    times: int, domain: int, env: dict[str, str], tally: CycleTally, seed: int
) -> Iterator[int]:
    """SIGKILL at a random moment of the bring-up or of acting, by turns node and worker."""
    rng = random.Random(seed)
    for number in range(times):
        node = start_node("policy", env, PARAMETERS)
        peer = RosPeer(domain)
        status = peer.inbox(PolicyStatus, "/policy/status", qos.LATCHED)
        try:
            with Lap(tally, node.said):
                if number % 2:
                    _kill_worker(peer, status, node, rng)
                else:
                    time.sleep(rng.uniform(0.0, 3.0))
                    with contextlib.suppress(AssertionError):
                        peer.change_state("/policy", "configure", rng.uniform(0.05, 3.0))
            before = session(node.pid)
            node.process.kill()
            node.process.wait()
            left = _left(before, END_S)
            if left:
                tally.fault("orphans", f"{left}: {node.log}")
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        finally:
            peer.close()
            node.kill()
        yield number + 1


def _kill_worker(peer: RosPeer, status: object, node: Program, rng: random.Random) -> None:
    assert peer.change_state("/policy", "configure", HANG_S)
    wait_until(lambda: len(status) and status.last.worker_pid, HANG_S, "a worker")  # type: ignore
    if rng.random() < 0.5:
        assert peer.change_state("/policy", "activate", HANG_S)
    time.sleep(rng.uniform(0.0, 1.0))
    first = int(status.last.worker_pid)  # type: ignore[attr-defined]
    with contextlib.suppress(ProcessLookupError):
        os.kill(first, signal.SIGKILL)
    wait_until(lambda: status.last.worker_pid != first, HANG_S, "the loss of the worker")  # type: ignore
    # It answers, whatever it lost.
    peer.call(_trigger(), "/policy/stop", timeout=HANG_S)


def _trigger() -> type:
    from std_srvs.srv import Trigger

    return Trigger


def start(times: int, domain: int, env: dict[str, str], tally: CycleTally) -> Iterator[int]:
    """Nodes that come up and go, four at a time on one domain."""

    def one(number: int) -> None:
        name = f"policy_{number}"
        node = start_node("policy", env, PARAMETERS, name=name)
        peer = RosPeer(domain)
        try:
            with Lap(tally, node.said):
                peer.bring_up(f"/{name}", HANG_S)
                status = peer.inbox(PolicyStatus, f"/{name}/status", qos.LATCHED)
                status.wait(lambda m: m.state == PolicyState.WAITING, HANG_S)
                before = session(node.pid)
                node.signal(signal.SIGINT)
                assert node.wait(END_S) == 0, "ended with another status than 0"
                left = _left(before, END_S)
            if left:
                tally.fault("orphans", f"{left}: {node.log}")
        finally:
            peer.close()
            node.kill()

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for number, _ in enumerate(pool.map(one, range(times))):
            yield number + 1


def answers(times: int, domain: int, env: dict[str, str], tally: CycleTally) -> Iterator[int]:
    """Nodes that are asked once, as soon as the asker knows their service: discovery goes both
    ways, and the asker may not be known to them yet."""
    from lifecycle_msgs.srv import GetState

    late: Counter[str] = Counter()
    peer = RosPeer(domain, "asker")  # one for all: two participants of a process may deadlock

    def one(number: int) -> None:
        names = f"policy_{number}", f"view_{number}"
        nodes = [
            start_node("policy", env, PARAMETERS, name=names[0]),
            start_node("view", env, {"port": 0}, name=names[1]),
        ]
        try:
            with Lap(tally, nodes[0].said, "answers lost"):
                peer.call(GetState, f"/{names[0]}/get_state", timeout=ANSWER_S)
            late["answers sent late"] += "late, when its asker" in nodes[0].log
            tally.notes |= late
        finally:
            for node in nodes:  # killed ones stay in the graph for 20 s, and disturb it
                node.end()

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for number, _ in enumerate(pool.map(one, range(times))):
            yield number + 1
    peer.close()


def graph(times: int, env: dict[str, str], tally: CycleTally, profiles: list[str]) -> Iterator[int]:
    """Demos that begin and end, each in a domain of its own: nothing may stand for ever."""
    demo = [
        "-m",
        "vla_ros",
        "demo",
        "--policy",
        "scripted",
        "--task",
        "stack_red_on_blue",
        "--timeout",
        "0.3",
    ]
    started: Counter[str] = Counter()

    def one(number: int) -> None:
        profile = profiles[number % len(profiles)] if profiles else ""
        with leased_domain() as domain:
            given = {**env, "ROS_DOMAIN_ID": str(domain)}
            if profile:
                given["FASTDDS_DEFAULT_PROFILES_FILE"] = profile
            program = Program(f"demo with {profile}", [sys.executable, *demo], given)
            try:
                which = f"hung with {profile or 'the shipped profile'}"
                with Lap(tally, partial(_stacks, program), which):
                    code = program.wait(HANG_S)
                if code not in (0, 1):  # 1: not solved in this time
                    tally.fault(f"status {code} {profile}", program.log)
            finally:
                program.kill()
                started[profile or "shipped profile"] += 1
                tally.notes["started"] = dict(started)

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for number, _ in enumerate(pool.map(one, range(times))):
            yield number + 1


def _stacks(program: Program) -> str:
    return f"{native(program.pid)}\n{program.log}"


def _left(pids: list[int], seconds: float) -> list[int]:
    """Those that still live after so long; a zombie does not."""
    until = time.monotonic() + seconds
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def main() -> int:
    """Run, count, say."""
    parser = argparse.ArgumentParser(prog="cycles", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("lifecycle", "kill", "start", "answers", "graph"))
    parser.add_argument("--times", type=int, default=100, help="(100)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    parser.add_argument("--profile", action="append", help="graph: a Fast DDS profile; by turns")
    parser.add_argument("--json", action="store_true", help="one last line for a program")
    args = parser.parse_args()
    tally = CycleTally()
    remove(find_leftovers())
    begun = shown = time.monotonic()
    with leased_domain() as domain:
        env = ros_environment(domain)
        os.environ.update(env)
        runs = {
            "lifecycle": lambda: lifecycle(args.times, domain, env, tally),
            "kill": lambda: kill(args.times, domain, env, tally, args.seed),
            "start": lambda: start(args.times, domain, env, tally),
            "answers": lambda: answers(args.times, domain, env, tally),
            "graph": lambda: graph(args.times, env, tally, args.profile or []),
        }
        with contextlib.suppress(KeyboardInterrupt):
            for number in runs[args.what]():
                if time.monotonic() - shown > 10:
                    shown = time.monotonic()
                    print(
                        f"{number} of {args.times}: {dict(tally.wrong) or 'nothing wrong'}",
                        flush=True,
                    )
    # What was killed leaves its segments; the next start clears them, as here. More is a leak.
    leftovers = find_leftovers(min_age_s=0.0)
    remove(leftovers)
    removed = {one.name for one in leftovers}
    stuck = [one for one in find_leftovers(min_age_s=0.0) if one.name in removed]
    if stuck:  # others that are there now are of somebody else who was killed meanwhile
        tally.fault("shared memory left", str(stuck))
    p50, p99, longest = np.percentile(tally.took, [50, 99, 100]) if tally.took else (0, 0, 0)
    print(
        f"{args.what}: {tally.done} cycles in {(time.monotonic() - begun) / 60:.1f} min, each "
        f"{p50:.2f} s (99 %: {p99:.2f}, longest {longest:.2f}); "
        f"{len(leftovers)} segments of killed processes cleared"
    )
    for key, value in tally.notes.items():
        print(f"  {key}: {value}")
    for kind, count in tally.wrong.items():
        print(f"  {kind}: {count}\n{tally.logs[kind]}")
    print("nothing hung, was left over or grew" if not tally.wrong else "BROKEN")
    if args.json:
        summary = {"what": args.what, "cycles": tally.done, "wrong": dict(tally.wrong)}
        print(
            json.dumps(summary | {"p50_s": p50, "p99_s": p99, "longest_s": longest} | tally.notes)
        )
    return int(bool(tally.wrong))


if __name__ == "__main__":
    sys.exit(main())
