"""`vla-ros replay`: a bag into a policy, its actions compared, its latency shown."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vla_ros.cli.arguments import (
    Verbs,
    add_fields,
    add_flag,
    add_verb,
    check_domain,
    require_rosbags,
)
from vla_ros.core.errors import UserError
from vla_ros.engine.options import EngineOptions
from vla_ros.policies.base import POLICIES, refuse_unknown
from vla_ros.ros.bringup.graph import BringUpStopped, Graph
from vla_ros.ros.bringup.graph_run import GraphRun
from vla_ros.ros.nodes.replay import AS_IT_IS_ASKED, MODES, frame_range

if TYPE_CHECKING:
    from vla_ros.data.bag_frames import BagFrame
    from vla_ros.data.bags import Bag
    from vla_ros.data.replay_compare import Report
    from vla_ros.ros.nodes.replay.driver import ReplayedFrames
    from vla_ros.ros.nodes.replay.prepare import Prepared


DESCRIPTION = """\
Play the frames of a bag into a policy node, compare its actions with the recorded ones, and
show where the time went, in both runs. The node runs in a ROS domain of its own.

A bag of `vla-ros record` names its policy: nothing else need be given. Other bags
(rosbag2: MCAP or sqlite3; images rgb8, bgr8, rgba8, bgra8, mono8, JPEG or PNG) need a policy,
and an instruction unless they have one.

modes (default: chunks of a run in real time that recorded them, else lockstep):
  lockstep   every frame is answered before the next one comes: the same actions every time,
             as fast as the policy goes
  recorded   frames come as they were recorded, --rate times as fast; the policy runs in real
             time and answers the newest frame
  fast       as recorded, but each frame comes as soon as the policy has answered one
  chunks     the chunks of a run in real time again: the frames that it asked for, each with
             what the robot was executing and how late the answer was, one after the other"""

EPILOG = """\
examples:
  vla-ros replay run1                                the same policy again
  vla-ros replay run1 --decoding speculative         another decoding: the same actions?
  vla-ros replay run1 --rate 1 --device cuda:0       how old would they be on this machine?
  vla-ros replay run1 --mode chunks                  a run with execution rtc: the same chunks?
  vla-ros replay cam.db3 -r image=/cam/color --policy vla --checkpoint DIR \\
      --instruction "pick up the red cube" --save golden.json
  vla-ros replay cam.db3 ... --golden golden.json --json

