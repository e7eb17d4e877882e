"""`vla-ros up`: start the nodes of a graph file and keep them until Ctrl-C or until one ends."""

from __future__ import annotations

import argparse
import os
import re
import textwrap
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from vla_ros.cli.arguments import Verbs, add_flag, add_verb, check_seconds
from vla_ros.cli.defaults import refuse_device
from vla_ros.core.console import error
from vla_ros.core.errors import UserError, user_errors
from vla_ros.core.signals import set_on_signal
from vla_ros.engine.io import lock
from vla_ros.policies.base import POLICIES, refuse_unknown
from vla_ros.ros.bringup.contract import read_contract
from vla_ros.ros.bringup.environment import check_enclave
from vla_ros.ros.bringup.graph import (
    REFUSED,
    BringUpStopped,
    Graph,
    GraphFailed,
    TimedOut,
    print_line,
)
from vla_ros.ros.bringup.graph_file import (
    LOG_LEVELS,
    GraphSpec,
    NodeSpec,
    parse_overrides,
    shipped_graphs,
    shipped_values,
    title_of,
)
from vla_ros.ros.bringup.view import view_node
from vla_ros.ros.common.ending import STUCK
from vla_ros.ros.common.parameter_files import place_of_error
from vla_ros.ros.common.surroundings import check_surroundings

DESCRIPTION = """\
Start the nodes of a graph with their parameter files, configure and activate the lifecycle
nodes, show their logs, and end them all, in order, on Ctrl-C, SIGTERM or when one of them ends.
It does what `ros2 launch vla_ros sim.launch.py` does, where launch is not installed.

Unless they are set, it sets ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST (only this machine sees the
graph) and FASTDDS_DEFAULT_PROFILES_FILE (the profile that camera images need)."""

EPILOG = """\
graphs:
{graphs}

examples:
  vla-ros up sim                                   simulation, policy and monitor
  vla-ros up sim -p policy.policy=scripted         ... with the scripted expert
  vla-ros up policy -r image=/camera/image_raw     a policy for a camera of your own
  vla-ros up policy --contract so_101.yaml         ... for a robot that Rosetta describes
  vla-ros up sim --view                            ... with a page in the browser
  vla-ros up sim --list                            show nodes and parameters; start nothing

exit status: 0 ended when asked, 1 a node failed or would not come up, 2 wrong usage, 4 a step
of the start or the end did not end in time: the last line says which"""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(
        verbs,
        "up",
        DESCRIPTION,
        EPILOG.format(graphs="\n".join(map(_graph_line, shipped_graphs().items()))),
    )
    parser.add_argument("graph", help="a graph file, or the name of a shipped one, see below")
    add_flag(
        parser,
        "--param",
        metavar="NODE.PARAM=VALUE",
        help="set a parameter, after the parameter files; may be repeated",
    )
    add_flag(
        parser,
        "--remap",
        metavar="[NODE:]FROM=TO",
        help="rename a topic or service, in every node or in one; may be repeated",
    )
    parser.add_argument(
        "--contract",
        default="",
        metavar="FILE",
        help="the robot as Rosetta describes it, for the policy node; -p wins over it",
    )
    parser.add_argument("--namespace", default="", help="namespace of all nodes, such as arm_left")
    parser.add_argument(
        "--enclave",
        default="",
        metavar="FOLDER",
        help="of the keystore: node NAME uses the keys of FOLDER/NAME, such as /vla_ros/policy",
    )
    add_flag(parser, "--log-level", choices=LOG_LEVELS, default=None, help="of all nodes")
    add_flag(parser, "--for", help="end by itself after this time")
    parser.add_argument(
        "--view", action="store_true", help="show it in the browser: the view node too"
    )
    parser.add_argument("--list", action="store_true", help="show what would start, and end")


def _graph_line(graph: tuple[str, Path]) -> str:
    name, file = graph
    return textwrap.fill(f"  {name:<10} {title_of(file)}", 80, subsequent_indent=" " * 13)


