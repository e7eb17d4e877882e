"""`vla-ros train`: behaviour cloning of a small policy, in as many sittings as it takes."""

from vla_ros.cli.train.options import add_parser
from vla_ros.cli.train.verb import run

__all__ = ["add_parser", "run"]
