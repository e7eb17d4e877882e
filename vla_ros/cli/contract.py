"""`vla-ros contract`: a robot's description, Rosetta's and ours, the one as the other."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from vla_ros.cli.arguments import Verbs, add_verb

DESCRIPTION = """\
Turn a contract of Rosetta's (which of a ROS 2 robot's topics is which of LeRobot's features) into
a parameter file of the policy node, or a robot's parameter file into a contract: by what FILE is.
What is refused is named with its line. A contract needs no turning to be used: `contract:=FILE` of
policy.launch.py, `vla-ros up policy --contract FILE`.

What a contract has no word for (limits, which joints are grippers) stands in its section x-vla_ros,
which Rosetta ignores."""

EPILOG = """\
examples:
  vla-ros contract contracts/so_101.yaml                    as parameters
  vla-ros contract config/robots/so101.yaml --out so101_contract.yaml

exit status: 0 done; 2 it is no such file, or has what cannot be followed"""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "contract", DESCRIPTION, EPILOG)
    parser.add_argument("file", type=Path, metavar="FILE", help="a contract or a parameter file")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it there (standard output)")
    parser.add_argument("--robot", default="", metavar="TYPE", help="robot_type (the file's name)")


def run(args: argparse.Namespace) -> int:
    """Convert; returns the exit status."""
    from vla_ros.ros.bringup import contract as contracts
    from vla_ros.ros.bringup.robot_file import read_robot

    if contracts.is_contract(args.file):
        text = contracts.parameters_text(contracts.read_contract(args.file))
    else:
        parameters = contracts.robot_parameters(args.file)
        topics = read_robot(args.file).remappings
        with tempfile.TemporaryDirectory(prefix="vla_ros-") as folder:
            made = Path(folder) / "contract.yaml"
            contracts.write_contract(parameters, args.robot or args.file.stem, made, topics)
            text = made.read_text(encoding="utf-8")
    if args.out is None:
        sys.stdout.write(text)
    else:
        args.out.write_text(text, encoding="utf-8")
        print(args.out)
    return 0
