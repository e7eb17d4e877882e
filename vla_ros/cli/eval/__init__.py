"""`vla-ros eval`: success over many episodes, with intervals, a report, and resumable."""

from vla_ros.cli.eval.options import add_parser
from vla_ros.cli.eval.verb import run

__all__ = ["add_parser", "run"]
