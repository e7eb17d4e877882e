"""`vla-ros lock`: which commits hub ids without one are held to, and the way to another one."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from vla_ros.cli.arguments import Verbs, add_verb

DESCRIPTION = """\
An id of the hub without a commit (lerobot/smolvla_base) is resolved when it is first used, and held
to that commit and to the SHA-256 of its files from then on: by the policy node, serve, eval, check
and doctor alike. Without ID this lists what is held. With ID it asks the hub what the id is now,
downloads that, and holds to it.

The lock is vla_ros.lock beside the robot's file (keep it in git) and one in the user's state
folder, which answers for ids that the first does not have. $VLA_ROS_LOCK names another first
one."""

EPILOG = """\
examples:
  vla-ros lock                                      what is held
  vla-ros lock lerobot/smolvla_base                 hold it to what the hub has now
  vla-ros lock lerobot/smolvla_base --robot robot.yaml

exit status: 0 done, 2 the hub cannot be asked, or a lock cannot be read or written"""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "lock", DESCRIPTION, EPILOG)
    parser.add_argument("ids", nargs="*", metavar="ID", help="owner/name, or owner/name@branch")
    parser.add_argument(
        "--robot", type=Path, metavar="FILE", help="the robot's file: the lock beside it"
    )


def run(args: argparse.Namespace) -> int:
    """List, or renew; returns the exit status."""
    from vla_ros.engine.io import lock

    if args.robot is not None:
        args.robot.stat()  # its OSError is a line: there is no such file
        lock.use_beside(args.robot)
    for name in args.ids:
        _renew(name)
    if not args.ids:
        _list()
    return 0


def _list() -> None:
    from vla_ros.engine.io import lock

    shown = False
    for path in lock.locks():
        for name, held in sorted(lock.read(path).items()):
            print(f"{name}@{held.commit} ({len(held.files)} files) by {path}")
            shown = True
    if not shown:
        where = ", ".join(map(str, lock.locks()))
        print(f"nothing is held yet; looked in {where}")


def _renew(name: str) -> None:
    from vla_ros.engine.io.hub import renew

    before, now = renew(name)
    if before is None:
        print(f"{name} is held to {now.commit} by {now.source}")
    elif before.commit == now.commit and dict(before.files) == dict(now.files):
        print(f"{name} is what it was: {now.commit}, by {now.source}")
    else:
        old, new = before.files, now.files
        changed = sorted(file for file in {*old, *new} if old.get(file) != new.get(file))
        print(f"{name} was {before.commit}, and is held to {now.commit} by {now.source}")
        print(textwrap.shorten(f"changed: {', '.join(changed)}", 400))
