"""Several robots on one machine, three ways: how old their answers are.

``unbatched`` and ``batched`` are one policy behind the server's own
:class:`~vla_ros.serve.stepper.Stepper`, without and with passes of several robots; ``workers`` is a
process with a policy of its own for each. Every robot shows frames at the rate, each with a phase
and jitter of its own, and requests as a policy node does: one at a time, then with its newest
frame. Needs a machine that does nothing else; the load is printed.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np

from vla_ros.core.clock import MS, SECOND, SystemClock
from vla_ros.core.console import Report
from vla_ros.core.types import Image, Inference, Instruction, PolicyInfo, Timeline
from vla_ros.policies.base import PolicySpec
from vla_ros.policies.load import load_policy
from vla_ros.policies.sessions import SessionRequest
from vla_ros.runtime.scheduler import BatchCosts, Refused
from vla_ros.runtime.worker.memory import MIB, device_bytes
from vla_ros.runtime.worker.worker import last_line, warm_up_observation
from vla_ros.serve.stepper import Sessions, SharedPolicy, Stepper, TooOld
from vla_ros_lab.bench.measure import drifting_frames, silent
from vla_ros_lab.bench.memory import status_bytes
from vla_ros_lab.bench.options import BATCHED, UNBATCHED, WORKERS, FleetOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

JITTER = 0.2  # of a period to either side, of every frame
PATIENCE_S = 60.0  # for the last answers
LOAD_S = 600.0  # for a worker to load


@dataclass(frozen=True, slots=True)
class RobotResult:
    """One robot's frames: how many it showed, had answered, and were too old; ages [ms] of its
    observation when the answers came; why it was not let in."""

    shown: int
    ages_ms: tuple[float, ...] = ()
    too_old: int = 0
    refused: str = ""

    @property
    def share(self) -> float:
        """Share of its frames that were answered."""
        return len(self.ages_ms) / self.shown if self.shown else 0.0


@dataclass(frozen=True, slots=True)
class FleetRow:
    """One number of robots, one way, in ``seconds``. ``passed``: robots in a pass, by mean;
    ``rss_mb``: resident memory of all processes that answer; ``gpu_mb``: a GPU's, at its peak."""

    way: str
    robots: tuple[RobotResult, ...]
    seconds: float
    passed: float
    rss_mb: float
    gpu_mb: float = 0.0

    @property
    def served(self) -> tuple[RobotResult, ...]:
        """Those that were let in."""
        return tuple(robot for robot in self.robots if not robot.refused)

    def age_ms(self, percent: float) -> float:
        """Percentile of the ages of all answers; NaN: there are none."""
        ages = [age for robot in self.robots for age in robot.ages_ms]
        return float(np.percentile(ages, percent)) if ages else float("nan")

    def as_json(self) -> dict[str, Any]:
        """Figures of all robots together, and of each."""
        served, shares = self.served, [robot.share for robot in self.served]
        worst = [float(np.percentile(r.ages_ms, 99)) for r in served if r.ages_ms]
        squares = len(shares) * sum(share * share for share in shares)
        return {
            "way": self.way,
            "robots": len(self.robots),
            "refused": len(self.robots) - len(served),
            "answers_hz": sum(len(r.ages_ms) for r in served) / self.seconds,
            "share": sum(shares) / len(shares) if shares else 0.0,
            "least_share": min(shares, default=0.0),
            "age_p50_ms": self.age_ms(50),
            "age_p99_ms": self.age_ms(99),
            "worst_p99_ms": max(worst, default=float("nan")),
            "fairness": sum(shares) ** 2 / squares if squares else 0.0,
            "robots_a_pass": self.passed,
            "rss_mb": self.rss_mb,
            "gpu_mb": self.gpu_mb,
            "each": [
                {
                    "shown": r.shown,
                    "answered": len(r.ages_ms),
                    "too_old": r.too_old,
                    "refused": r.refused,
                    "age_p50_ms": float(np.percentile(r.ages_ms, 50)) if r.ages_ms else None,
                    "age_p99_ms": float(np.percentile(r.ages_ms, 99)) if r.ages_ms else None,
                }
                for r in self.robots
            ],
        }


@dataclass(frozen=True, slots=True)
class FleetResult:
    """``costs``: seconds of a pass by the robots in it, measured before anything else ran."""

    info: PolicyInfo
    costs: Mapping[int, float]
    rows: tuple[FleetRow, ...]

    def as_json(self) -> dict[str, Any]:
        """For the JSON line."""
        return {
            "decoding": self.info.decoding,
            "pass_ms": {str(n): 1e3 * seconds for n, seconds in self.costs.items()},
            "fleet": [row.as_json() for row in self.rows],
        }


