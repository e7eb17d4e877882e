"""What the policy node's tick keeps at high control rates: lateness, skips, CPU, as a table.

    make ticks                  100, 200, 250 and 500 Hz, alone and beside a load of 4, with and
                                without tick_priority: 20 s each, 8 minutes in all
    make ticks ARGS="--rates 500 --beside 0 --seconds 60"

The node is a process of its own with `policy: replay` and `~/positions`; a robot in another process
says when each command came. Two processors are taken, where there are more: ``--cpus``.

Exit status: 0; it measures, and judges nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if (ROOT / "vla_ros" / "msg").is_dir():
    sys.path.insert(0, str(ROOT))

import numpy as np
import numpy.typing as npt
from std_msgs.msg import String

from endurance.tick_robot import JOINTS
from support.domain import leased_domain
from support.nodes import Program, ros_environment, start_node
from support.ros import RosPeer
from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import PolicyState
from vla_ros.msg import Latency, PolicyStatus
from vla_ros.ros.common import qos
from vla_ros.runtime.control.drivers import Scheduling

RATES = (100.0, 200.0, 250.0, 500.0)
PRIORITY = 40
ACTIONS, WAYS = 50, 200  # of a chunk; chunks in the file, which are repeated
RUNNING_S = 60.0  # until commands go out
_HEAD = (
    "| control rate | beside | `tick_priority` | tick late by p50 / p99 / max, ms |"
    " sent apart, off by p50 / p99 / max, ms | came apart, off by | skipped | CPU: node, its tick |"
)


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of a time in milliseconds."""

    p50: float
    p99: float
    max: float

    def __str__(self) -> str:
        return f"{self.p50:.2f} / {self.p99:.2f} / {self.max:.1f}"


@dataclass(frozen=True, slots=True)
class TickRow:
    """One measurement. ``late``: of ticks against when they were due, by the node itself;
    ``sent`` and ``came``: of the intervals between commands against the period, as they were
    written and as they were received. Of ``expected`` commands in ``seconds``, ``arrived`` came.
    ``node_cpu``, ``tick_cpu``: shares of one processor. ``state``: of the node at the end.
    """

    rate_hz: float
    beside: int
    priority: int
    seconds: float
    late: Spread
    sent: Spread
    came: Spread
    expected: int
    arrived: int
    node_cpu: float
    tick_cpu: float
    load: float
    state: str

    @property
    def skipped(self) -> float:
        """Share of the commands that did not come."""
        return 1.0 - self.arrived / self.expected

    def __str__(self) -> str:
        return (
            f"| {self.rate_hz:g} Hz | {self.beside or 'nothing'} | {self.priority or 'none'} |"
            f" {self.late} | {self.sent} | {self.came} | {100 * self.skipped:.2f} % |"
            f" {100 * self.node_cpu:.0f} %, {100 * self.tick_cpu:.0f} % |"
        )


def spread_of(values_ns: npt.NDArray[np.float64]) -> Spread:
    """Percentiles of times in nanoseconds."""
    p50, p99, most = np.percentile(values_ns / MS, (50, 99, 100))
    return Spread(float(p50), float(p99), float(most))


def off_by(times_ns: npt.NDArray[np.int64], rate_hz: float) -> Spread:
    """Distance of the intervals between these instants, [N], from the period."""
    return spread_of(np.abs(np.diff(times_ns) - SECOND / rate_hz))


def due_between(first_ns: int, last_ns: int, rate_hz: float) -> int:
    """Commands that are due from one instant to another, both ends counted."""
    return round((last_ns - first_ns) * rate_hz / SECOND) + 1


