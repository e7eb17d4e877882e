"""`vla-ros eval`: success over many episodes, with intervals, a report, and resumable."""

from __future__ import annotations

import argparse
import functools
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vla_ros.bringup.view import NODE as VIEW
from vla_ros.bringup.view import address_in
from vla_ros.cli.eval.options import (
    add_parser,
    check,
    environment_of,
    setup_of,
)
from vla_ros.cli.eval.variants import variants_of
from vla_ros.console.progress import Progress
from vla_ros.console.streams import error, show
from vla_ros.errors import UserError

if TYPE_CHECKING:
    from vla_ros.evaluation.plan import Plan
    from vla_ros.evaluation.player import MakeRunner, Order, Played
    from vla_ros.evaluation.records import Setup, Variant
    from vla_ros.evaluation.runner import Runner
    from vla_ros.evaluation.store import Store

__all__ = ["add_parser", "run"]

SUMMARY = "summary.json"
PARTIAL_EVERY_S = 60.0
PARTIAL_SHARE = 30  # writing it takes at most this part of the time, one in so many


def run(args: argparse.Namespace) -> int:
    """Evaluate; returns the exit status, see `vla-ros eval --help`."""
    check(args)
    try:
        from vla_ros.evaluation import origin
        from vla_ros.evaluation.runner import RunnerFailed
        from vla_ros.evaluation.store import Store
    except ImportError as missing:
        raise UserError(f"{missing}; `vla-ros doctor` says what to install") from missing
    plan = _plan(args)
    out = args.out or Path("runs") / time.strftime("eval-%Y%m%d-%H%M%S")
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        origin.code()
        with Store(out, plan.setup, plan.variants, _command()) as store:
            _play_all(args, plan, store, out)
            _conclude(args, plan.setup, store, out)
    except RunnerFailed as failed:
        error("vla-ros eval", failed)
        return 1
    except KeyboardInterrupt:
        error("vla-ros eval", f"the same command with --out {out} goes on")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _plan(args: argparse.Namespace) -> Plan:
    from vla_ros.control import check_instruction
    from vla_ros.evaluation.plan import Plan, select_tasks
    from vla_ros.evaluation.worlds import world_of

    try:
        check_instruction(args.instruction)
    except ValueError as wrong:
        raise UserError(str(wrong)) from wrong
    world = world_of(environment_of(args), args.suite)
    tasks = select_tasks(world.tasks, args.tasks)
    setup = setup_of(args, world.note)
    return Plan(setup, variants_of(args), tasks, args.episodes, args.instruction)


def _play_all(args: argparse.Namespace, plan: Plan, store: Store, out: Path) -> None:
    """Play what has no record yet, and write it as it comes."""
    from vla_ros.evaluation.player import Order, keep
    from vla_ros.evaluation.strips import strip_paths

    jobs = plan.jobs()
    done = store.done
    strips = strip_paths(jobs)
    told = {task.name: args.instruction or task.instruction for task in plan.tasks}
    orders = [
        Order(job, strips.get(job.key(), ""), told[job.task], clip=True)
        for job in jobs
        if job.key() not in done
    ]
    progress = _Show(plan, store)
    partial = _Partial(plan, store, out)
    progress.update()
    try:
        for played in _play(args, plan, orders, progress.say):
            store.add(keep(played, out, args.keep_tokens))
            progress.update()
            partial.write()
    finally:
        progress.end()


def _play(
    args: argparse.Namespace, plan: Plan, orders: list[Order], say: Callable[[str], None]
) -> Iterator[Played]:
    from vla_ros.evaluation import parallel, ray_machines

    make: MakeRunner = direct_runner if plan.setup.route == "direct" else graph_runner
    if args.view:
        make = _watched_runner(say)
    if args.ray:
        return ray_machines.play_on_ray(make, plan.setup, plan.variants, orders, args.workers)
    if args.workers > 1:
        play = parallel.play_in_processes
        return play(make, plan.setup, plan.variants, orders, args.workers)
    return parallel.play_here(make, plan.setup, plan.variants, orders)


def direct_runner(setup: Setup, variants: tuple[Variant, ...]) -> Runner:
    """Episodes without ROS."""
    from vla_ros.evaluation.direct import DirectRunner

    return DirectRunner(setup, variants)