exit status: 0 nothing differs by more than --tolerance, 1 something does, 2 wrong usage or a
bag that cannot be replayed, 3 the policy node did not start or stopped answering, 4 a step of the
start or the end did not end in time: the last line says which"""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "replay", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("bag", type=Path, help="a folder, an .mcap or a .db3 file")
    _add_frames(parser)
    _add_policy(parser)
    add("--golden", type=Path, metavar="FILE", help="compare with this file, not with the bag")
    add("--save", type=Path, metavar="FILE", help="keep the actions as a golden file")
    add(
        "--tolerance",
        type=float,
        default=0.0,
        metavar="X",
        help="largest difference that is none, m, rad and gripper alike (default: 0)",
    )
    add_flag(parser, "--json")
    add("--html", type=Path, metavar="FILE", help="write the report as a page")
    add_flag(parser, "--domain-id")
    add("--verbose", action="store_true", help="show the log of the policy node")


def _add_frames(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--mode", choices=MODES, help="see above")
    add("--rate", type=float, metavar="R", help="mode recorded, R times as fast (default: 1)")
    add_flag(
        parser,
        "--remap",
        metavar="ROLE=TOPIC",
        help="what a topic is called in the bag: image, wrist_image, joint_states, ground_truth,"
        " instruction, policy/action, policy/action_chunk; may be repeated",
    )
    add("--instruction", metavar="TEXT", help="the task, instead of the bag's own")
    add("--frames", metavar="A:B", help="only frames A to B, counted from 0, B included")
    add("--max-gap", type=float, default=10.0, metavar="S", help="longest pause (default: 10 s)")
    add(
        "--answer-timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="lockstep: longest wait for one answer (default: 60)",
    )


def _add_policy(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--policy",
        metavar="NAME",
        help=f"who acts: {', '.join(POLICIES)}, or what an installed package offers (default: as"
        " recorded)",
    )
    add("--checkpoint", metavar="DIR", help="vla: model")
    add("--decoding", metavar="NAME", help="vla: how tokens are decoded")
    flags = ("device", "dtype", "weights")
    add_fields(parser, EngineOptions, *flags, **dict.fromkeys(flags))
    add_flag(
        parser,
        "--param",
        metavar="PARAM=VALUE",
        help="any other parameter of the policy node; may be repeated",
    )


def check(args: argparse.Namespace) -> str:
    """Mode of the replay, "" where the bag decides. Raises UserError for options that are wrong or
    contradict each other."""
    if args.rate is not None and args.mode not in (None, "recorded"):
        raise UserError(f"--rate needs --mode recorded, not {args.mode}")
    if args.rate is not None and not 0.01 <= args.rate <= 100:
        raise UserError(f"--rate {args.rate:g}: must be 0.01 to 100")
    if not args.tolerance >= 0:
        raise UserError(f"--tolerance {args.tolerance:g}: must be 0 or more")
    if not args.max_gap > 0 or not args.answer_timeout > 0:
        raise UserError("--max-gap and --answer-timeout must be above 0 seconds")
    check_domain(args.domain_id)
    for option in (args.save, args.html):
        if option is not None and not option.absolute().parent.is_dir():
            raise UserError(f"there is no folder {option.absolute().parent}")
        if option is not None and option.is_dir():
            raise UserError(f"{option} is a folder: name a file in it")
    frame_range(args.frames)
    elsewhere = any(item.startswith("worker_python=") for item in args.param)
    if args.policy not in (None, *POLICIES) and not elsewhere:
        refuse_unknown(args.policy)
    return str(args.mode or ("recorded" if args.rate is not None else ""))


def conclude(args: argparse.Namespace, report: Report, played: ReplayedFrames) -> int:
    """Write and print the report. Returns the exit status."""
    from vla_ros.data.replay_compare import json_line, save_golden, text
    from vla_ros.viz.replay_page import page

    if args.save:
        save_golden(args.save, played.run, str(args.bag))
    if args.html:
        try:
            args.html.write_text(page(report), encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {args.html}: {error.strerror}") from None
    print(text(report), flush=True)
    if args.json:
        print(json_line(report), flush=True)
    return 0 if report.within else 1


def run(args: argparse.Namespace) -> int:
    """Replay a bag. Returns the exit status, see `vla-ros replay --help`."""
    mode = check(args)
    require_rosbags()
    from vla_ros.data.bags import Bag

    with Bag(args.bag) as bag, contextlib.ExitStack() as opened:
        replay = _Replay(args, mode, bag, opened)
        return replay.outcome(replay.run)


class _Replay(GraphRun):
    """One replay: the bag's check, the policy node, the frames, the report."""

    def __init__(
        self, args: argparse.Namespace, mode: str, bag: Bag, opened: contextlib.ExitStack
    ) -> None:
        super().__init__("replay", args)
        self._mode, self._bag, self._open = mode, bag, opened

    def run(self) -> int:
        from vla_ros.data.bags import BagError
        from vla_ros.ros.nodes.replay.prepare import (
            make_report,
            mode_like,
            prepare,
            with_requests,
        )

        self._mode = self._mode or mode_like(self._args, self._bag)
        prepared = prepare(self._args, self._mode, self._bag)
        if prepared.chunks:
            folder = tempfile.TemporaryDirectory(prefix="vla_ros_replay_")
            self._open.callback(folder.cleanup)
            prepared = with_requests(prepared, Path(folder.name))
        with self.graph(prepared.spec) as graph:
            graph.start()
            began = time.monotonic()
            played = self._play(graph, prepared)
        if not played.shown:
            raise BagError(f"no frame could be shown: {next(iter(played.refused.values()), '')}")
        wall_s = time.monotonic() - began
        notes = self._bag.notes
        report = make_report(self._args, self._mode, prepared, played, wall_s, notes)
        return conclude(self._args, report, played)

    def _play(self, graph: Graph, prepared: Prepared) -> ReplayedFrames:
        from vla_ros.data.bag_frames import lacking, read_frames
        from vla_ros.ros.nodes.replay.driver import (
            PolicyLink,
            play_chunks,
            play_lockstep,
            play_realtime,
        )

        def look() -> None:
            if self._stop.is_set():
                raise BringUpStopped
            graph.check()

        def lacks(frame: BagFrame) -> str:
            look()
            return lacking(frame, prepared.needs, prepared.slop_ns)

        frames = read_frames(
            self._bag, prepared.picked, prepared.frames, prepared.needs, prepared.slop_ns
        )
        begins = prepared.plan.by_stamp
        lockstep = self._mode in AS_IT_IS_ASKED
        roles = (*prepared.needs, "image")
        with PolicyLink(self._domain, roles, prepared.picked.compressed, lockstep, look) as link:
            link.wait_ready()
            total = len(prepared.frames.times) - prepared.plan.skipped
            shown = self._updater(len(prepared.chunks) or total)
            patience_s = self._args.answer_timeout
            if prepared.chunks:
                texts, chunks = prepared.instructions, prepared.chunks
                played = play_chunks(link, frames, chunks, texts, lacks, patience_s, shown)
            elif lockstep:
                played = play_lockstep(link, frames, begins, lacks, patience_s, shown)
            else:
                rate = None if self._mode == "fast" else float(self._args.rate or 1.0)
                played = play_realtime(link, frames, begins, lacks, rate, shown)
            self._progress.end()
            return played

    def _updater(self, total: int) -> Callable[[int], None]:
        """Function that updates the progress bar."""
        began = time.monotonic()

        def update(count: int) -> None:
            rate = count / max(time.monotonic() - began, 1e-9)
            self._progress.update("replay", f"frames, {rate:.1f} Hz", count, total)

        return update
