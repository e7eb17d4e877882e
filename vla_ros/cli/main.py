"""`vla-ros`: finds the verb, imports only that verb, runs it.

Exit status: 0 done, 1 it ran and failed, 2 wrong usage or a bad file, 130 interrupted.

What the user can put right ends every verb with one line, here and nowhere else: a
:class:`~vla_ros.errors.UserError`, and an OSError about a file (not there, not a folder, no
permission, disk full). Everything else is an error of the program and keeps its traceback.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from vla_ros.console import streams
from vla_ros.errors import UserError

#: verb → one line for `vla-ros --help`; in vla_ros/cli/<verb>.py or vla_ros/cli/<verb>/
VERBS = {
    "demo": "run one simulated task through the whole graph and print a card",
    "up": "start a graph of nodes from a file, where ros2 launch is not installed",
    "doctor": "check this machine: every line ok, or what to do about it",
    "record": "record a running policy into a bag",
    "replay": "play a bag into a policy and compare what it says",
    "rerun": "a bag as a recording of the Rerun viewer",
    "foxglove": "a running graph's topics for the Foxglove app",
    "export": "make a LeRobotDataset of bags or demonstrations",
    "convert": "make a checkpoint that the engine reads of a released one",
    "bench": "measure the inference engine, without ROS",
    "eval": "measure success over many episodes",
    "coverage": "what drafts an evaluation's recorded tokens would allow",
    "quantize": "write a checkpoint with weights of fewer bits",
    "gate": "is a policy in a lower precision still the same policy?",
    "calibrate": "fit the bins of uncertainty that schedule heterospec goes by",
    "libero": "prepare the LIBERO benchmark, list its tasks",
    "lerobot": "set up LeRobot's environment, check its checkpoints",
    "collect": "record demonstrations of the scripted expert",
    "train": "train the small policy on simulated demonstrations",
    "roofline": "what a model can reach on a device, calculated",
    "advise": "which schedules meet a control rate and an age limit",
}

EPILOG = "`vla-ros VERB --help` explains each. Parameters of the nodes are described in config/."


class Parser(argparse.ArgumentParser):
    """Wrong usage is one line on stderr and exit status 2."""

    def error(self, message: str) -> NoReturn:
        streams.error(self.prog, f"{message} (see {self.prog} --help)")
        self.exit(2)


def available() -> list[str]:
    """The verbs whose file is installed."""
    return [verb for verb in VERBS if importlib.util.find_spec(f"vla_ros.cli.{verb}")]


def make_parser(chosen: str | None) -> tuple[Parser, ModuleType | None]:
    """A parser that knows every verb by name and only the chosen one in full."""
    from vla_ros import __version__

    parser = Parser(
        prog="vla-ros",
        description="The ROS 2 runtime for vision-language-action policies.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"vla-ros {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, title="verbs")
    module = None
    for verb in available():
        if verb == chosen:
            module = importlib.import_module(f"vla_ros.cli.{verb}")
            module.add_parser(verbs)
        else:
            verbs.add_parser(verb, help=VERBS[verb])
    return parser, module


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    parser, module = make_parser(chosen)
    args = parser.parse_args(arguments)
    assert module is not None  # argparse refused an unknown verb
    who = f"vla-ros {args.verb}"
    try:
        status: int = module.run(args)
        return status
    except UserError as wrong:
        streams.error(who, wrong)
        return 2
    except KeyboardInterrupt:
        streams.error(who, "interrupted")
        return 130
    except BrokenPipeError:  # the reader of our output (head, less) went away
        sys.stderr.close()
        return 1
    except OSError as wrong:
        if wrong.filename is None:
            raise
        streams.error(who, f"{wrong.filename}: {_said(wrong)}")
        return 2


def _said(wrong: OSError) -> str:
    """What the system says of a file, and what it means where that is not plain."""
    if isinstance(wrong, FileExistsError | NotADirectoryError):
        return "there is a file of this name, and a folder is needed"
    return wrong.strerror or type(wrong).__name__


if __name__ == "__main__":
    sys.exit(main())