def graph_runner(
    setup: Setup, variants: tuple[Variant, ...], watch: Callable[[str, str], None] | None = None
) -> Runner:
    """Episodes through the ROS graph. ``watch`` gets (node, line) of every line that a node says,
    and there is the page in the browser. RunnerFailed: there is no ROS."""
    from vla_ros.evaluation.runner import RunnerFailed

    try:
        from vla_ros.cli.eval.graph import GraphRunner
    except ImportError as error:
        raise RunnerFailed(f"{error}: without ROS there is --no-ros") from error
    if watch is None:
        return GraphRunner(setup, variants)
    return GraphRunner(setup, variants, on_line=watch, view=True)


def _watched_runner(say: Callable[[str], None]) -> MakeRunner:
    """As :func:`graph_runner`, with the page in the browser, whose address is said: each graph
    serves it anew, as a rule at the same one."""
    said: set[str] = set()

    def on_line(node: str, line: str) -> None:
        address = address_in(line) if node == VIEW else ""
        if address and address not in said:
            said.add(address)
            say(f"open {address} in a browser")

    return functools.partial(graph_runner, watch=on_line)


class _Partial:
    """The report of what was played so far, now and then: writing it takes a small part of the
    time, and in real time no episode runs meanwhile."""

    def __init__(self, plan: Plan, store: Store, out: Path) -> None:
        self._plan, self._store, self._out = plan, store, out
        self._jobs = {job.key() for job in plan.jobs()}
        self._next_s = time.monotonic() + PARTIAL_EVERY_S

    def write(self) -> None:
        """If it is time, and there is more to come. What an earlier sitting played of other
        variants lies in the same directory, and is no part of this one's end."""
        began_s = time.monotonic()
        if began_s < self._next_s:
            return
        keys = {record.job.key() for record in self._store.records}
        if keys >= self._jobs:
            return
        from vla_ros.evaluation.report.page import write_report

        store, commands = self._store, "\n".join(self._store.commands)
        total = len(keys | self._jobs)
        write_report(self._out, self._plan.setup, store.variants, store.records, commands, total)
        took_s = time.monotonic() - began_s
        self._next_s = began_s + max(PARTIAL_EVERY_S, PARTIAL_SHARE * took_s)


class _Show:
    """The line that says how far it is: all episodes, and success of the variant that plays."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self._store = store
        self._total = len(plan.jobs())
        self._known = {job.key() for job in plan.jobs()}
        self._progress = Progress()

    def update(self) -> None:
        from vla_ros.evaluation.statistics import wilson

        records = [r for r in self._store.records if r.job.key() in self._known]
        text = "episodes"
        if records:
            label = records[-1].job.variant
            own = [record.success for record in records if record.job.variant == label]
            low, high = (100 * end for end in wilson(sum(own), len(own)))
            text = f"{100 * sum(own) / len(own):.1f} % solved ({low:.0f} to {high:.0f}) {label}"
        self._progress.update("eval", text, len(records), self._total)

    def say(self, text: str) -> None:
        """One line that stays. From any thread."""
        self._progress.say(text)

    def end(self) -> None:
        self._progress.end()


def _conclude(args: argparse.Namespace, setup: Setup, store: Store, out: Path) -> None:
    """Table, report, summary, and the line of JSON."""
    from vla_ros.cli.eval.table import tables
    from vla_ros.evaluation import origin
    from vla_ros.evaluation.report.page import write_report
    from vla_ros.evaluation.summary import summary

    commands = "\n".join(store.commands)
    figures = summary(setup, store.variants, store.records, commands)
    figures |= {"code": origin.code(), "machine": origin.machine(setup.device)}
    (out / SUMMARY).write_text(json.dumps(figures, indent=1) + "\n")
    report = write_report(out, setup, store.variants, store.records, commands)
    show(*tables(setup, store.variants, store.records))
    if setup.note:
        print(f"\nnote: {setup.note}")
    print(f"\n{report}\n{out / SUMMARY}", flush=True)
    if args.json:
        print(json.dumps(figures), flush=True)


def _command() -> str:
    return f"vla-ros {shlex.join(sys.argv[1:])}"


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