class _Robot:
    """A robot that requests its newest frame when it has an answer. The caller shows frames, the
    stepper's thread answers."""

    def __init__(self, number: int, options: FleetOptions, stepper: Stepper, info: PolicyInfo):
        self._options, self._stepper = options, stepper
        self._frame = warm_up_observation(info, options.spec)
        self._task = Instruction(f"pick up the red block {number}", 0)
        self._lock = threading.Lock()
        self._waiting: tuple[int, Image] | None = None
        self._shown = self._too_old = 0
        self._ages: list[float] = []
        self.idle = threading.Event()
        self.idle.set()
        self.failure: BaseException | None = None
        self.refused, self.session = "", None
        try:
            limits = (options.rate_hz, options.max_age_s) if options.max_age_s else ()
            self.session = stepper.open(*limits).result()
        except Refused as error:
            self.refused = str(error)

    def show(self, stamp_ns: int, image: Image) -> None:
        """A frame of ``stamp_ns`` on the steady clock."""
        with self._lock:
            self._shown += 1
            self._waiting = stamp_ns, image
            if self.idle.is_set():
                self._request()

    def _request(self) -> None:
        assert self._waiting is not None
        (stamp_ns, image), self._waiting = self._waiting, None
        self.idle.clear()
        now = time.monotonic_ns()
        observation = replace(
            self._frame, stamp_ns=stamp_ns, received_ns=now, received_steady_ns=now, image=image
        )
        counts = self._shown > self._options.warm_up
        request = SessionRequest(self.session, observation, Timeline(now), self._task)
        future = self._stepper.ask(request, now - stamp_ns)
        future.add_done_callback(lambda future: self._answered(future, stamp_ns, counts))

    def _answered(self, future: Future[Inference], stamp_ns: int, counts: bool) -> None:
        age_ms = (time.monotonic_ns() - stamp_ns) / MS
        error = future.exception()
        with self._lock:
            if isinstance(error, TooOld):
                self._too_old += counts
            elif error is not None:
                self.failure, self._waiting = error, None
            elif counts:
                self._ages.append(age_ms)
            if self._waiting is None:
                self.idle.set()
            else:
                self._request()

    def result(self) -> RobotResult:
        """After the last answer."""
        shown = max(0, self._shown - self._options.warm_up)
        return RobotResult(shown, tuple(self._ages), self._too_old, self.refused)


def play(
    stepper: Stepper, info: PolicyInfo, options: FleetOptions, robots: Sequence[int]
) -> tuple[RobotResult, ...]:
    """Results of the robots of these numbers, which show their frames. RuntimeError: the policy
    failed."""
    fleet = {number: _Robot(number, options, stepper, info) for number in robots}
    count, period_ns = options.warm_up + options.timed, SECOND / options.rate_hz
    images, begin_ns = drifting_frames(20), time.monotonic_ns() + 50 * MS
    moments: list[tuple[int, int, int]] = []
    for number, robot in fleet.items():
        noise = np.random.default_rng(number)
        phase, late = noise.random(), noise.uniform(-JITTER, JITTER, count)
        due = begin_ns + (np.arange(count) + phase + JITTER + late) * period_ns
        if not robot.refused:
            moments += [(int(ns), number, k) for k, ns in enumerate(due)]
    for due_ns, number, k in sorted(moments):
        time.sleep(max(0, due_ns - time.monotonic_ns()) / SECOND)
        fleet[number].show(due_ns, images[(k + number) % len(images)])
    for robot in fleet.values():
        if not robot.idle.wait(PATIENCE_S):
            raise RuntimeError(f"an answer took longer than {PATIENCE_S:g} s")
        if robot.failure is not None:
            raise RuntimeError(f"the policy failed: {last_line(robot.failure)}")
        if robot.session is not None:
            stepper.release(robot.session)
    return tuple(robot.result() for robot in fleet.values())


def _start(spec: PolicySpec, most: int, passes: list[int]) -> tuple[Stepper, PolicyInfo]:
    """A stepper with its policy, whose batches of up to ``most`` robots are measured; it adds to
    ``passes`` how many robots were in each."""
    clock = SystemClock()

    def make(spec: PolicySpec) -> Sessions:
        sessions = SharedPolicy(lambda: load_policy(spec), spec)
        sessions.measure(most, clock, budget_s=float("inf"))
        return sessions

    def passed(count: int, seconds: float) -> None:
        passes.append(count)

    stepper = Stepper(spec, clock, lambda reason: None, passed, make)
    return stepper, stepper.start().info


