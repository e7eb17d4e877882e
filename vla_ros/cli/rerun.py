"""`vla-ros rerun`: a bag as a recording of the Rerun viewer."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vla_ros.cli.arguments import Verbs, add_flag, add_verb, require_rosbags
from vla_ros.core.console import log_line, print_json
from vla_ros.core.errors import UserError
from vla_ros.core.text import printable

if TYPE_CHECKING:
    from vla_ros.viz.rerun import RerunSummary

_LIVE_JPEG = 80
DESCRIPTION = """\
Write a bag as a recording that the Rerun viewer opens: cameras, observation age, staleness,
latency and stages, the state of the policy, its actions, the instruction and the log, and in 3-D
the arm, what lies about, transforms and the commanded displacement, on a time line of the ROS
clock. A bag needs no ROS. It needs rerun-sdk (pip install '.[rerun]' in the checkout)."""

EPILOG = """\
examples:
  vla-ros rerun run1                     writes run1.rrd
  vla-ros rerun run1 --open              and opens it
  vla-ros rerun run1 --web               and serves it to a browser on this machine
  vla-ros rerun --live                   a running graph in the viewer, until Ctrl-C
  vla-ros rerun cam.db3 --out /tmp/cam.rrd --jpeg 80

exit status: 0 written, 2 wrong usage, a bad bag, or rerun-sdk is missing"""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "rerun", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("bag", type=Path, nargs="?", metavar="BAG", help="a folder of rosbag2, .mcap or .db3 file")
    add("--live", action="store_true", help="a running graph instead, until Ctrl-C")
    add("--connect", default="", metavar="URL",
        help="with --live: a viewer that runs, such as rerun+http://HOST:9876/proxy (one is"
        " started)")  # fmt: skip
    add("--out", type=Path, metavar="FILE.rrd", help="where to (beside the bag, its name.rrd)")
    add("--jpeg", type=int, metavar="QUALITY",
        help="images as JPEG, 1 to 100: a smaller file (of a bag 0: every"
        " pixel as it was; live 80)")  # fmt: skip
    then = parser.add_mutually_exclusive_group()
    then.add_argument("--open", action="store_true", help="open the viewer with it")
    then.add_argument("--web", action="store_true", help="serve it to a browser on this machine")
    add_flag(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """Write the recording; returns the exit status."""
    if args.live == (args.bag is not None):
        raise UserError("give a BAG, or --live for a running graph")
    if args.jpeg is None:
        args.jpeg = _LIVE_JPEG if args.live else 0
    if not 0 <= args.jpeg <= 100:
        raise UserError(f"--jpeg {args.jpeg}: a quality from 1 to 100, or 0 for every pixel")
    if args.live:
        return _live(args)
    if args.connect:
        raise UserError("--connect goes with --live; a bag becomes a file")
    out = _out(args)
    require_rosbags()
    from vla_ros.core.console import Progress
    from vla_ros.data.bags import Bag
    from vla_ros.viz.rerun import export, sdk

    sdk()
    with Bag(args.bag) as bag, Progress() as progress:
        summary, paths = export(
            bag, out, args.jpeg, lambda done, total: progress.update("", "", done, total)
        )
        notes = bag.notes
    _print_summary(out, summary, len(paths), notes)
    if args.json:
        print_json(_as_json(out, summary, sorted(paths)))
    if args.open or args.web:
        _open(out, args.web)
    return 0


def _live(args: argparse.Namespace) -> int:
    """Show a running graph until Ctrl-C."""
    from vla_ros.viz.rerun import sdk

    if args.open or args.web or args.json:
        raise UserError("--live shows or writes until Ctrl-C: no --open, --web or --json")
    if args.out and args.connect:
        raise UserError("--live either shows (--connect) or writes (--out)")
    out = str(_out(args).absolute()) if args.out else ""
    values = {"out": out, "connect": args.connect, "jpeg": args.jpeg}
    sdk()
    from vla_ros.core.resources import config_path
    from vla_ros.ros.bringup.environment import prepare
    from vla_ros.ros.bringup.graph import command_line
    from vla_ros.ros.bringup.graph_file import NodeSpec

    prepare()
    try:
        from vla_ros.ros.nodes.rerun.node import main
    except ImportError as error:
        raise UserError(f"{error}; `vla-ros doctor` says what to install") from None
    words = command_line(NodeSpec("rerun", "rerun", (config_path("rerun.yaml"),), values))
    return main([sys.argv[0], *words[words.index("--ros-args") :]])


def _out(args: argparse.Namespace) -> Path:
    out: Path = args.out or args.bag.absolute().parent / f"{args.bag.absolute().name}.rrd"
    if out.suffix != ".rrd":
        raise UserError(f"--out {out}: the file must be called something.rrd")
    if not out.absolute().parent.is_dir():
        raise UserError(f"--out {out}: {out.absolute().parent} is no folder")
    if out.is_dir():
        raise UserError(f"--out {out}: there is a folder of this name")
    return out


def _print_summary(out: Path, summary: RerunSummary, entities: int, notes: list[str]) -> None:
    for note in notes:
        log_line(note)
    for topic, (count, complaint) in summary.malformed.items():
        log_line(f"{topic}: {count} messages left out, the first: {complaint}")
    if summary.skipped:
        names = ", ".join(topic.name for topic in summary.skipped)
        print(f"nothing is shown of {printable(names)}")
    size = out.stat().st_size / 1e6
    print(f"{out}: {summary.messages} messages of {summary.seconds:.1f} s, {entities} entities,"
          f" {size:.1f} MB")  # fmt: skip
    print(f"open it with  rerun {out}  (or vla-ros rerun --open)")


def _as_json(out: Path, summary: RerunSummary, paths: list[str]) -> dict[str, object]:
    return {
        "file": str(out),
        "bytes": out.stat().st_size,
        "messages": summary.messages,
        "seconds": summary.seconds,
        "entities": paths,
        "skipped": [topic.name for topic in summary.skipped],
        "malformed": {topic: count for topic, (count, _) in summary.malformed.items()},
    }


def _open(out: Path, web: bool) -> None:
    """Become the viewer, on this machine's interface alone: its own default is every one."""
    sys.stdout.flush()
    how = ["--web-viewer"] if web else []
    os.execv(sys.executable, [sys.executable, "-m", "rerun", str(out), "--bind", "127.0.0.1", *how])