def run(args: argparse.Namespace) -> int:
    """Start, wait, end. Returns the exit status."""
    check_seconds(args.seconds)
    check_surroundings()  # before rclpy is imported, which a wrong RMW_IMPLEMENTATION ends
    given = parse_overrides(args.param)
    robot = read_contract(args.contract) if args.contract else None
    spec = GraphSpec.load(
        args.graph,
        given,
        namespace=args.namespace,
        log_level=args.log_level,
        remappings=args.remap,
        more=view_node(_simulated(args.graph)) if args.view else None,
        enclave=args.enclave,
    )
    if robot is not None:
        spec = robot.given_to(spec, given.get("policy", {}))
    for node in spec.nodes:
        _check_values(node, Path(spec.source), given.get(node.name, {}))
    if args.list:
        print(describe(spec))
        return 0
    for node in spec.nodes:
        _check_start(node)
    check_enclave(args.enclave, os.environ)
    stop = threading.Event()
    set_on_signal(stop)
    return _run(spec, stop, args.seconds)


def _check_values(node: NodeSpec, graph: Path, given: Mapping[str, object]) -> None:
    """Refuse a value that the node would refuse as it starts, with its file and line, or as one
    ``given`` with -p."""
    if node.values() == shipped_values(node):
        return
    try:
        from vla_ros.ros.nodes.tables import check_given
    except ImportError:  # without ROS: nothing will start
        return
    try:
        check_given(node.executable, node.values())
    except ValueError as error:
        named = re.split("[ :]", str(error), maxsplit=1)[0]
        where = f"-p {node.name}.{named}" if named in given else ""
        where = where or place_of_error(str(error), (*node.parameter_files, graph), node.full_name)
        raise UserError(f"{where or node.name}: {error}") from None


def _check_start(node: NodeSpec) -> None:
    """Refuse what the node would refuse once it runs: a policy, a checkpoint or a task that there
    is not, values that contradict each other."""
    values = node.values()
    name = str(values.get("policy") or "")
    # What another interpreter has, a worker_python's, is not known here.
    here = node.executable == "policy" and not values.get("worker_python")
    if here and name not in ("", *POLICIES):
        refuse_unknown(name)
    try:
        from vla_ros.ros.common.given import last_written
        from vla_ros.ros.nodes.tables import check_start
    except ImportError:  # without ROS: nothing will start
        return
    with user_errors(ValueError), lock.beside_it(last_written(node.parameter_files)):
        check_start(node.executable, values)
    if here and name == "vla":
        refuse_device(str(values["device"]))


def _simulated(graph: str) -> bool:
    """True where the file's nodes use simulated time."""
    return any(node.values().get("use_sim_time") for node in GraphSpec.load(graph).nodes)


def describe(spec: GraphSpec) -> str:
    """Listing of a graph's nodes, with every parameter and its value."""
    lines = [f"{spec.source}"]
    for node in spec.nodes:
        kind = "lifecycle node" if node.lifecycle else "node"
        lines.append(f"{node.full_name}: {kind} vla_ros.ros.nodes.{node.executable}.node")
        lines += [f"  {old} -> {new}" for old, new in node.remappings.items()]
        lines += [f"  {name}: {value!r}" for name, value in node.values().items()]
    return "\n".join(lines)


def _run(spec: GraphSpec, stop: threading.Event, seconds: float | None) -> int:
    graph = Graph(spec, on_line=_show, interrupted=stop.is_set, shared=True)
    failure: GraphFailed | None = None
    try:
        graph.start()
        lacking = graph.lacking()
        running = "; ".join(["everything is running", *lacking, *_shadows(spec, lacking)])
        print_line("up", f"{running}; Ctrl-C ends it")
        until = time.monotonic() + seconds if seconds else float("inf")
        while not stop.wait(0.1) and time.monotonic() < until:
            graph.check()
    except BringUpStopped:
        pass
    except GraphFailed as wrong:
        failure = wrong
    exits = graph.stop()
    for ended in exits:
        print_line("up", str(ended))
    if failure is not None:  # last, where it is looked for
        error("vla-ros up", failure)
        return STUCK if isinstance(failure, TimedOut) else 1
    return int(not all(ended.clean for ended in exits))


def _shadows(spec: GraphSpec, lacking: Sequence[str]) -> list[str]:
    """A line for each policy node in the shadow that no line of ``lacking`` is about."""
    names = [node.full_name for node in spec.nodes if node.values().get("shadow")]
    quiet = [name for name in names if not any(f"{name} is " in line for line in lacking)]
    return [f"SHADOW: nothing of {name} moves the robot" for name in quiet]


def _show(node: str, line: str) -> None:
    """Show a line of a node's log, but a refusal to configure, which is this verb's last line."""
    if REFUSED not in line:
        print_line(node, line)