def run_fleet(options: FleetOptions, report: Report = silent) -> FleetResult:
    """Measure all sizes in all ways. PolicyRefused: there is no such policy. RuntimeError: it
    failed."""
    steps = itertools.count()
    total = len(options.sizes) * len(options.ways)
    report(f"loading {options.spec.checkpoint}", 0, 0)
    passes: list[int] = []
    stepper, info = _start(options.spec, max(options.sizes), passes)
    known = stepper.costs.at_start
    rows = []
    for way in (UNBATCHED, BATCHED):
        for size in options.sizes if way in options.ways else ():
            report(f"{way}, {size} robots", next(steps), total)
            largest = 1 if way == UNBATCHED else max(known)
            stepper.costs = BatchCosts({n: cost for n, cost in known.items() if n <= largest})
            passes.clear()
            robots = play(stepper, info, options, range(size))
            mean = sum(passes) / len(passes) if passes else 0.0
            memory = status_bytes("VmRSS", os.getpid()) / MIB
            gpu = device_bytes() / MIB
            rows.append(FleetRow(way, robots, options.seconds, mean, memory, gpu))
    stepper.close()
    if WORKERS in options.ways:
        rows += _workers(options, lambda text: report(text, next(steps), total))
    return FleetResult(info, known, tuple(rows))


def _workers(options: FleetOptions, report: Callable[[str], None]) -> list[FleetRow]:
    """Worker processes, as many as the largest fleet has, of which each size takes the first."""
    context = multiprocessing.get_context("spawn")
    workers: list[tuple[Any, Connection]] = []
    rows = []
    try:
        for number in range(max(options.sizes)):
            here, there = context.Pipe()
            alone = replace(options, max_age_s=0.0)  # each has its model for itself
            process = context.Process(target=_work, args=(alone, number, there), daemon=True)
            process.start()
            there.close()
            workers.append((process, here))
        for _, here in workers:
            _receive(here, LOAD_S)
        for size in options.sizes:
            report(f"{WORKERS}, {size} robots")
            for _, here in workers[:size]:
                here.send("play")
            patience = options.warm_up / options.rate_hz + options.seconds + 2 * PATIENCE_S
            found = [_receive(here, patience) for _, here in workers[:size]]
            memory = sum(status_bytes("VmRSS", one.pid) for one, _ in workers[:size]) / MIB
            robots = tuple(robot for robot, _ in found)
            gpu = sum(each for _, each in found)
            rows.append(FleetRow(WORKERS, robots, options.seconds, 1.0, memory, gpu))
    finally:
        for process, here in workers:
            here.close()
            process.join(5.0)
            if process.is_alive():
                process.kill()
                process.join()
    return rows


def _receive(here: Connection, patience_s: float) -> Any:
    if not here.poll(patience_s):
        raise RuntimeError(f"a worker has not answered for {patience_s:.0f} s")
    try:
        kind, content = here.recv()
    except EOFError:
        raise RuntimeError("a worker ended: is there memory for so many?") from None
    if kind == "failed":
        raise RuntimeError(f"a worker failed: {content}")
    return content


def _work(options: FleetOptions, number: int, there: Connection) -> None:
    """A worker's process: plays one robot at each message."""
    try:
        stepper, info = _start(options.spec, 1, [])
        there.send(("ready", None))
        while there.recv():
            (robot,) = play(stepper, info, options, [number])
            there.send(("played", (robot, device_bytes() / MIB)))
    except (EOFError, OSError):
        return
    except Exception as error:
        there.send(("failed", last_line(error)))


def draw(rows: Sequence[FleetRow], title: str) -> Figure | None:
    """Ages and answered share over the number of robots, a line a way; None where matplotlib is not
    installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    ages, shares = figure.subplots(1, 2)
    colors = {UNBATCHED: "#bc4749", BATCHED: "#2a6f97", WORKERS: "#d97706"}
    for way, color in colors.items():
        found = [row for row in rows if row.way == way and row.served]
        if not found:
            continue
        sizes = [len(row.robots) for row in found]
        ages.plot(sizes, [row.age_ms(99) for row in found], "o-", color=color, label=f"{way}, p99")
        ages.plot(sizes, [row.age_ms(50) for row in found], "o:", color=color, ms=3)
        answered = [100 * row.as_json()["share"] for row in found]
        shares.plot(sizes, answered, "o-", color=color, label=way)
    ages.set_ylabel("observation age at the answer, ms (dotted: median)")
    shares.set_ylabel("frames answered, %")
    shares.set_ylim(0, 105)
    for axis in (ages, shares):
        axis.set_xlabel("robots")
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted({len(row.robots) for row in rows}))
        axis.get_xaxis().set_major_formatter("{x:g}")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=10)
    return figure
