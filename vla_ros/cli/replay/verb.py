"""`vla-ros replay`: a bag into a policy, its actions compared, its latency shown."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vla_ros.cli.replay.options import add_parser, check, frame_range, graph_of, needs_of
from vla_ros.console.progress import Progress
from vla_ros.errors import UserError
from vla_ros.timing import SECOND

if TYPE_CHECKING:
    from vla_ros.bringup.graph import Graph
    from vla_ros.bringup.graph_file import GraphSpec
    from vla_ros.nodes.replay.player import Played
    from vla_ros.replay.bag import Bag
    from vla_ros.replay.frames import Frame, Frames
    from vla_ros.replay.plan import Plan
    from vla_ros.replay.recorded import Recorded
    from vla_ros.replay.report import Report
    from vla_ros.replay.run import Run
    from vla_ros.replay.topics import Picked

__all__ = ["add_parser", "run"]

NOT_STARTED = 3
INTERRUPTED = 130


def run(args: argparse.Namespace) -> int:
    """Replay a bag. Returns the exit status, see `vla-ros replay --help`."""
    mode = check(args)
    try:
        import rosbags  # noqa: F401
    except ImportError:
        raise UserError("rosbags is missing: pip install '.[replay]' in the checkout") from None
    from vla_ros.replay.bag import Bag
    from vla_ros.replay.errors import BagError

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        with Bag(args.bag) as bag:
            return _Replay(args, mode, bag, stop).run()
    except BagError as error:
        raise UserError(str(error)) from None
    except ImportError as error:
        print(f"vla-ros replay: {error}; `vla-ros doctor` says what to install", file=sys.stderr)
        return NOT_STARTED


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Everything that is known before the policy node starts."""

    picked: Picked
    frames: Frames
    recorded: Recorded
    plan: Plan
    spec: GraphSpec
    needs: tuple[str, ...]
    slop_ns: int
    before: Run | None


