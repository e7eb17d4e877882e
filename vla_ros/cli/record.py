"""`vla-ros record`: the messages of a running graph into a bag."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from vla_ros.cli.arguments import Verbs, add_flag, add_verb, check_seconds, require_rosbags
from vla_ros.core.console import Progress
from vla_ros.core.errors import UserError
from vla_ros.core.resources import config_path
from vla_ros.ros.bringup.environment import OVERRIDE, check_enclave, enclave_of
from vla_ros.ros.bringup.graph_file import (
    LOG_LEVELS,
    NodeSpec,
    check_namespace,
    parse_overrides,
    remapping,
    with_parameters,
)

DESCRIPTION = """\
Record a running policy: images, instruction, joint states, ground truth, actions, chunks, status,
latency, diagnostics and /clock, into an MCAP bag, with the parameters of the nodes and the hash
of the checkpoint in its metadata. Ends with Ctrl-C. `vla-ros replay` reads the bag, and so does
everything that reads rosbag2.

It also is a flight recorder: at every entry of the policy into HOLD or FAULT the last 10 seconds
are written into a bag of their own, flight_<time>_<state>.

It is a process of its own. A full disk, a slow one or a kill never stops the robot's control; what
was written until then stays readable, without the last second at most."""

EPILOG = """\
examples:
  vla-ros record -o run1                       everything, until Ctrl-C
  vla-ros record --flight-only                 only the seconds around HOLD and FAULT
  vla-ros record -r image=/camera/color/image_raw -o run2

exit status: 0 recorded, 2 wrong usage"""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "record", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("-o", "--output", type=Path, metavar="DIR", help="the bag (default: vla_ros_<time>)")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--flight-only", action="store_true", help="no bag, only flight records")
    only.add_argument("--no-flight", action="store_true", help="no flight records, only the bag")
    add(
        "--flight-folder",
        type=Path,
        metavar="DIR",
        help="where they go (default: flight_records, see the parameter)",
    )
    add(
        "--topic",
        action="append",
        default=[],
        metavar="NAME:TYPE",
        help="one more topic, such as /tf:tf2_msgs/msg/TFMessage; may be repeated",
    )
    add_flag(
        parser,
        "--remap",
        metavar="FROM=TO",
        help="what a topic is called here, such as image=/camera/image_raw; may be repeated",
    )
    add_flag(
        parser,
        "--param",
        metavar="PARAM=VALUE",
        help="any other parameter of config/recorder.yaml; may be repeated",
    )
    add("--namespace", default="", help="namespace of the graph, such as arm_left")
    add("--enclave", default="", metavar="FOLDER", help="use the keys of FOLDER/recorder (SROS 2)")
    add_flag(parser, "--for", help="end by itself after recording for this long")
    add_flag(parser, "--log-level", choices=LOG_LEVELS)


def run(args: argparse.Namespace) -> int:
    """Record until Ctrl-C. Returns the exit status."""
    check_seconds(args.seconds)
    check_enclave(args.enclave, os.environ)
    command = node_arguments(args)
    require_rosbags()
    from vla_ros.ros.bringup.environment import prepare

    prepare()
    if args.enclave:
        os.environ.pop(OVERRIDE, None)  # of a launch that started this
    try:
        from vla_ros.ros.common.spin import every
        from vla_ros.ros.nodes.recorder.node import RecorderNode, main
    except ImportError as error:
        raise UserError(f"{error}; `vla-ros doctor` says what to install") from None
    with Progress() as progress:

        def make() -> RecorderNode:
            node = RecorderNode(progress.say)
            every(node, 0.5, lambda: progress.update("", f"{node.summary}, {node.seconds:.0f} s"))
            if args.seconds is not None:  # from now on: the start may have taken seconds
                end = threading.Timer(args.seconds, os.kill, (os.getpid(), signal.SIGINT))
                end.daemon = True
                end.start()
            return node

        def close(node: RecorderNode) -> None:
            try:
                progress.end()
            finally:
                node.close()

        return main([sys.argv[0], *command], make, close)


def node_arguments(args: argparse.Namespace) -> list[str]:
    """ROS arguments of the node, from the options. Raises UserError."""
    from vla_ros.ros.bringup.graph import command_line

    if args.output is not None and args.output.exists():
        raise UserError(f"--output {args.output}: exists already; a recording overwrites nothing")
    check_namespace(args.namespace)
    values: dict[str, object] = {
        "output": str(args.output) if args.output else None,
        "record": False if args.flight_only else None,
        "flight": False if args.no_flight else None,
        "flight_folder": str(args.flight_folder) if args.flight_folder else None,
        "extra_topics": ", ".join(_topic(text) for text in args.topic) or None,
    }
    given = {name: value for name, value in values.items() if value is not None}
    spec = NodeSpec(
        "recorder",
        "recorder",
        (config_path("recorder.yaml"),),
        given,
        dict(remapping(item)[1:] for item in args.remap),
        args.namespace,
        log_level=args.log_level,
        enclave=enclave_of(args.enclave, "recorder") if args.enclave else "",
    )
    words = command_line(with_parameters(spec, _parameters(args.param)))
    return words[words.index("--ros-args") :]


def _parameters(items: list[str]) -> Mapping[str, object]:
    for item in items:
        name, equals, _ = item.partition("=")
        if not (name.strip() and equals):
            raise UserError(f"-p {item}: write PARAMETER=VALUE, such as flush_s=0.5")
    return parse_overrides(f"recorder.{item.strip()}" for item in items).get("recorder", {})


def _topic(text: str) -> str:
    name, colon, kind = text.partition(":")
    if not (name and colon and kind.count("/") == 2):
        raise UserError(f"--topic {text}: write NAME:TYPE, such as /tf:tf2_msgs/msg/TFMessage")
    return f"{name} {kind}"