def cpu_s(stat: Path) -> float:
    """Processor time of a process or a thread, by its `stat`; 0 where it has ended."""
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def threads_of(pid: int) -> dict[int, float]:
    """Processor time of each thread of a process."""
    folder = Path(f"/proc/{pid}/task")
    return {int(task.name): cpu_s(task / "stat") for task in folder.iterdir()}


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that take whatever processor time they get."""
    command = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextlib.contextmanager
def robot(env: Mapping[str, str], times: Path) -> Iterator[None]:
    """The arm and its camera; the file of times is there at the end."""
    command = [sys.executable, "-m", "endurance.tick_robot", str(times)]
    process = subprocess.Popen(command, env=dict(env), stdin=subprocess.PIPE)
    try:
        yield
        process.communicate(timeout=30.0)
    finally:
        process.kill()
        process.wait()


def ways(folder: Path, action_rate_hz: float) -> str:
    """A file of chunks for `policy: replay`: joints that swing slowly, and a gripper."""
    at_s = (np.arange(WAYS)[:, None] + np.arange(ACTIONS)) / action_rate_hz
    turns = 2 * np.pi * action_rate_hz / WAYS  # the file's end meets its begin
    rows = np.zeros((WAYS, ACTIONS, len(JOINTS) + 1))
    rows[..., : len(JOINTS)] = 0.2 * np.sin(at_s * turns)[..., None]
    rows[..., -1] = 0.5
    path = folder / "ways.npy"
    np.save(path, rows)
    return str(path)


def start_policy(
    env: Mapping[str, str], folder: Path, args: argparse.Namespace, **given: Any
) -> Program:
    """The policy node as an arm with position control has it."""
    parameters = {
        "policy": "replay",
        "replay_file": ways(folder, args.action_rate),
        "outputs": ["positions"],
        "action_space": "joint_position",
        "action_names": [*JOINTS, "hand"],
        "joint_names": list(JOINTS),
        "gripper_names": ["hand"],
        "stale_action": "hold",
        "bounds_low": [-3.0] * len(JOINTS),
        "bounds_high": [3.0] * len(JOINTS),
        "velocity_limits": [2.0] * len(JOINTS),
        "acceleration_limits": [20.0] * len(JOINTS),
        "action_rate_hz": args.action_rate,
        "camera_rate_hz": 25.0,
        "detect_frozen": False,
        "latency_window_s": args.seconds,
    }
    return start_node("policy", env, parameters | given)


def measure(rate_hz: float, beside: int, priority: int, args: argparse.Namespace) -> TickRow:
    """Ticks of ``rate_hz`` beside so many busy processes."""
    with tempfile.TemporaryDirectory() as name, leased_domain() as domain:
        folder, env = Path(name), ros_environment(domain)
        env["PYTHONPATH"] = f"{ROOT / 'tools'}{os.pathsep}{env['PYTHONPATH']}"
        given = {"control_rate_hz": rate_hz, "tick_priority": priority}
        node = start_policy(env, folder, args, **given)
        peer = RosPeer(domain)
        try:
            with robot(env, folder / "times.npy"):
                status = peer.inbox(PolicyStatus, "/policy/status", qos.LATCHED)
                latency = peer.inbox(Latency, "/policy/latency", qos.REPORT)
                say = peer.publisher(String, "instruction", qos.LATCHED)
                assert peer.change_state("/policy", "configure"), node.log
                before = threads_of(node.pid)
                assert peer.change_state("/policy", "activate"), node.log
                say.publish(String(data="swing"))
                status.wait(lambda m: m.state == PolicyState.RUNNING, RUNNING_S)
                with busy(beside):
                    time.sleep(2.0)  # the robot comes up to speed, the load is there
                    begin_ns, spent = time.time_ns(), threads_of(node.pid)
                    time.sleep(args.seconds)
                    end_ns, after = time.time_ns(), threads_of(node.pid)
                    report = latency.wait_new(timeout=20.0)
                    load, state = os.getloadavg()[0], PolicyState(status.last.state).name
        finally:
            peer.close()
            node.kill()
        sent, came = np.load(folder / "times.npy").T
    within = (sent >= begin_ns) & (sent < end_ns)
    sent, came = sent[within], came[within]
    assert len(sent) > 1, f"no commands came:\n{node.log}"
    late = report.tick_error_s
    wall_s = (end_ns - begin_ns) / SECOND
    used = {thread: after[thread] - spent.get(thread, 0.0) for thread in after}
    ticks = [used[thread] for thread in after if thread not in before]
    return TickRow(
        rate_hz,
        beside,
        priority,
        wall_s,
        Spread(1e3 * late.p50, 1e3 * late.p99, 1e3 * late.max),
        off_by(sent, rate_hz),
        off_by(came, rate_hz),
        max(len(sent), due_between(int(sent[0]), int(sent[-1]), rate_hz)),
        len(sent),
        sum(used.values()) / wall_s,
        max(ticks, default=0.0) / wall_s,
        load,
        state,
    )


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(prog="ticks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="Hz")
    parser.add_argument("--action-rate", type=float, default=20.0, help="of the chunks, Hz (20)")
    parser.add_argument("--beside", type=int, nargs="+", default=(0, 4), help="busy processes")
    parser.add_argument("--priorities", type=int, nargs="+", default=(0, PRIORITY))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement (20)")
    parser.add_argument("--cpus", type=int, default=2, help="processors to use at most (2)")
    parser.add_argument("--json", action="store_true", help="one last line for a program")
    args = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))[: args.cpus]
    os.sched_setaffinity(0, cpus)
    print(
        f"{len(cpus)} processors, load {os.getloadavg()[0]:.1f}; actions of {args.action_rate:g} Hz"
    )
    print(f"{_HEAD}\n|{'---|' * (_HEAD.count('|') - 1)}", flush=True)
    rows: list[TickRow] = []
    for beside in args.beside:
        for priority in args.priorities:
            try:
                Scheduling(priority).check()
            except ValueError as error:
                print(f"({error}: left out)", flush=True)
                continue
            for rate_hz in args.rates:
                rows.append(measure(rate_hz, beside, priority, args))
                print(rows[-1], flush=True)
    if args.json:
        found = [{**asdict(row), "skipped": row.skipped} for row in rows]
        print(json.dumps({"cpus": len(cpus), "action_rate_hz": args.action_rate, "rows": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
