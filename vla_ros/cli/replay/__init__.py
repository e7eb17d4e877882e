"""`vla-ros replay`: a bag into a policy, its actions compared, its latency shown."""

from vla_ros.cli.replay.options import add_parser
from vla_ros.cli.replay.verb import run

__all__ = ["add_parser", "run"]
