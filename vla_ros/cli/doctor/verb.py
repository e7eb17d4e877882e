"""`vla-ros doctor`: what this machine has, what it lacks, and what to do about it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vla_ros.cli.doctor.checks import Check

DESCRIPTION = """\
Look at everything a graph needs and print one line for each: ok, warn (works, with a
limitation) or FAIL (the graph or the demo cannot run), with what to do about it."""

EPILOG = """\
examples:
  vla-ros doctor
  vla-ros doctor --clean                          free shared memory that killed nodes left
  vla-ros doctor --checkpoint /models/openvla-7b  read a model and check every tensor

exit status: 0 no FAIL, 1 at least one FAIL, 2 wrong usage"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The options of this verb."""
    parser = verbs.add_parser(
        "doctor",
        help="check this machine: every line ok, or what to do about it",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--checkpoint", metavar="DIR", help="also read this model")
    parser.add_argument(
        "--clean",
        action="store_true",
        help="remove what killed processes left in /dev/shm; running ones are not touched",
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON instead")


def run(args: argparse.Namespace) -> int:
    """Run every check; returns the exit status."""
    from vla_ros.cli.doctor.checks import Level, line

    found: list[Check] = []
    for check in _checks(args):
        found.append(check)
        if not args.json:
            print(line(check), flush=True)
    failed = sum(check.level is Level.FAIL for check in found)
    if args.json:
        print(json.dumps({"failed": failed, "checks": [_plain(check) for check in found]}))
    elif failed:
        print(f"{failed} of {len(found)} FAIL")
    return int(failed > 0)


def _checks(args: argparse.Namespace) -> Iterator[Check]:
    from vla_ros.cli.doctor import checks, model, ros
    from vla_ros.cli.doctor import libero as libero_checks
    from vla_ros.cli.doctor.jetson import jetson

    yield checks.python()
    files = checks.files()
    yield files
    if files.level is checks.Level.FAIL:
        return  # nothing below can be judged
    yield ros.ros()
    yield ros.rclpy()
    yield ros.messages()
    yield ros.middleware()
    yield ros.discovery()
    yield ros.security()
    yield ros.leftovers(args.clean)
    yield model.torch()
    yield model.gpu()
    yield from jetson()
    yield checks.simulation()
    yield libero_checks.libero()
    if args.checkpoint is not None:
        yield model.checkpoint(args.checkpoint)
    yield checks.clock()


def _plain(check: Check) -> dict[str, str]:
    return {
        "name": check.name,
        "level": check.level.value.lower(),
        "found": check.found,
        "advice": check.advice,
    }
