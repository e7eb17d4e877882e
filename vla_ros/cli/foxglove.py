"""`vla-ros foxglove`: a running graph's topics for the Foxglove app."""

from __future__ import annotations

import argparse
import sys

from vla_ros.bringup.graph_file import LOG_LEVELS, NodeSpec
from vla_ros.bringup.names import check_namespace, remapping
from vla_ros.errors import UserError
from vla_ros.resources import config_path, share

DESCRIPTION = """\
Serve the topics of a running graph to the Foxglove app, over its web socket protocol, as
foxglove_bridge does where ROS came from apt. Ends with Ctrl-C. A spectator: a topic is heard only
while somebody looks at it. Needs foxglove-sdk (pip install '.[foxglove]' in the checkout)."""

EPILOG = """\
examples:
  vla-ros foxglove                  then, in the app: Open connection, ws://localhost:8765
  vla-ros foxglove --say            the app's Publish panel may say the instruction
  vla-ros foxglove --layout         where the layout for these topics is, and end

exit status: 0 ended, 2 wrong usage, or foxglove-sdk is missing"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The options of this verb."""
    parser = verbs.add_parser(
        "foxglove",
        help="a running graph's topics for the Foxglove app",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--port", type=int, default=8765, help="port to serve on; 0: any that is free (8765)")
    add("--host", default="127.0.0.1", help="address to serve on (this machine alone)")
    add("--say", action="store_true", help="let clients say the instruction")
    add("--namespace", default="", help="whose instruction that is, such as arm_left")
    add("-r", "--remap", action="append", default=[], metavar="FROM=TO",
        help="what instruction is called here; may be repeated")  # fmt: skip
    add("--layout", action="store_true", help="print where the layout's file is, and end")
    add("--log-level", choices=LOG_LEVELS, default="info")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C. Returns the exit status."""
    if args.layout:
        print(share() / "config" / "foxglove" / "vla_ros.json")
        return 0
    command = node_arguments(args)
    try:
        import rosbags  # noqa: F401
    except ImportError:
        raise UserError("rosbags is missing: pip install '.[foxglove]' in the checkout") from None
    from vla_ros.windows.foxglove_server import sdk

    sdk()
    from vla_ros.bringup.environment import prepare

    prepare()
    try:
        from vla_ros.nodes.foxglove.node import main
    except ImportError as error:
        raise UserError(f"{error}; `vla-ros doctor` says what to install") from None
    return main([sys.argv[0], *command])


def node_arguments(args: argparse.Namespace) -> list[str]:
    """What the options mean for the node, as ROS arguments. Raises UserError."""
    from vla_ros.bringup.process import command_line

    if not 0 <= args.port <= 65_535:
        raise UserError(f"--port {args.port}: 1 to 65535, or 0 for any that is free")
    check_namespace(args.namespace)
    spec = NodeSpec(
        "foxglove",
        "foxglove",
        (config_path("foxglove.yaml"),),
        {"host": args.host, "port": args.port, "say": args.say},
        dict(remapping(item)[1:] for item in args.remap),
        args.namespace,
        log_level=args.log_level,
    )
    words = command_line(spec)
    return words[words.index("--ros-args") :]