class _Replay:
    """One replay: judge the bag, start the policy, show it the frames, report."""

    def __init__(
        self, args: argparse.Namespace, mode: str, bag: Bag, stop: threading.Event
    ) -> None:
        self._args, self._mode, self._bag, self._stop = args, mode, bag, stop
        self._progress = Progress()
        self._log: deque[str] = deque(maxlen=30)

    def run(self) -> int:
        from vla_ros.bringup.environment import prepare
        from vla_ros.bringup.graph import Graph, GraphFailed, Stopped
        from vla_ros.nodes.replay.driver import ReplayFailed
        from vla_ros.replay.errors import BagError

        prepared = self._prepare()
        os.environ["ROS_DOMAIN_ID"] = str(_domain(self._args.domain_id))
        os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
        prepare()
        graph = Graph(
            prepared.spec,
            on_line=self._on_line,
            say=self._progress.say,
            interrupted=self._stop.is_set,
        )
        began = time.monotonic()
        try:
            with graph:
                graph.start()
                began = time.monotonic()
                played = self._play(graph, prepared)
        except Stopped:
            self._progress.end()
            print("vla-ros replay: interrupted", file=sys.stderr)
            return INTERRUPTED
        except (GraphFailed, ReplayFailed) as error:
            self._progress.end()
            if not self._args.verbose:
                print("\n".join(self._log), file=sys.stderr)
            print(f"vla-ros replay: {error}", file=sys.stderr)
            return NOT_STARTED
        if not played.shown:
            raise BagError(f"no frame could be shown: {next(iter(played.refused.values()), '')}")
        return self._conclude(prepared, played, time.monotonic() - began)

    def _prepare(self) -> _Prepared:
        """Read and judge all there is, so that nothing is started for a bag that is no good."""
        from vla_ros.nodes.common.convert import ENCODINGS
        from vla_ros.replay.frames import require, scan
        from vla_ros.replay.golden import load_golden
        from vla_ros.replay.plan import make_plan
        from vla_ros.replay.recorded import read_recorded
        from vla_ros.replay.topics import parse_remaps, pick

        args, bag = self._args, self._bag
        picked = pick(bag.topics, parse_remaps(args.remap))
        golden = load_golden(args.golden) if args.golden else None
        first, last = frame_range(args.frames)
        frames = scan(bag, picked, tuple(ENCODINGS), args.max_gap, first, last)
        recorded = read_recorded(bag, picked)
        parameters = bag.run.parameters.get("policy", {}) if bag.run else {}
        spec = graph_of(args, self._mode, parameters, picked.compressed, frames.rate_hz)
        node = spec.node("policy")
        needs = needs_of(node)
        require(picked, needs)
        control_hz = {**node.file_parameters(), **node.parameters}["control_rate_hz"]
        return _Prepared(
            picked=picked,
            frames=frames,
            recorded=recorded,
            plan=make_plan(frames, recorded, args.instruction),
            spec=spec,
            needs=needs,
            slop_ns=round(SECOND / float(control_hz) / 2),
            before=golden or recorded.run,
        )

    def _play(self, graph: Graph, prepared: _Prepared) -> Played:
        from vla_ros.bringup.graph import Stopped
        from vla_ros.nodes.replay.driver import PolicyLink
        from vla_ros.nodes.replay.player import play_lockstep, play_realtime
        from vla_ros.replay.frames import lacking, read_frames

        def look() -> None:
            if self._stop.is_set():
                raise Stopped
            graph.check()

        def lacks(frame: Frame) -> str:
            look()
            return lacking(frame, prepared.needs, prepared.slop_ns)

        frames = read_frames(
            self._bag, prepared.picked, prepared.frames, prepared.needs, prepared.slop_ns
        )
        begins = prepared.plan.by_stamp
        lockstep = self._mode == "lockstep"
        roles = (*prepared.needs, "image")
        domain = int(os.environ["ROS_DOMAIN_ID"])
        with PolicyLink(domain, roles, prepared.picked.compressed, lockstep, look) as link:
            link.wait_ready()
            shown = self._shower(len(prepared.frames.times) - prepared.plan.skipped)
            if lockstep:
                patience_s = self._args.answer_timeout
                played = play_lockstep(link, frames, begins, lacks, patience_s, shown)
            else:
                rate = None if self._mode == "fast" else float(self._args.rate or 1.0)
                played = play_realtime(link, frames, begins, lacks, rate, shown)
            self._progress.end()
            return played

    def _shower(self, total: int) -> Callable[[int], None]:
        """The progress bar."""
        began = time.monotonic()

        def shown(count: int) -> None:
            done = 24 * count // max(total, 1)
            rate = count / max(time.monotonic() - began, 1e-9)
            bar = "#" * done + "." * (24 - done)
            text = f"frame {count} of {total}  [{bar}]  {rate:.1f} Hz"
            self._progress.update("replay", text)

        return shown

    def _conclude(self, prepared: _Prepared, played: Played, wall_s: float) -> int:
        from vla_ros.replay.golden import save_golden
        from vla_ros.replay.page import page
        from vla_ros.replay.report import json_line, text

        report = self._report(prepared, played, wall_s)
        found = report.comparison
        if found is not None and found.largest and found.token_match_rate == 1.0:
            note = (
                "every token is the same: the actions differ by what the gate did to them"
                " (clamping, gripper), which depends on the actions published before"
            )
            report = replace(report, notes=(*report.notes, note))
        if self._args.save:
            save_golden(self._args.save, played.run, str(self._args.bag))
        if self._args.html:
            try:
                self._args.html.write_text(page(report), encoding="utf-8")
            except OSError as error:
                raise UserError(f"cannot write {self._args.html}: {error.strerror}") from None
        print(text(report), flush=True)
        if self._args.json:
            print(json_line(report), flush=True)
        return 0 if report.within else 1

    def _report(self, prepared: _Prepared, played: Played, wall_s: float) -> Report:
        from vla_ros.replay.compare import compare
        from vla_ros.replay.report import Report, Side

        before = prepared.before
        name = "golden" if self._args.golden else "recorded"
        lockstep = self._mode == "lockstep"
        mode = self._mode
        if mode == "recorded":
            mode = f"as recorded x{self._args.rate or 1.0:g}"
        return Report(
            bag=str(self._args.bag),
            mode=mode,
            frames=len(played.shown),
            camera_rate_hz=prepared.frames.rate_hz,
            now=Side.of("replayed", played.run),
            before=Side.of(name, before) if before else None,
            comparison=compare(before, played.run, played.shown, played.ends) if before else None,
            tolerance=self._args.tolerance,
            strict=lockstep,
            wall_s=wall_s,
            notes=self._notes(prepared, played),
        )

    def _notes(self, prepared: _Prepared, played: Played) -> tuple[str, ...]:
        frames, before = prepared.frames, prepared.before
        notes = list(self._bag.notes)
        if frames.repeated or frames.late:
            notes.append(
                f"left out: {frames.repeated} frames that came twice, {frames.late} that came late"
            )
        if prepared.plan.skipped:
            notes.append(f"left out: {prepared.plan.skipped} frames before the first instruction")
        if played.refused:
            stamp, why = next(iter(played.refused.items()))
            notes.append(
                f"{len(played.refused)} frames could not be answered, the first at"
                f" {stamp / SECOND:.6f}: {why}"
            )
        if played.state:
            notes.append(f"the policy ended in {played.state}")
        now = played.run
        if before and before.checkpoint_sha256 not in ("", now.checkpoint_sha256):
            notes.append("the checkpoint is not the one of the other run: its hash differs")
        return tuple(notes)

    def _on_line(self, node: str, line: str) -> None:
        """A line of the node's log; called from threads."""
        self._log.append(f"[{node}] {line}")
        if self._args.verbose:
            print(f"[{node}] {line}", file=sys.stderr, flush=True)


def _domain(given: int | None) -> int:
    from vla_ros.bringup.domain import free_domain

    for name in ("ROS_LOCALHOST_ONLY", "ROS_STATIC_PEERS", "ROS_DISCOVERY_SERVER"):
        os.environ.pop(name, None)
    return free_domain() if given is None else given
