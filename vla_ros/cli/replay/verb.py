"""`vla-ros replay`: a bag into a policy, its actions compared, its latency shown."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vla_ros.cli.replay.conclude import conclude, make_report
from vla_ros.cli.replay.options import AS_IT_IS_ASKED, add_parser, check
from vla_ros.cli.replay.prepare import Prepared, prepare, with_questions
from vla_ros.console.progress import Progress
from vla_ros.errors import UserError
from vla_ros.signals import set_on_signal

if TYPE_CHECKING:
    from vla_ros.bringup.graph import Graph
    from vla_ros.nodes.replay.player import Played
    from vla_ros.replay.bag import Bag
    from vla_ros.replay.frames import Frame

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
    set_on_signal(stop)
    try:
        with Bag(args.bag) as bag, contextlib.ExitStack() as opened:
            return _Replay(args, mode, bag, stop, opened).run()
    except BagError as error:
        raise UserError(str(error)) from None
    except ImportError as error:
        print(f"vla-ros replay: {error}; `vla-ros doctor` says what to install", file=sys.stderr)
        return NOT_STARTED


class _Replay:
    """One replay: judge the bag, start the policy, show it the frames, report."""

    def __init__(
        self,
        args: argparse.Namespace,
        mode: str,
        bag: Bag,
        stop: threading.Event,
        opened: contextlib.ExitStack,
    ) -> None:
        self._args, self._mode, self._bag, self._stop = args, mode, bag, stop
        self._open = opened
        self._progress = Progress()
        self._log: deque[str] = deque(maxlen=30)

    def run(self) -> int:
        from vla_ros.bringup import environment
        from vla_ros.bringup.graph import Graph, GraphFailed, Stopped
        from vla_ros.nodes.replay.driver import ReplayFailed
        from vla_ros.replay.errors import BagError

        prepared = prepare(self._args, self._mode, self._bag)
        if prepared.chunks:
            folder = tempfile.TemporaryDirectory(prefix="vla_ros_replay_")
            self._open.callback(folder.cleanup)
            prepared = with_questions(prepared, Path(folder.name))
        os.environ["ROS_DOMAIN_ID"] = str(_domain(self._args.domain_id))
        os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
        environment.prepare()
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
        wall_s = time.monotonic() - began
        notes = self._bag.notes
        report = make_report(self._args, self._mode, prepared, played, wall_s, notes)
        return conclude(self._args, report, played)

    def _play(self, graph: Graph, prepared: Prepared) -> Played:
        from vla_ros.bringup.graph import Stopped
        from vla_ros.nodes.replay.driver import PolicyLink
        from vla_ros.nodes.replay.player import play_chunks, play_lockstep, play_realtime
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
        lockstep = self._mode in AS_IT_IS_ASKED
        roles = (*prepared.needs, "image")
        domain = int(os.environ["ROS_DOMAIN_ID"])
        with PolicyLink(domain, roles, prepared.picked.compressed, lockstep, look) as link:
            link.wait_ready()
            total = len(prepared.frames.times) - prepared.plan.skipped
            shown = self._shower(len(prepared.chunks) or total)
            patience_s = self._args.answer_timeout
            if prepared.chunks:
                told = prepared.instructions
                played = play_chunks(link, frames, prepared.chunks, told, lacks, patience_s, shown)
            elif lockstep:
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
