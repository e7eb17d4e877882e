"""`vla-ros foxglove`: points to foxglove_bridge; for one release, our own server was here."""

from __future__ import annotations

import argparse

from vla_ros.cli.arguments import Verbs, add_verb
from vla_ros.core.errors import UserError
from vla_ros.core.resources import share

DESCRIPTION = """\
Foxglove sees a running graph through foxglove_bridge, which comes with ROS from apt; our own
server is gone. The layout for our topics stays."""

EPILOG = """\
examples:
  ros2 launch foxglove_bridge foxglove_bridge_launch.xml
  vla-ros foxglove --layout         where the layout for these topics is, and end"""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb; those that it had are read, so that the answer is the one line."""
    parser = add_verb(verbs, "foxglove", DESCRIPTION, EPILOG)
    parser.add_argument("--layout", action="store_true", help="print where it is")
    parser.add_argument("--say", action="store_true", help=argparse.SUPPRESS)
    for option in ("--port", "--host", "--namespace", "-r", "--remap", "--log-level"):
        parser.add_argument(option, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Print the layout's path; without ``--layout`` a UserError says what to use instead."""
    layout = share() / "config" / "foxglove" / "vla_ros.json"
    if not args.layout:
        raise UserError(
            "use foxglove_bridge (ros2 launch foxglove_bridge foxglove_bridge_launch.xml); the"
            f" layout for its app: {layout}"
        )
    print(layout)
    return 0
