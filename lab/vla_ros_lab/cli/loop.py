"""`vla-ros loop`: generations of a checkpoint on one page: data, success, takeovers, age."""

from __future__ import annotations

import argparse
from pathlib import Path

from vla_ros.cli.arguments import Verbs, add_flag, add_verb, command, require_rosbags
from vla_ros.core.console import print_json
from vla_ros.core.errors import UserError

DESCRIPTION = """\
Find what `vla-ros record`, `train` and `eval` wrote below DIR and join it by the SHA-256 of the
checkpoint: what each generation was trained on, how often it succeeds, won and lost against the
one before, how much a person had to do while it ran, and how old its observation was.

Nothing is run or changed. The page is one file that loads nothing."""

EPILOG = """\
examples:
  vla-ros loop runs
  vla-ros loop runs bags --out report/loop.html --json

exit status: 0 done, 2 nothing there"""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "loop", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add(
        "directories", type=Path, nargs="+", metavar="DIR", help="where runs, bags, evaluations are"
    )
    add("--out", type=Path, metavar="FILE", help="the page (loop.html in the first DIR)")
    add("--picture", type=Path, metavar="FILE", help="the page's image too, such as loop.png")
    add_flag(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """Read, print, write the page; returns the exit status."""
    require_rosbags()
    from vla_ros.core.console import show
    from vla_ros_lab.loop.chain import read_chain
    from vla_ros_lab.loop.page import FILE, as_json, save_picture, terminal_table, write_page

    chain = read_chain(args.directories)
    path = args.out or args.directories[0] / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_page(path, chain, command())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    if args.picture:
        try:
            save_picture(args.picture, chain)
        except (ImportError, OSError, ValueError) as error:
            raise UserError(f"{args.picture}: {error}") from error
    show(terminal_table(chain))
    for line in chain.left_out:
        print(f"left out: {line}")
    print(path)
    if args.json:
        print_json({**as_json(chain), "page": str(path)})
    return 0
